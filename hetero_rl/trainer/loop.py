"""The training loop.

    main thread (torch)          batch thread              publishing thread         evaluation thread
    ───────────────────          ────────────              ─────────────────         ─────────────────
    take batch of step s   ◄──── prompts, take, grade
    start(s + 1)           ────► prompts, take, grade
    optimizer step s                   │
    commit s to the hub                │
    compare, publish       ───────────────────────────────► probe card, encode,
    request evaluation     ──────────────│────────────────── upload, publish ────────► enqueue, take, grade
    write metrics          ◄─────────────│───────────────────────│──────────────────── result, when it is there
    checkpoint when due                  │                       │
    take batch of step s+1 ◄─────────────┘                       │
    publish(s + 1) waits for ────────────────────────────────────┘

Who waits for whom: the main thread waits for the batch, and for the version before when it hands over the next one. A
batch waits for workers, which wait for weights no newer than the staleness gate asks for, so nothing waits in a circle.
Each queue holds one item.

Shutdown: a request to stop, or an error in any thread, ends the loop between two steps or while it waits; the step under
way on the device is finished first. `Session.close` then ends the threads, whose waits the stop signal cuts short.

The order at a step is fixed: optimizer step, commit, publish, checkpoint, commit of the checkpoint. The hub hands the
batches after the last durable checkpoint out again, under the same steps, to a run that continues.
"""

import dataclasses
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from hetero_rl.config.tree import Config
from hetero_rl.errors import NonFiniteError
from hetero_rl.estimators import RecordedBatch
from hetero_rl.telemetry.tracing import group_spans
from hetero_rl.trainer.archive import VersionArchive, split_log_ratio
from hetero_rl.trainer.batch import TrainingBatch
from hetero_rl.trainer.evaluation import EvaluationResult, Evaluator
from hetero_rl.trainer.incidents import save_incident
from hetero_rl.trainer.keeper import CheckpointKeeper
from hetero_rl.trainer.metrics import batch_metrics, result_metrics, sequence_outcomes
from hetero_rl.trainer.patience import InterruptedRunError, Patience, StopSignal
from hetero_rl.trainer.prefetch import BatchSource
from hetero_rl.trainer.publish import Publisher
from hetero_rl.trainer.sinks import MetricsRecord, Sink
from hetero_rl.trainer.state import ConsumedGroups
from hetero_rl.trainer.step import Learner, StepResult, record
from hetero_rl.trainer.waits import WaitClock
from hetero_rl.wire.ports import TrainingPort

