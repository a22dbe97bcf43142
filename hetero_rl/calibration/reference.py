"""The trainer's own side: log-probabilities under exact published weights, and under known faults.

Every fault that changes what a backend computes can be computed here too: a temperature, a nucleus, one tensor or the tied
head left at an older version, a prompt's keys and values kept over an update. The columns that come out are what
`alternatives` compares a backend with.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from hetero_rl.calibration.columns import Floats
from hetero_rl.trainer.policy import Policy
from hetero_rl.trainer.snapshots import Snapshot
from hetero_rl.weights.tensors import distinct_tensors

__all__ = ["Reference", "Scores", "perturbed"]

_LOGITS_PER_PASS = 2**25


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """What the trainer gives for the tokens of some sequences, all but the first of each, one after another [N]."""

    log_probs: Floats
    entropy: Floats
    tempered: Mapping[float, Floats]
    """Log-probabilities at other temperatures."""
    truncated: Mapping[float, Floats]
    """Log-probabilities renormalised over the nucleus of a top_p; -inf outside it."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Separate:
    """A module called with other tensors, each under its own name: tied names need not hold the same one."""

    module: torch.nn.Module
    tensors: Mapping[str, Tensor]

    def __call__(self, **inputs: Any) -> Any:
        call: Callable[..., Any] = torch.func.functional_call
        return call(self.module, dict(self.tensors), kwargs=inputs, tie_weights=False)


class Reference:
    """Computes in float32 under named snapshots of one policy.

    Args:
        policy: The trainer's model; its own weights are not touched.
        snapshots: Weights as published, by name.
    """

    def __init__(self, policy: Policy, snapshots: Mapping[str, Snapshot]) -> None:
        self._twin = policy.twin()
        self.snapshots = dict(snapshots)
        self.named = tuple(distinct_tensors(policy.model.state_dict()))
        """Every tensor of the model once, with the other names of its storage."""

    def _under(self, snapshot: Snapshot) -> Policy:
        wide: dict[int, Tensor] = {}
        tensors = {}
        for name, tensor in snapshot.tensors.items():
            if id(tensor) not in wide:
                wide[id(tensor)] = tensor.to(self._twin.device, torch.float32)
            tensors[name] = wide[id(tensor)]
        return dataclasses.replace(self._twin, model=_Separate(self._twin.model, tensors))

    def score(
        self,
        sequences: Sequence[Sequence[int]],
        weights: str | Snapshot,
        *,
        temperatures: Sequence[float] = (),
        top_ps: Sequence[float] = (),
    ) -> Scores:
        """Scores whole sequences under the weights of that name."""
        snapshot = self.snapshots[weights] if isinstance(weights, str) else weights
        policy = self._under(snapshot)
        parts = [_scores(logits, ids, temperatures, top_ps) for logits, ids in _passes(policy, sequences)]
        return Scores(
            log_probs=_joined(part.log_probs for part in parts),
            entropy=_joined(part.entropy for part in parts),
            tempered={t: _joined(part.tempered[t] for part in parts) for t in temperatures},
            truncated={p: _joined(part.truncated[p] for part in parts) for p in top_ps},
        )

    def kept_cache(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], old: str, new: str
    ) -> Floats:
        """Log-probabilities of completions whose prompts keep the keys and values of older weights.

        The prompt's last token is fed again, as engines do to get the first logits.
        """
        before, after = self._under(self.snapshots[old]), self._under(self.snapshots[new])
        found = []
        for prompt, completion in zip(prompts, completions, strict=True):
            cache = DynamicCache()
            with torch.no_grad():
                if len(prompt) > 1:
                    _feed(before, prompt[:-1], cache)
                logits = _feed(after, [prompt[-1], *completion[:-1]], cache)
            ids = torch.tensor(list(completion), device=logits.device)
            found.append(logits.log_softmax(-1).gather(-1, ids[:, None])[:, 0].double().cpu().numpy())
        return _joined(found)

    @property
    def tied_head(self) -> str | None:
        """Name of the output head where it shares the embedding's storage; None where it does not."""
        names = (name for named in self.named for name in named.tied_names)
        return next((name for name in names if name.startswith("lm_head")), None)

    def mixed(self, new: str, old: str, names: Sequence[str]) -> Snapshot:
        """The newer weights with the tensors of these names left at their older values, other names of them not."""
        newer, older = self.snapshots[new], self.snapshots[old]
        return Snapshot(newer.step, {**newer.tensors, **{name: older.tensors[name] for name in names}})


