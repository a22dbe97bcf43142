"""Fetches the next batch while the device computes.

    main thread                 batch thread                                          hub
    start(s + 1) ─────────────► feed prompts ─► take_batch(s + 1), again until it is ──►
    take() ◄── one batch ◄───── build columns ◄─ grade (grader processes) ◄─────────────
    trains s meanwhile

One batch at most is ahead of the one that is trained. An error of the thread is raised by `take`.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from hetero_rl.tasks import Grader, GradeRequest, PromptEncoder
from hetero_rl.telemetry.tracing import record_groups
from hetero_rl.trainer.batch import TrainingBatch, build_batch, completions_of
from hetero_rl.trainer.patience import Patience, StopSignal
from hetero_rl.trainer.prompts import PromptFeeder
from hetero_rl.trainer.state import ConsumedGroups
from hetero_rl.trainer.waits import WaitClock
from hetero_rl.wire.messages import FinishedGroup
from hetero_rl.wire.ports import TrainingPort

__all__ = ["BatchSource"]

POLL_SECONDS = 1.0


class BatchSource:
    """Batches of the steps in order, one ahead.

    Args:
        port: The hub.
        feeder: Keeps prompts queued.
        grader: Scores completions.
        encoder: Turns completion ids into text.
        consumed: The watermark; refuses a group that was trained before.
        max_lag: Largest lag that is trained.
        vocabulary_size: Ids must be below it.
        patience: Repeats calls.
        stop: Ends waiting.
        clock: Learns when grading is under way, and how long `take` waited.
    """

    def __init__(
        self,
        port: TrainingPort,
        feeder: PromptFeeder,
        grader: Grader,
        encoder: PromptEncoder,
        *,
        consumed: ConsumedGroups,
        max_lag: int,
        vocabulary_size: int,
        patience: Patience,
        stop: StopSignal,
        clock: WaitClock,
    ) -> None:
        self._port = port
        self._feeder = feeder
        self._grader = grader
        self._encoder = encoder
        self._consumed = consumed
        self._max_lag = max_lag
        self._vocabulary_size = vocabulary_size
        self._patience = patience
        self._stop = stop
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._next: Future[TrainingBatch] | None = None

    def start(self, step: int) -> None:
        """Begins to fetch the batch of optimizer step `step`, from 1."""
        self._next = self._thread.submit(self._fetch, step)

    def take(self) -> TrainingBatch:
        """Waits for the batch that was started; raises InterruptedRunError when the run is to stop."""
        if self._next is None:
            raise ValueError("take() without start(): no batch is being fetched")
        with self._clock.waiting_for_batch():
            batch = self._next.result()
        self._next = None
        return batch

    def close(self) -> None:
        """Ends the thread; the run's stop signal must be closed."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _fetch(self, step: int) -> TrainingBatch:
        groups = self._wait_for(step)
        self._consumed.claim(step, [group.group.ordinal for group in groups])
        with self._clock.busy("grading"):
            rewards = self._grade(groups)
        return build_batch(
            step, groups, rewards, max_lag=self._max_lag, vocabulary_size=self._vocabulary_size
        )

    def _wait_for(self, step: int) -> tuple[FinishedGroup, ...]:
        started = time.monotonic()
        while True:
            self._stop.check()
            self._feeder.feed(step)
            groups = self._patience(
                lambda: self._port.take_batch(step, POLL_SECONDS), f"waiting for the batch of step {step}"
            )
            if groups is not None:
                waited = time.monotonic() - started
                record_groups("take", [group.group.group_id for group in groups], waited, step=step)
                return groups

    def _grade(self, groups: Sequence[FinishedGroup]) -> list[list[float]]:
        completions = [completions_of(group) for group in groups]
        requests = [
            GradeRequest(payload=group.group.payload, completion=self._encoder.decode(ids))
            for group, members in zip(groups, completions, strict=True)
            for ids in members
        ]
        rewards = iter([grade.reward for grade in self._grader.grade(requests)])
        return [[next(rewards) for _ in members] for members in completions]
