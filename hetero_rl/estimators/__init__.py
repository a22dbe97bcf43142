"""Off-policy estimators: pure functions from log-probabilities to the coefficients of a policy gradient.

The gradient of every method is `-sum(coefficient * A * aggregation weight * grad log pi)` with a detached coefficient, so a
step is one forward and one backward pass per micro-batch:

    estimator = make_estimator("vespo", {})
    prepared = estimator.prepare(recorded)                       # once, on the whole batch
    for indices in micro_batches:
        batch = prepared.select(indices)
        log_probs = policy(...)                                  # flat [n], with gradients
        coefficients = estimator.coefficients(batch, log_probs.detach())
        surrogate_loss(batch, coefficients, log_probs).backward()

Conventions, once for all methods: mu is the policy that sampled, as its engine recorded it; pi_old is the trainer's own
evaluation of those weights; pi is the current policy. log W = sum_t log(pi/mu).
"""

from hetero_rl.estimators.base import Estimator, EstimatorOptions, Needs
from hetero_rl.estimators.batch import Coefficients, PreparedBatch, RecordedBatch
from hetero_rl.estimators.diagnostics import diagnostics, diagnostics_by, effective_share
from hetero_rl.estimators.loss import surrogate_loss, token_weights
from hetero_rl.estimators.registry import estimator_class, list_estimators, make_estimator

__all__ = [
    "Coefficients",
    "Estimator",
    "EstimatorOptions",
    "Needs",
    "PreparedBatch",
    "RecordedBatch",
    "diagnostics",
    "diagnostics_by",
    "effective_share",
    "estimator_class",
    "list_estimators",
    "make_estimator",
    "surrogate_loss",
    "token_weights",
]