def _passes(policy: Policy, sequences: Sequence[Sequence[int]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits [T, V] of each sequence, and the ids [T] that they predict."""
    for sequence in sequences:
        row = torch.tensor([list(sequence)], device=policy.device)
        with torch.no_grad(), policy.compute():
            logits = policy.model(input_ids=row[:, :-1], use_cache=False).logits[0]
        yield logits, row[0, 1:]


def perturbed(policy: Policy, snapshot: Snapshot, relative: float, seed: int) -> Snapshot:
    """Other weights of the same shape: each tensor plus noise in proportion to its root mean square.

    Args:
        policy: Says which names share storage.
        snapshot: What is changed.
        relative: Standard deviation of the noise over the tensor's root mean square.
        seed: Of the noise.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for named in distinct_tensors(policy.model.state_dict()):
        old = snapshot.tensors[named.name]
        new = old
        if old.is_floating_point():
            wide = old.float()
            scale = relative * float(wide.square().mean().sqrt())
            new = (wide + scale * torch.randn(wide.shape, generator=generator)).to(old.dtype)
        tensors.update(dict.fromkeys((named.name, *named.tied_names), new))
    return Snapshot(snapshot.step + 1, tensors)


def _feed(policy: Policy, ids: Sequence[int], cache: Any) -> Tensor:
    """Float32 logits [T, V] of T tokens after those in the cache, to which they are added."""
    # The argument was renamed within transformers 5; both names are in the field.
    parameters = inspect.signature(policy.model.module.forward).parameters
    name = "cache" if "cache" in parameters else "past_key_values"
    inputs = {"input_ids": torch.tensor([list(ids)], device=policy.device), "use_cache": True, name: cache}
    with policy.compute():
        logits: Tensor = policy.model(**inputs).logits[0].float()
    return logits


def _scores(
    logits: Tensor, token_ids: Tensor, temperatures: Sequence[float], top_ps: Sequence[float]
) -> Scores:
    ids = token_ids[:, None]
    rows = max(1, _LOGITS_PER_PASS // max(1, logits.shape[-1]))
    found: dict[Any, list[Tensor]] = {}

    def add(key: Any, column: Tensor) -> None:
        found.setdefault(key, []).append(column)

    for start in range(0, len(logits), rows):
        part, own = logits[start : start + rows].float(), ids[start : start + rows]
        log_probs = part.log_softmax(-1)
        add("log_probs", log_probs.gather(-1, own)[:, 0])
        add("entropy", -(log_probs.exp() * log_probs).nan_to_num().sum(-1))
        for temperature in temperatures:
            add(("t", temperature), (part / temperature).log_softmax(-1).gather(-1, own)[:, 0])
        if top_ps:
            # One sort for all of them: it is most of the time that a calibration takes to explain a gap.
            ordered = log_probs.exp().sort(-1, descending=True).values
            for top_p in top_ps:
                add(("p", top_p), _renormalised(log_probs, own, ordered, top_p))
    columns = {key: torch.cat(parts).double().cpu().numpy() for key, parts in found.items()}
    return Scores(
        log_probs=columns["log_probs"],
        entropy=columns["entropy"],
        tempered={temperature: columns["t", temperature] for temperature in temperatures},
        truncated={top_p: columns["p", top_p] for top_p in top_ps},
    )


def _renormalised(log_probs: Tensor, token_ids: Tensor, ordered: Tensor, top_p: float) -> Tensor:
    """Log-probability over the smallest set of most probable tokens with at least that mass.

    Args:
        log_probs: Of every token [T, V].
        token_ids: Whose are wanted [T, 1].
        ordered: Probabilities, the largest first [T, V].
        top_p: The mass.
    """
    before = ordered.cumsum(-1) - ordered
    mass = torch.where(before < top_p, ordered, 0.0).sum(-1)
    own = log_probs.gather(-1, token_ids)[:, 0]
    smallest = torch.where(before < top_p, ordered, math.inf).amin(-1)
    return torch.where(own.exp() >= smallest, own - mass.log(), -math.inf)


def _joined(parts: Any) -> Floats:
    arrays = list(parts)
    return np.concatenate(arrays) if arrays else np.zeros(0)
