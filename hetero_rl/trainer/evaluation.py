"""Held-out evaluation by the workers that serve the policy, without stalling training.

    main thread                        evaluation thread                       hub
    request(step, version) ──────────► enqueue groups pinned to the version ──►
    collect() ◄── finished results ◄── grade ◄── take_evaluation ◄─────────────
    wait()  blocks until all requests are measured: before step 1 and after the last step

A group is pinned to a lowest version, so workers may sample it with a newer one if they move on meanwhile; before the
first step and after the last one there is none.
"""

import dataclasses
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from hetero_rl.tasks import Grader, GradeRequest, PromptEncoder
from hetero_rl.telemetry.tracing import group_spans
from hetero_rl.trainer.batch import completions_of
from hetero_rl.trainer.patience import Patience, StopSignal
from hetero_rl.trainer.prompts import GROUPS_PER_CALL, PromptMaker
from hetero_rl.wire.messages import FinishedGroup, PromptGroup
from hetero_rl.wire.ports import TrainingPort

__all__ = ["EvaluationResult", "Evaluator"]

POLL_SECONDS = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Held-out accuracy of the policy after `step` optimizer steps."""

    step: int
    weight_version: int
    accuracy: float
    """Share of the held-out prompts whose completion earned the full reward."""
    prompts: int


class Evaluator:
    """Measures held-out accuracy in a thread of its own.

    Args:
        maker: Makes the evaluation groups.
        port: The hub.
        grader: Scores completions.
        encoder: Turns completion ids into text.
        patience: Repeats calls.
        stop: Ends waiting.
    """

    def __init__(
        self,
        maker: PromptMaker,
        port: TrainingPort,
        grader: Grader,
        encoder: PromptEncoder,
        patience: Patience,
        stop: StopSignal,
    ) -> None:
        self._maker = maker
        self._port = port
        self._grader = grader
        self._encoder = encoder
        self._patience = patience
        self._stop = stop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="evaluation")
        self._requests: list[Future[EvaluationResult]] = []

    def request(self, step: int, weight_version: int) -> None:
        """Asks for the accuracy of a version that is published or about to be."""
        self._requests.append(self._thread.submit(self._measure, step, weight_version))

    def collect(self) -> list[EvaluationResult]:
        """Results that are ready, oldest first; raises what went wrong with one."""
        finished = []
        while self._requests and self._requests[0].done():
            finished.append(self._requests.pop(0).result())
        return finished

    def wait(self) -> list[EvaluationResult]:
        """Waits for every request; raises InterruptedRunError when the run is to stop."""
        results = [request.result() for request in self._requests]
        self._requests.clear()
        return results

    def close(self) -> None:
        """Ends the thread; the run's stop signal must be closed."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _enqueue(self, groups: Sequence[PromptGroup]) -> None:
        with group_spans("enqueue", [group.group_id for group in groups]):
            self._patience(lambda: self._port.enqueue_groups(groups), "enqueueing evaluation prompts")

    def _measure(self, step: int, weight_version: int) -> EvaluationResult:
        groups = self._maker.evaluation_groups(weight_version)
        for start in range(0, len(groups), GROUPS_PER_CALL):
            part = groups[start : start + GROUPS_PER_CALL]
            self._enqueue(part)
        names = [group.group_id for group in groups]
        finished = self._take(names)
        requests = [
            GradeRequest(payload=group.group.payload, completion=self._encoder.decode(completion))
            for group in finished
            for completion in completions_of(group)
        ]
        grades = self._grader.grade(requests)
        correct = sum(grade.correct for grade in grades)
        return EvaluationResult(step, weight_version, correct / len(grades), len(grades))

    def _take(self, names: list[str]) -> tuple[FinishedGroup, ...]:
        while True:
            self._stop.check()
            finished = self._patience(
                lambda: self._port.take_evaluation(names, POLL_SECONDS), "waiting for evaluation"
            )
            if finished is not None:
                return finished