__all__ = ["TrainingLoop"]

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True, kw_only=True)
class TrainingLoop:
    """The parts of a run and the loop over its steps."""

    config: Config
    port: TrainingPort
    learner: Learner
    batches: BatchSource
    publisher: Publisher
    evaluator: Evaluator
    archive: VersionArchive
    checkpoints: CheckpointKeeper
    consumed: ConsumedGroups
    sinks: Sequence[Sink]
    clock: WaitClock
    patience: Patience
    stop: StopSignal
    step: int
    """Optimizer steps in the weights."""
    evaluations: list[EvaluationResult] = dataclasses.field(default_factory=list)
    completion_tokens: int = 0
    _recorded_at: float = dataclasses.field(default_factory=time.monotonic)

    def run(self) -> None:
        """Makes the remaining steps; raises InterruptedRunError when the run is to stop before that."""
        total = self.config.run.steps
        if self.step < total:
            self.batches.start(self.step + 1)
        if self.step == 0:
            self._evaluate_before_training()
        while self.step < total:
            self.stop.check()
            batch = self.batches.take()
            if batch.step < total:
                self.batches.start(batch.step + 1)
            result = self._train(batch)
            self.step = batch.step
            try:
                with group_spans("commit", batch.group_ids, step=batch.step):
                    self._commit(batch, result)
                with group_spans("publish", batch.group_ids, step=batch.step):
                    self._publish()
            finally:
                # The step is applied: its line is written also when a request to stop cuts a wait short.
                self._record(batch, result)
            self._checkpoint()
        self.stop.check()
        with self.clock.waiting("publish"):
            self.publisher.wait()

    def _evaluate_before_training(self) -> None:
        self.publisher.wait()
        self.evaluator.request(0, self.publisher.stored)
        self.evaluations += self.evaluator.wait()
        self._write(0, _evaluation_metrics(self.evaluations[-1:]))
        self.clock.take()
        self._recorded_at = time.monotonic()

    def _train(self, batch: TrainingBatch) -> StepResult | None:
        """The optimizer step; None when every sequence was dropped and there is nothing to learn from."""
        if not batch.sequences:
            _LOG.warning("step %d: all of its %d sequences were dropped", batch.step, len(batch.dropped))
            return None
        old = self.archive.old_log_probs(batch)
        if old is not None:
            old = old[batch.action_mask]
        whole = old if old is not None and bool(old.isfinite().all()) else None
        recorded = record(
            batch,
            group_size=self.config.trainer.group_size,
            max_new_tokens=self.config.sampling.max_new_tokens,
            old_log_probs=whole,
        )
        try:
            with group_spans("train step", batch.group_ids, step=batch.step):
                result = self.learner.step(batch, recorded)
        except NonFiniteError as error:
            saved = save_incident(
                self.config.run.dir, batch, cause=str(error), weight_version=self.publisher.stored
            )
            raise NonFiniteError(f"{error}; nothing was applied, the batch is saved in {saved}") from error
        return result if old is None or whole is not None else _with_split(result, recorded, old)

    def _commit(self, batch: TrainingBatch, result: StepResult | None) -> None:
        self.consumed.commit(batch.step)
        self.completion_tokens += int(batch.lengths.sum())
        outcomes = sequence_outcomes(batch, result)
        log_probs = None
        # The column covers every token of the batch or is left out; dropped and observed tokens have no log-probability.
        if result is not None and not batch.dropped and bool(batch.action_mask.all()):
            log_probs = result.log_probs.numpy().astype("<f4").tobytes()
        self.patience(
            lambda: self.port.commit_step(batch.step, outcomes, log_probs), f"committing step {batch.step}"
        )

    def _publish(self) -> None:
        last = self.step == self.config.run.steps
        every = self.config.evaluation.every
        evaluate = last or (every > 0 and self.step % every == 0)
        if evaluate or self.step % self.config.weights.publish_every == 0:
            with self.clock.waiting("publish"):
                if self.archive.keeps:
                    snapshot = self.publisher.snapshot(self.step)
                    self.archive.keep(self.publisher.publish(snapshot), snapshot)
                else:
                    self.publisher.publish_step(self.step)
        if evaluate:
            self.evaluator.request(self.step, self.publisher.version)

    def _record(self, batch: TrainingBatch, result: StepResult | None) -> None:
        """Writes the step's metrics; an evaluation is in the line of the step in which it was finished."""
        finished = self._finished_evaluations()
        self.evaluations += finished
        values = batch_metrics(batch)
        if result is not None:
            values |= result_metrics(batch, result)
        values |= {f"wait_seconds/{cause}": seconds for cause, seconds in self.clock.take().items()}
        values["checkpoint/failures"] = float(self.checkpoints.failures)
        now = time.monotonic()
        values["step_seconds"] = now - self._recorded_at
        values["tokens_per_second/generated"] = int(batch.lengths.sum()) / values["step_seconds"]
        self._recorded_at = now
        self._write(self.step, values | _evaluation_metrics(finished))

    def _finished_evaluations(self) -> list[EvaluationResult]:
        """Evaluations for the line of this step; after the last step all of them."""
        try:
            with self.clock.waiting("evaluation"):
                last = self.step == self.config.run.steps
                return self.evaluator.wait() if last else self.evaluator.collect()
        except InterruptedRunError:
            return []  # the loop ends at its next check; the step's own line comes first

    def _write(self, step: int, values: dict[str, float]) -> None:
        values |= {"weight_version": float(self.publisher.version), "time": time.time()}
        for sink in self.sinks:
            try:
                sink.write(MetricsRecord(step, values))
            except OSError as error:
                # A full disk must not end a run whose checkpoints are still whole.
                _LOG.warning(
                    "metrics of step %d were not written by %s: %s", step, type(sink).__name__, error
                )

    def _checkpoint(self) -> None:
        due = self.step % self.config.checkpoint.every == 0 or self.step == self.config.run.steps
        if due:
            with self.clock.waiting("checkpoint"):
                self.checkpoints.save(self.step, required=self.step == self.config.run.steps)

    def drain(self) -> Path | None:
        """Makes the steps done so far durable after an interruption; returns the newest checkpoint."""
        if self.step > self.checkpoints.newest_step:
            self.checkpoints.save(self.step, required=True)
        return self.checkpoints.newest

    def close(self) -> None:
        """Ends every thread of the run; safe after an error in any of them."""
        self.stop.close()
        self.batches.close()
        self.evaluator.close()
        self.publisher.close()


def _with_split(result: StepResult, recorded: RecordedBatch, old_log_probs: Tensor) -> StepResult:
    """Adds the parts of log W where pi_old is known of some sequences only, which no estimator reads."""
    staleness, chip = split_log_ratio(
        result.log_probs, old_log_probs, recorded.behavior_log_probs, recorded.lengths
    )
    coefficients = dataclasses.replace(
        result.coefficients, staleness_log_ratio=staleness, chip_log_ratio=chip
    )
    return dataclasses.replace(result, coefficients=coefficients)


def _evaluation_metrics(results: Sequence[EvaluationResult]) -> dict[str, float]:
    """The newest result: accuracy, and the step and version that it belongs to."""
    if not results:
        return {}
    newest = results[-1]
    return {
        "eval/accuracy": newest.accuracy,
        "eval/step": float(newest.step),
        "eval/weight_version": float(newest.weight_version),
    }
