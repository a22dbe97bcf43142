"""Presets by name."""

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from hetero_rl.errors import ConfigError
from hetero_rl.estimators.base import Estimator
from hetero_rl.estimators.cispo import Cispo
from hetero_rl.estimators.ctpo import Ctpo
from hetero_rl.estimators.dapo import Dapo
from hetero_rl.estimators.decoupled_ppo import DecoupledPpo
from hetero_rl.estimators.divergence_mask import DivergenceMask
from hetero_rl.estimators.dppo import DppoKl, DppoTv
from hetero_rl.estimators.dr_grpo import DrGrpo
from hetero_rl.estimators.gepo import Gepo
from hetero_rl.estimators.gmpo import Gmpo
from hetero_rl.estimators.grpo import Grpo
from hetero_rl.estimators.gspo import Gspo
from hetero_rl.estimators.icepop import Icepop
from hetero_rl.estimators.luffy import Luffy
from hetero_rl.estimators.m2po import M2po
from hetero_rl.estimators.minirl import Minirl
from hetero_rl.estimators.mis_po import MisPo
from hetero_rl.estimators.opsm import Opsm
from hetero_rl.estimators.ppo import Ppo
from hetero_rl.estimators.psis import Psis
from hetero_rl.estimators.q_path import QPath
from hetero_rl.estimators.reinforce import Reinforce
from hetero_rl.estimators.rloo import Rloo
from hetero_rl.estimators.sapo import Sapo
from hetero_rl.estimators.seq_is import SeqIs
from hetero_rl.estimators.seq_mask_tis import SeqMaskTis
from hetero_rl.estimators.snis import Snis
from hetero_rl.estimators.tis import Tis
from hetero_rl.estimators.topr import Topr
from hetero_rl.estimators.trm import Trm
from hetero_rl.estimators.vcpo import Vcpo
from hetero_rl.estimators.vespo import Vespo
from hetero_rl.estimators.vtrace import Vtrace

__all__ = ["estimator_class", "list_estimators", "make_estimator"]

_PRESETS: dict[str, type[Estimator[Any]]] = {
    preset.name: preset
    for preset in (
        Reinforce,
        Rloo,
        SeqIs,
        Ppo,
        Grpo,
        DrGrpo,
        Dapo,
        Gspo,
        Gmpo,
        Sapo,
        Cispo,
        Topr,
        Luffy,
        Minirl,
        Tis,
        Icepop,
        SeqMaskTis,
        MisPo,
        Opsm,
        DppoTv,
        DppoKl,
        Trm,
        M2po,
        DecoupledPpo,
        Ctpo,
        Vtrace,
        DivergenceMask,
        Snis,
        Psis,
        QPath,
        Vespo,
        Gepo,
        Vcpo,
    )
}


def list_estimators() -> tuple[str, ...]:
    """Names of all presets."""
    return tuple(_PRESETS)


def estimator_class(name: str) -> type[Estimator[Any]]:
    """The preset of that name; raises ConfigError with the nearest name."""
    if name not in _PRESETS:
        raise ConfigError(f"estimator.name is {name!r}, which is unknown.{_nearest(name, _PRESETS)}")
    return _PRESETS[name]


def make_estimator(name: str, options: Mapping[str, Any] | None = None) -> Estimator[Any]:
    """A preset with its paper's constants, some of them replaced.

    Args:
        name: One of `list_estimators`.
        options: Constants that replace the preset's own, by the names in its options class.

    Raises:
        ConfigError: The name or an option is unknown, or an option is missing or out of range.
    """
    preset = estimator_class(name)
    known = preset.options_class.model_fields
    for option in options or {}:
        if option not in known:
            raise ConfigError(f"estimator.options.{option} is unknown to {name!r}.{_nearest(option, known)}")
    try:
        return preset(preset.options_class(**(options or {})))
    except ValidationError as error:
        problems = "; ".join(
            _problem(detail["loc"], detail["msg"], detail["input"]) for detail in error.errors()
        )
        raise ConfigError(f"options of estimator {name!r}: {problems}") from error


def _problem(location: tuple[int | str, ...], message: str, value: object) -> str:
    option = ".".join(str(part) for part in location) or "options"
    if message == "Field required":
        return f"{option} is missing: the method's paper gives no value for it, so choose one"
    return f"{option} is {value!r}: {message}"


def _nearest(word: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return (f" Did you mean {close[0]!r}?" if close else "") + f" Known: {', '.join(known)}"
