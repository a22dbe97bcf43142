"""Finished groups that have arrived ahead of their batch, with their rewards under way.

    batch thread: accept ── decode ── Grader.submit ──► grader processes
                  take(batch) ◄── groups and rewards, in the order of the batch ◄──┘

A group is final once it is finished, so it can be graded before it is known which step will train it. Only the batch
thread calls; the grader's threads hold what is under way.
"""

from collections.abc import Collection, Sequence

from hetero_rl.tasks import Grader, GradeRequest, PendingGrades, PromptEncoder
from hetero_rl.trainer.batch import completions_of
from hetero_rl.wire.messages import FinishedGroup

__all__ = ["Arrivals"]


class Arrivals:
    """Groups by name, until a batch takes them.

    Args:
        grader: Scores completions.
        encoder: Turns completion ids into text.
    """

    def __init__(self, grader: Grader, encoder: PromptEncoder) -> None:
        self._grader = grader
        self._encoder = encoder
        self._groups: dict[str, tuple[FinishedGroup, PendingGrades]] = {}

    @property
    def held(self) -> Collection[str]:
        """Names of the groups that are here."""
        return self._groups.keys()

    def accept(self, groups: Sequence[FinishedGroup]) -> None:
        """Begins to grade groups; one that is here already stays as it is."""
        for group in groups:
            if group.group.group_id in self._groups:
                continue
            requests = [
                GradeRequest(payload=group.group.payload, completion=self._encoder.decode(ids))
                for ids in completions_of(group)
            ]
            self._groups[group.group.group_id] = group, self._grader.submit(requests)

    def take(self, group_ids: Sequence[str]) -> tuple[list[FinishedGroup], list[list[float]]]:
        """The groups of a batch and the rewards of their completions by sample index; waits for the graders."""
        taken = [self._groups[group_id] for group_id in group_ids]
        for group_id in group_ids:
            self._groups.pop(group_id, None)
        rewards = [[grade.reward for grade in pending.result()] for _, pending in taken]
        return [group for group, _ in taken], rewards
