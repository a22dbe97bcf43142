"""Fetches the next batch while the device computes.

    main thread                 batch thread                                                   hub
    start(s + 1) ─────────────► feed prompts ─► take_batch_ahead(s + 1), again until it is there ──►
                                   arrivals: decode, begin to grade (grader processes) ◄── groups ahead of their batch
    take() ◄── one batch ◄───── build columns ◄─ wait for the grades ◄── the batch, in its order
    trains s meanwhile

Groups are read and graded as they are finished, so that little is left to do for the last one of a batch; what belongs to
a later batch waits here, bounded by what the hub's queue holds. One batch at most is ahead of the one that is trained. An error of
the thread is raised by `take`.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor

from hetero_rl.tasks import Grader, PromptEncoder
from hetero_rl.telemetry.tracing import record_groups
from hetero_rl.trainer.arrivals import Arrivals
from hetero_rl.trainer.batch import TrainingBatch, build_batch
from hetero_rl.trainer.patience import Patience, StopSignal
from hetero_rl.trainer.prompts import PromptFeeder
from hetero_rl.trainer.state import ConsumedGroups
from hetero_rl.trainer.waits import WaitClock
from hetero_rl.wire.ports import BatchProgress, TrainingPort

__all__ = ["BatchSource"]

POLL_SECONDS = 1.0
_SHARE_AHEAD = 8
"""A call for groups ahead is answered when one in so many of those that the batch lacks are finished."""


class BatchSource:
    """Batches of the steps in order, one ahead.

    Args:
        port: The hub.
        feeder: Keeps prompts queued.
        grader: Scores completions.
        encoder: Turns completion ids into text.
        groups_per_step: Groups of a batch.
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
        groups_per_step: int,
        consumed: ConsumedGroups,
        max_lag: int,
        vocabulary_size: int,
        patience: Patience,
        stop: StopSignal,
        clock: WaitClock,
    ) -> None:
        self._port = port
        self._feeder = feeder
        self._arrivals = Arrivals(grader, encoder)
        self._groups_per_step = groups_per_step
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
        group_ids = self._wait_for(step)
        # Grading ahead of a batch holds up nobody; from here on the batch waits for it alone.
        with self._clock.busy("grading"):
            groups, rewards = self._arrivals.take(group_ids)
        self._consumed.claim(step, [group.group.ordinal for group in groups])
        return build_batch(
            step, groups, rewards, max_lag=self._max_lag, vocabulary_size=self._vocabulary_size
        )

    def _wait_for(self, step: int) -> tuple[str, ...]:
        """Names of the groups of a step, all of them arrived."""
        started = time.monotonic()
        while True:
            self._stop.check()
            self._feeder.feed(step)
            progress = self._patience(lambda: self._ask(step), f"waiting for the batch of step {step}")
            if progress.group_ids is not None:
                with self._clock.busy("grading"):
                    self._arrivals.accept(progress.groups)
                waited = time.monotonic() - started
                record_groups("take", progress.group_ids, waited, step=step)
                return progress.group_ids
            self._arrivals.accept(progress.groups)

    def _ask(self, step: int) -> BatchProgress:
        held = self._arrivals.held
        lacking = abs(self._groups_per_step - len(held))
        # Few answers while much is missing, and every group by itself towards the end.
        return self._port.take_batch_ahead(
            step, POLL_SECONDS, held=held, at_least=max(1, lacking // _SHARE_AHEAD)
        )
