"""Log-probabilities of completions under a policy, without gradients."""

from collections.abc import Sequence

from torch import Tensor

from hetero_rl.trainer.batch import TrainingBatch
from hetero_rl.trainer.layout import RowTokens, batch_rows
from hetero_rl.trainer.policy import Policy

__all__ = ["completion_log_probs", "row_log_probs"]


def row_log_probs(policy: Policy, rows: Sequence[RowTokens], temperature: float = 1.0) -> Tensor:
    """Log-probabilities of the predicted tokens of some rows, [N] float32, in their order."""
    return policy.log_probs(policy.inputs(rows), temperature)


def completion_log_probs(
    policy: Policy, batch: TrainingBatch, rows: Sequence[Sequence[int]], temperature: float = 1.0
) -> Tensor:
    """Log-probabilities of the completion tokens of some sequences of a batch.

    Args:
        policy: The model.
        batch: The batch.
        rows: Indices of the sequences of each row, which have the same prompt.
        temperature: The sampling temperature.

    Returns:
        [N] float32, the sequences in the order of the rows.
    """
    return row_log_probs(policy, batch_rows(batch, rows, actions_only=False), temperature)
