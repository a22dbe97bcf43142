"""`hetero-rl bench overlap`: how near a run's wall time comes to the larger of generation work and training work.

    generating threads            batch thread          main thread            publishing thread
    wait for the gate, sleep ───► take, grade ───► training loop: sleep ───► encode, "upload", opens the gate

The loop, its batches, its publishing and its clock are the real ones; a model of a few parameters is really published. What
is simulated is work: generation of a group and the optimizer step sleep for their time. Group times are log-normal (sigma 0.5)
on 8 slots, max_lag is 2, generation work and training work are equal. Time counts from when version 1 is stored. The first
batch cannot overlap with anything and counts: the bound is the larger of both sums alone.

Two schedules. In the first a step has 32 groups, four for each slot, so a group takes a quarter of a step. In the second it
has 8, one for each slot, so a group takes a step and one in twenty more than the two that max_lag grants: what is
left to gain there is told by the least that the gate allows (`overlap_gate`). Then come real runs of two sizes (`overlap_real`).
"""

import dataclasses
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import torch

from hetero_rl.bench.overlap_hub import ONE_WAVE, Schedule, SimulatedHub
from hetero_rl.bench.overlap_real import LARGER, QUICKSTART, RealRun, run_for_real
from hetero_rl.bench.schema import BenchReport, Figure
from hetero_rl.bench.trainer import Shapes, save_model
from hetero_rl.config.tree import Config, WeightsConfig
from hetero_rl.tasks import Grade, PendingGrades
from hetero_rl.trainer.loop import TrainingLoop
from hetero_rl.trainer.patience import Patience, StopSignal
from hetero_rl.trainer.policy import load_policy
from hetero_rl.trainer.prefetch import BatchSource
from hetero_rl.trainer.publish import Publisher
from hetero_rl.trainer.state import ConsumedGroups
from hetero_rl.trainer.waits import WaitClock

__all__ = ["run", "simulate"]

_BOUND = "max(sum of generation times / slots, sum of step times), max_lag = 2, log-normal group times"
_GATE = "the same schedule by discrete events: what the staleness gate allows when nothing else takes time"
_REAL = "max(engine busy, trainer not waiting) of a run of hub, worker and trainer with max_lag = 2, one core each"
_SHAPES = Shapes(16, 32, 1, 2, 1, 32, 4, (2,))


class _Idle:
    """Parts of a loop that have nothing to do here."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.failures = 0
        self.keeps = False

    def step(self, *_: object) -> None:
        time.sleep(self._schedule.step_seconds)

    def feed(self, step: int) -> None:
        del step

    def submit(self, requests: Sequence[object]) -> PendingGrades:
        grades: Future[list[Grade]] = Future()
        grades.set_result([Grade(1.0) for _ in requests])
        return PendingGrades((grades,))

    def decode(self, ids: object) -> str:
        return str(ids)

    def keep(self, *_: object) -> None:
        pass

    def old_log_probs(self, _: object) -> None:
        pass

    def request(self, *_: object) -> None:
        pass

    def collect(self) -> list[Any]:
        return []

    def wait(self) -> list[Any]:
        return []

    def save(self, *_: object, **__: object) -> None:
        pass

    def close(self) -> None:
        pass


def simulate(schedule: Schedule) -> tuple[float, dict[str, float]]:
    """Wall time over the bound, and shares of the wall time that the main thread waited, by cause."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        save_model(_SHAPES, directory / "model")
        hub, waits = SimulatedHub(schedule), _Waits()
        loop = _loop(schedule, hub, directory, waits)
        hub.start()
        try:
            loop.publisher.publish(loop.publisher.snapshot(0))
            loop.publisher.wait()
            started = time.monotonic()
            loop.run()
            wall = time.monotonic() - started
        finally:
            loop.close()
            hub.close()
    return wall / schedule.bound, {cause: seconds / wall for cause, seconds in waits.total.items()}


class _Waits:
    """A sink that adds up waiting times."""

    def __init__(self) -> None:
        self.total: dict[str, float] = {}

    def write(self, record: Any) -> None:
        for name, value in record.values.items():
            kind, _, cause = name.partition("/")
            if kind == "wait_seconds":
                self.total[cause] = self.total.get(cause, 0.0) + value


