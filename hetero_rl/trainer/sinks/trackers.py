"""Weights & Biases and trackio, each behind an extra and imported when it is used.

Neither can take back what an earlier life of a run logged after its last checkpoint, so each life is a run of its own in a group:
NAME, then NAME-from-K for the one that went on from step K. In the group, a life replaces what those before it have above its K.
Nothing but the metrics is sent: no settings, no prompts, no completions.
"""

import importlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from typing_extensions import override

from hetero_rl.config.tree import Config
from hetero_rl.errors import ConfigError
from hetero_rl.trainer.sinks.base import MetricsRecord, Sink

__all__ = ["TrackedRun", "TrackerSink", "tracker_sinks"]


class TrackedRun(Protocol):
    """What both services give for a run that was opened."""

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Takes the metrics of a step."""

    def finish(self) -> None:
        """Sends what is left."""


class TrackerSink(Sink):
    """Logs to a service that tracks experiments. A value that is not finite is left out.

    Args:
        run_name: Of the run that is trained.
        open_run: Opens a run of the service by name.
    """

    def __init__(self, run_name: str, open_run: Callable[[str], TrackedRun]) -> None:
        self._run_name = run_name
        self._open_run = open_run
        self._run: TrackedRun | None = None

    @override
    def start(self, *, resume_step: int) -> None:
        name = self._run_name if resume_step < 0 else f"{self._run_name}-from-{resume_step}"
        self._run = self._open_run(name)

    @override
    def write(self, record: MetricsRecord) -> None:
        if self._run is None:
            raise ValueError(f"run {self._run_name} is written before start()")
        self._run.log(_finite(record.values), step=record.step)

    @override
    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None


def tracker_sinks(config: Config, directory: Path) -> list[Sink]:
    """The services that the settings ask for.

    Args:
        config: `observability` and the run's name count.
        directory: Where they may keep files of their own.

    Raises:
        ConfigError: A package is missing.
    """
    wanted = config.observability
    sinks: list[Sink] = []
    if wanted.wandb:
        wandb = _module("wandb")
        sinks.append(_sink(config, "wandb", lambda **names: wandb.init(dir=str(directory), **names)))
    if wanted.trackio:
        trackio = _module("trackio")
        sinks.append(_sink(config, "trackio", lambda **names: trackio.init(embed=False, **names)))
    return sinks


def _sink(config: Config, service: str, init: Callable[..., TrackedRun]) -> TrackerSink:
    group = config.run.name

    def open_run(name: str) -> TrackedRun:
        try:
            return init(project=config.observability.project, group=group, name=name)
        except Exception as error:
            raise ConfigError(
                f"observability.{service} is on, and {service} opens no run: {error}. Log in to it, or set it to false"
            ) from error

    return TrackerSink(group, open_run)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(
            f"observability.{name} is on, but the package {name} is missing: pip install 'hetero-rl[{name}]'"
        ) from None


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if math.isfinite(value)}
