"""The surrogate loss and its derivative: the gradient is the estimator's, the value means nothing across methods."""

import torch
from torch import Tensor

from hetero_rl.estimators.batch import Coefficients, PreparedBatch
from hetero_rl.estimators.stages.level import to_tokens

__all__ = ["surrogate_loss", "token_weights"]


def surrogate_loss(batch: PreparedBatch, coefficients: Coefficients, log_probs: Tensor) -> Tensor:
    """-sum(coefficient * A * aggregation weight * log pi), a scalar.

    The sum over the micro-batches of a step is the loss of the step: denominators are already those of the whole batch.

    Args:
        batch: The micro-batch.
        coefficients: Its coefficients, of the same forward pass.
        log_probs: log pi of each token [n], with gradients.

    Raises:
        ValueError: log_probs does not have one number per token.
    """
    tokens = batch.recorded.behavior_log_probs.shape[0]
    if log_probs.shape != (tokens,):
        raise ValueError(f"log_probs has shape {tuple(log_probs.shape)}; ({tokens},) is required")
    weights = token_weights(batch, coefficients)
    # A token out of the loss may have log pi = -inf; 0 * -inf is not 0.
    counted = torch.where(weights != 0, log_probs, 0.0)
    return (weights * counted).sum()


def token_weights(batch: PreparedBatch, coefficients: Coefficients) -> Tensor:
    """Derivative of the loss by log pi of each token [n]: -coefficient * A * aggregation weight.

    Args:
        batch: The micro-batch.
        coefficients: Its coefficients.
    """
    lengths = batch.recorded.lengths
    tokens = batch.recorded.behavior_log_probs.shape[0]
    scale = -(batch.advantages * batch.sequence_weights).to(coefficients.weights.dtype)
    if coefficients.weights.shape == lengths.shape:
        return to_tokens(coefficients.weights * scale, lengths, tokens)
    return coefficients.weights * to_tokens(scale, lengths, tokens)