def _loop(schedule: Schedule, hub: SimulatedHub, directory: Path, waits: _Waits) -> TrainingLoop:
    stop, clock, idle = StopSignal(threading.Event()), WaitClock(), cast("Any", _Idle(schedule))
    port, patience, consumed = cast("Any", hub), Patience(stop), ConsumedGroups()
    policy = load_policy(directory / "model", device=torch.device("cpu"), compute_dtype=torch.float32)
    config = Config.model_validate(
        {
            "run": {"steps": schedule.steps, "dir": directory / "run"},
            "trainer": {"groups_per_step": schedule.groups_per_step, "group_size": 1},
            "evaluation": {"every": 0},
            "staleness": {"max_lag": schedule.max_lag},
        }
    )
    batches = BatchSource(
        port,
        idle,
        idle,
        idle,
        groups_per_step=schedule.groups_per_step,
        consumed=consumed,
        max_lag=schedule.max_lag,
        vocabulary_size=_SHAPES.vocabulary,
        patience=patience,
        stop=stop,
        clock=clock,
    )
    publisher = Publisher(
        policy,
        port,
        WeightsConfig(anchor_every=1),
        probes=[],
        latest_version=0,
        directory=directory / "outgoing",
        patience=patience,
        clock=clock,
    )
    return TrainingLoop(
        config=config,
        port=port,
        learner=idle,
        batches=batches,
        publisher=publisher,
        evaluator=idle,
        archive=idle,
        checkpoints=idle,
        consumed=consumed,
        sinks=[cast("Any", waits)],
        clock=clock,
        patience=patience,
        stop=stop,
        step=0,
    )


def run(*, quick: bool = False) -> BenchReport:
    """Measures the simulated schedules and a real run.

    Args:
        quick: A few steps; the figures prove nothing.
    """
    schedule, one_wave = Schedule(), ONE_WAVE
    if quick:
        schedule, one_wave = (
            dataclasses.replace(each, steps=6, step_seconds=0.05) for each in (schedule, one_wave)
        )
    found = [simulate(schedule) for _ in range(1 if quick else 3)]
    ratios = sorted(ratio for ratio, _ in found)
    over_gate = [ratio * schedule.bound / schedule.least_wall for ratio in ratios]
    single = simulate(one_wave)[0]
    with tempfile.TemporaryDirectory() as name:
        larger = run_for_real(Path(name) / "larger", LARGER, steps=8 if quick else 30)
        quickstart = run_for_real(Path(name) / "quickstart", QUICKSTART, steps=8 if quick else 50)
    waits = "waiting of the main thread in the first of the runs"
    return BenchReport(
        bench="overlap",
        figures=(
            _figure("simulated_wall_over_bound", ratios, _BOUND, target=1.05),
            _figure("simulated_wall_over_gate", over_gate, _GATE),
            _figure("one_wave_wall_over_bound", [single], _BOUND),
            _figure("one_wave_wall_over_gate", [single * one_wave.bound / one_wave.least_wall], _GATE),
            *_shares("wait_share", found[0][1], waits),
            *_real_figures("real", larger),
            *_real_figures("quickstart", quickstart),
        ),
    )


def _real_figures(name: str, run: RealRun) -> list[Figure]:
    work = {"training": run.training / run.wall, "generation": run.generation / run.wall}
    waits = {cause: seconds / run.wall for cause, seconds in run.waits.items()}
    return [
        _figure(f"{name}_wall_over_bound", [run.over_bound], _REAL, target=1.15),
        *_shares(f"{name}_share", work, "work in the real run"),
        *_shares(f"{name}_wait_share", waits, "waiting of the trainer in the real run"),
    ]


def _figure(name: str, values: Sequence[float], baseline: str, *, target: float | None = None) -> Figure:
    """The median of ascending ratios."""
    return Figure(
        name=name,
        value=values[len(values) // 2],
        unit="ratio",
        low=values[0],
        high=values[-1],
        target=target,
        relation=None if target is None else "<=",
        baseline=baseline,
    )


def _shares(prefix: str, shares: dict[str, float], baseline: str) -> list[Figure]:
    return [
        Figure(
            name=f"{prefix}/{name}",
            value=share,
            unit="share of wall time",
            low=share,
            high=share,
            baseline=baseline,
        )
        for name, share in shares.items()
    ]
