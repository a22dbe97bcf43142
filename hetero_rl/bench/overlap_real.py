"""A run of hub, worker and trainer in processes of their own, and how near its wall time is to the larger of both works.

    trainer: metrics.jsonl, a line for each step ─────────────► seconds of steps without waits
    worker:  busy seconds, with every heartbeat ─► hub ─► us ─► seconds that the engine computed
                                                                wall / max(both), from line to line

The quickstart's task with max_lag = 2, one thread for each side, no evaluation or checkpoint before the end. Both
sides are measured in this very run, so what one takes from the other by sharing a machine counts as work and not as waiting.

Two sizes. `LARGER` computes two seconds a step, generation and training about equally long, which is the hard case: the
longer of the two never has to wait for the other when one is much shorter. `QUICKSTART` computes half a second for twice as
many groups, so that what hub, graders and conversions take for each of them weighs as it never does with a model of use.
"""

import dataclasses
import json
import subprocess  # ruff: ignore[suspicious-subprocess-import] - runs our own command
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetero_rl.config import load_config
from hetero_rl.errors import LaunchError, UnreachableError
from hetero_rl.launch.hub_access import connect_fleet, hub_of
from hetero_rl.launch.rundir import RunDirectory
from hetero_rl.wire.ports import FleetPort

__all__ = ["LARGER", "QUICKSTART", "RealRun", "RealShape", "overlap_of", "run_for_real"]

WARM_UP = 5
"""Steps before measuring begins: the gate fills, and codecs are compiled."""
_SETTINGS = """
[run]
name = "overlap"
[model]
path = "starter"
[model.starter]
hidden_size = {hidden_size}
num_layers = {num_layers}
num_heads = {num_heads}
intermediate_size = {intermediate_size}
supervised_steps = {supervised_steps}
target_loss = 0.12
supervised_batch_size = 64
learning_rate = 3e-3
[task]
name = "reasoning-gym"
dataset = "spiral_matrix"
max_prompt_tokens = {max_prompt_tokens}
[task.options]
min_n = {matrix_size}
max_n = {matrix_size}
[sampling]
max_new_tokens = {max_new_tokens}
[evaluation]
every = 0
prompts = 16
[staleness]
max_lag = 2
[estimator]
name = "vespo"
[optimizer]
learning_rate = 4e-4
[trainer]
groups_per_step = {groups_per_step}
group_size = 8
threads = 1
[checkpoint]
every = 1000000
[hub]
heartbeat_seconds = 0.25
missed_heartbeats = 200
[inference.worker]
max_concurrent_sequences = {max_concurrent_sequences}
ask_ahead = true
threads = 1
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RealShape:
    """Sizes of a run, as the settings name them."""

    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    supervised_steps: int
    max_prompt_tokens: int
    matrix_size: int
    max_new_tokens: int
    groups_per_step: int
    max_concurrent_sequences: int


QUICKSTART = RealShape(
    hidden_size=64,
    num_layers=2,
    num_heads=2,
    intermediate_size=256,
    supervised_steps=200,
    max_prompt_tokens=32,
    matrix_size=2,
    max_new_tokens=10,
    groups_per_step=64,
    max_concurrent_sequences=128,
)
LARGER = RealShape(
    hidden_size=256,
    num_layers=4,
    num_heads=4,
    intermediate_size=1024,
    supervised_steps=60,
    max_prompt_tokens=64,
    matrix_size=3,
    max_new_tokens=20,
    groups_per_step=32,
    max_concurrent_sequences=32,
)


@dataclasses.dataclass(frozen=True, slots=True)
class RealRun:
    """What a run took, between two of its steps."""

    wall: float
    """Seconds."""
    training: float
    """Seconds in which the trainer did not wait."""
    generation: float
    """Seconds in which the engine computed."""
    waits: dict[str, float]
    """Seconds that the trainer waited, by cause."""

    @property
    def over_bound(self) -> float:
        """Wall time over the larger of both works."""
        return self.wall / max(self.training, self.generation)


def overlap_of(records: Sequence[dict[str, Any]], busy: Sequence[tuple[float, float]]) -> RealRun:
    """From lines of metrics and readings of the engine's busy seconds.

    Args:
        records: One for each step, in order; the first gives the beginning.
        busy: Unix time and busy seconds, in order of time, the same clock as the records' `time`.
    """
    first, last = records[0]["time"], records[-1]["time"]
    waits: dict[str, float] = {}
    for record in records[1:]:
        for name, value in record.items():
            if name.startswith("wait_seconds/"):
                cause = name.removeprefix("wait_seconds/")
                waits[cause] = waits.get(cause, 0.0) + value
    wall = last - first
    generation = _reading(busy, last) - _reading(busy, first)
    return RealRun(wall, wall - sum(waits.values()), generation, waits)


def _reading(busy: Sequence[tuple[float, float]], when: float) -> float:
    """Busy seconds at a time, between readings on the straight line."""
    before = [entry for entry in busy if entry[0] <= when] or [busy[0]]
    after = [entry for entry in busy if entry[0] > when] or [busy[-1]]
    (start, low), (end, high) = before[-1], after[0]
    return low if end <= start else low + (high - low) * (when - start) / (end - start)


def run_for_real(directory: Path, shape: RealShape, steps: int) -> RealRun:
    """Trains `steps` steps, more than `WARM_UP`; raises LaunchError with the end of its output when it fails."""
    directory.mkdir(parents=True, exist_ok=True)
    settings, run = directory / "overlap.toml", RunDirectory(directory / "run")
    settings.write_text(_SETTINGS.format(**dataclasses.asdict(shape)), encoding="utf-8")
    overrides = ("--set", f"run.dir={str(run.root)!r}", "--set", f"run.steps={steps}")
    command = [sys.executable, "-m", "hetero_rl.cli.main", "train", str(settings), *overrides]
    with (directory / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            busy = _watch(process, run)
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()
    if process.returncode:
        raise LaunchError(
            f"the measured run ended with status {process.returncode}:"
            f" {(directory / 'output.txt').read_text(encoding='utf-8', errors='replace')[-2000:]}"
        )
    lines = run.metrics.read_text(encoding="utf-8").splitlines()
    records = [record for line in lines if (record := json.loads(line))["step"] >= WARM_UP]
    # The last step is followed by its evaluation and checkpoint.
    return overlap_of(records[:-1], busy)


def _watch(process: "subprocess.Popen[bytes]", run: RunDirectory) -> list[tuple[float, float]]:
    """Readings of the workers' busy seconds while the process lives."""
    readings: list[tuple[float, float]] = []
    while process.poll() is None:
        try:
            address = hub_of(run)
            with connect_fleet(address, load_config([run.config])) as fleet:
                _read(process, fleet, readings)
        except (UnreachableError, OSError):
            time.sleep(0.2)  # the hub is not up yet, or not any more
    if not readings:
        raise LaunchError("the measured run ended before its hub told of a worker")
    return readings


def _read(process: "subprocess.Popen[bytes]", fleet: FleetPort, readings: list[tuple[float, float]]) -> None:
    while process.poll() is None:
        workers = fleet.list_workers(include_gone=True)
        readings.append((time.time(), sum(worker.busy_seconds for worker in workers)))
        time.sleep(0.2)
