"""A schedule of simulated work, and a hub with workers that follow it.

    slots (threads)                                      training loop
    wait for the gate ─► sleep ─► finished  ───────────► take_batch_ahead, by the hub's own rule
            ▲                                                  │
            └────────────── publish_version opens the gate ◄───┘

`close` ends every wait; a slot that sleeps wakes by itself.
"""

import dataclasses
import functools
import threading
import time
from collections.abc import Collection, Iterable, Iterator

import numpy as np
import torch

from hetero_rl.bench.overlap_gate import least_wall, taken_groups
from hetero_rl.wire.columns import float32_column, int32_column
from hetero_rl.wire.messages import (
    FinishedGroup,
    FinishReason,
    PromptGroup,
    SamplingParameters,
    TrajectoryBatch,
    VersionSpan,
    WeightManifest,
)
from hetero_rl.wire.ports import BatchProgress

__all__ = ["ONE_WAVE", "Schedule", "SimulatedHub"]


@dataclasses.dataclass(frozen=True, slots=True)
class Schedule:
    """Simulated work."""

    steps: int = 80
    groups_per_step: int = 32
    slots: int = 8
    step_seconds: float = 0.6
    sigma: float = 0.5
    max_lag: int = 2

    def group_seconds(self) -> list[float]:
        """Seconds of each group; together they keep the slots busy as long as the steps take."""
        generator = torch.Generator().manual_seed(0)
        raw = (self.sigma * torch.randn(self.steps * self.groups_per_step, generator=generator)).exp()
        total = self.steps * self.step_seconds * self.slots
        scaled: list[float] = (raw / raw.sum() * total).tolist()
        return scaled

    @property
    def bound(self) -> float:
        """Seconds of generation on all slots, or of all steps, whichever is more."""
        return max(sum(self.group_seconds()) / self.slots, self.steps * self.step_seconds)

    @property
    def least_wall(self) -> float:
        """Seconds that the staleness gate allows at best."""
        return least_wall(
            self.group_seconds(),
            slots=self.slots,
            groups_per_step=self.groups_per_step,
            step_seconds=self.step_seconds,
            max_lag=self.max_lag,
        )


ONE_WAVE = Schedule(groups_per_step=8, step_seconds=0.2)
"""A step has as many groups as there are slots."""


class SimulatedHub:
    """A hub and its workers: groups are started in order by slots that wait for the gate, and taken by the hub's own rule."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._seconds = schedule.group_seconds()
        self._changed = threading.Condition()
        self._published: dict[int, int] = {}
        self._next = 0
        self._versions: dict[int, int] = {}
        """The version that made each finished group."""
        self._started: dict[int, int] = {}
        """Steps in the weights that each group began with."""
        self._taken: set[int] = set()
        self._closed = False
        self._threads = [threading.Thread(target=self._generate) for _ in range(schedule.slots)]

    def start(self) -> None:
        """Starts the slots."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ends the slots."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def take_batch_ahead(
        self, step: int, wait: float, *, held: Collection[str], at_least: int
    ) -> BatchProgress:
        """The groups of a step, as the real hub chooses them, or finished ones ahead of their step."""
        with self._changed:
            self._changed.wait_for(lambda: self._may_answer(step, held, at_least), wait)
            batch = self._batch_of(step)
            if batch is not None:
                self._taken.update(batch)
                names = tuple(map(_name, batch))
                return BatchProgress(names, self._read(i for i in batch if _name(i) not in held))
            return BatchProgress(None, self._read(self._waiting(held)))

    def _may_answer(self, step: int, held: Collection[str], at_least: int) -> bool:
        return len(self._waiting(held)) >= at_least or self._batch_of(step) is not None

    def _waiting(self, held: Collection[str]) -> list[int]:
        finished = sorted(self._versions.keys() - self._taken)
        return [index for index in finished if _name(index) not in held]

    def _read(self, groups: Iterable[int]) -> tuple[FinishedGroup, ...]:
        return tuple(_group(index, self._versions[index], self._published) for index in groups)

    def _batch_of(self, step: int) -> tuple[int, ...] | None:
        size, max_lag = self._schedule.groups_per_step, self._schedule.max_lag
        return taken_groups(step, size, max_lag, self._started, set(self._versions), self._taken)

    def publish_version(self, manifest: WeightManifest) -> None:
        """Opens the gate for groups that a newer step is good enough for."""
        with self._changed:
            self._published[manifest.version] = manifest.step
            self._changed.notify_all()

    def put_blob(self, blob: object, chunks: Iterator[bytes]) -> None:
        """Reads a blob and forgets it."""
        del blob
        for _ in chunks:
            pass

    def commit_step(self, step: int, outcomes: object, log_probs: bytes | None = None) -> None:
        """Needs no answer."""

    def _may_start(self, due: int) -> bool:
        return self._closed or max(self._published.values(), default=due - 1) >= due

    def _generate(self) -> None:
        while True:
            with self._changed:
                index = self._next
                self._next += 1
                if index >= len(self._seconds):
                    return
                due = index // self._schedule.groups_per_step - self._schedule.max_lag
                self._changed.wait_for(functools.partial(self._may_start, due))
                if self._closed:
                    return
                version = max(self._published)
                self._started[index] = self._published[version]
            time.sleep(self._seconds[index])
            with self._changed:
                self._versions[index] = version
                self._changed.notify_all()


def _name(index: int) -> str:
    return f"train-{index:08d}"


def _group(index: int, version: int, steps: dict[int, int]) -> FinishedGroup:
    batch = TrajectoryBatch(
        group_id=_name(index),
        sample_indices=(0,),
        lengths=(2,),
        token_ids=int32_column([3, 4]),
        log_probs=float32_column([-1.0, -1.0]),
        version_spans=(VersionSpan(0, 0, 2, version),),
        finish_reasons=(FinishReason.STOP,),
        numerics_id="0" * 16,
        generation_seconds=0.1,
    )
    group = PromptGroup(
        group_id=batch.group_id,
        ordinal=index,
        prompt_token_ids=int32_column(np.array([5, 6]).tolist()),
        group_size=1,
        sampling=SamplingParameters(max_new_tokens=2, stop_token_ids=(0,)),
    )
    return FinishedGroup(
        group=group,
        batches=(batch,),
        version_steps=dict(steps),
        worker_names=("worker-0",),
        backends=("cpu",),
    )
