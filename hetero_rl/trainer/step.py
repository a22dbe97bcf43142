"""One optimizer step: zero, forward and backward per micro-batch, check, clip, AdamW.

    batch ─► estimator.prepare (whole batch, once)
               └─ per micro-batch: log-probs ─► coefficients (detached) ─► surrogate loss ─► backward
    gradients ─► finite? ─► clip ─► AdamW

The denominators of the loss are those of the whole batch, so the sum over micro-batches is the loss of the step and
does not depend on how the batch was cut. Nothing is applied unless every log-probability, the loss and the gradient
norm are finite.

Shapes: S sequences, N action tokens of them: completion tokens that the policy chose.
"""

import dataclasses
import math
import time
from typing import Any

import torch
from torch import Tensor

from hetero_rl.config.tree import OptimizerConfig
from hetero_rl.errors import NonFiniteError
from hetero_rl.estimators import Coefficients, Estimator, Needs, PreparedBatch, RecordedBatch, token_weights
from hetero_rl.estimators.batch import token_positions
from hetero_rl.trainer.batch import TrainingBatch
from hetero_rl.trainer.forward import Objective
from hetero_rl.trainer.layout import batch_rows
from hetero_rl.trainer.log_probs import row_log_probs
from hetero_rl.trainer.micro_batches import Rows, computed_tokens, flat, plan_micro_batches, plan_rows
from hetero_rl.trainer.policy import Policy

__all__ = [
    "Learner",
    "StepResult",
    "action_log_probs",
    "learning_rate_at",
    "make_optimizer",
    "plan_batch",
    "record",
]

HALF_PRECISION_LOSS_SCALE = 2.0**14
"""Lifts float16 gradients of a loss that is divided by all tokens of the batch out of the subnormal range."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepResult:
    """What a step did, in the order of the batch's sequences. On the CPU, without gradients."""

    loss: float
    gradient_norm: float
    """Before clipping."""
    learning_rate: float
    log_probs: Tensor
    """[N] log pi, of the forward passes that were trained."""
    prepared: PreparedBatch
    coefficients: Coefficients
    padded_tokens: int
    """Tokens computed, padding included."""
    seconds: float


def make_optimizer(policy: Policy, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over the float32 master weights."""
    return torch.optim.AdamW(
        policy.parameters(),
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
    )


def learning_rate_at(step: int, config: OptimizerConfig) -> float:
    """Learning rate of optimizer step `step`, from 1: linear warm-up, then constant."""
    if step >= config.warmup_steps:
        return config.learning_rate
    return config.learning_rate * step / config.warmup_steps


def record(
    batch: TrainingBatch, *, group_size: int, max_new_tokens: int, old_log_probs: Tensor | None = None
) -> RecordedBatch:
    """What the estimator sees of a batch: action tokens only.

    Args:
        batch: At least one sequence; each has an action token.
        group_size: Completions that a whole group has.
        max_new_tokens: Largest completion of the run.
        old_log_probs: log pi_old of each action token [N] float32, when it was recomputed for all.
    """
    return RecordedBatch(
        behavior_log_probs=batch.behavior_log_probs[batch.action_mask],
        lengths=batch.action_lengths,
        group_ids=batch.group_of_sequence,
        rewards=batch.rewards,
        old_log_probs=old_log_probs,
        token_lags=batch.token_lags[batch.action_mask],
        group_size=group_size,
        max_new_tokens=max_new_tokens,
    )


def action_log_probs(policy: Policy, batch: TrainingBatch, rows: Rows, temperature: float) -> Tensor:
    """Log-probabilities of the action tokens of some sequences, [n] float32 on the CPU, without gradients."""
    return row_log_probs(policy, batch_rows(batch, rows, actions_only=True), temperature).cpu()


def plan_batch(
    batch: TrainingBatch, tokens_per_micro_batch: int, *, share_prompts: bool, packed: bool
) -> tuple[Rows, ...]:
    """The micro-batches of a batch; raises ConfigError when one sequence exceeds the budget."""
    groups = batch.group_of_sequence
    rows = plan_rows(
        groups.tolist(),
        batch.prompt_lengths[groups].tolist(),
        batch.lengths.tolist(),
        tokens_per_micro_batch if share_prompts else 0,
    )
    plan = plan_micro_batches(batch.row_lengths(rows), tokens_per_micro_batch, packed=packed)
    return tuple(tuple(rows[index] for index in part) for part in plan)


class Learner:
    """The policy, its optimizer and the estimator.

    Args:
        policy: What is trained.
        estimator: Turns log-probabilities into coefficients.
        config: Optimizer settings.
        tokens_per_micro_batch: Budget of one forward and backward pass, padding included.
        temperature: The sampling temperature; log-probabilities are those of the tempered distribution.
        share_prompts: Whether a prompt is computed once for several completions; None does so if the model can.
    """

    def __init__(
        self,
        policy: Policy,
        estimator: Estimator[Any],
        config: OptimizerConfig,
        *,
        tokens_per_micro_batch: int,
        temperature: float = 1.0,
        share_prompts: bool | None = None,
    ) -> None:
        self.policy = policy
        self.share_prompts = policy.packed and share_prompts is not False
        self.optimizer = make_optimizer(policy, config)
        self._module = policy.forward_module()
        self._estimator = estimator
        self._config = config
        self._budget = tokens_per_micro_batch
        self._temperature = temperature

    def plan(self, batch: TrainingBatch) -> tuple[Rows, ...]:
        """The micro-batches of a batch; raises ConfigError when one sequence exceeds the budget."""
        return plan_batch(batch, self._budget, share_prompts=self.share_prompts, packed=self.policy.packed)

    def step(self, batch: TrainingBatch, recorded: RecordedBatch) -> StepResult:
        """Makes one optimizer step with a batch of at least one sequence.

        Raises:
            NonFiniteError: A log-probability, the loss or the gradient is not finite; nothing was applied.
        """
        started = time.monotonic()
        plan = self.plan(batch)
        prepared = self._estimator.prepare(recorded, self._current_log_probs(batch, plan))
        self.optimizer.zero_grad(set_to_none=True)
        parts = [self._forward_and_backward(batch, prepared, rows) for rows in plan]
        loss = math.fsum(part.loss for part in parts)
        gradient_norm = self._clip_gradients(batch.step)
        coefficients = _joined_coefficients([part.coefficients for part in parts], plan, recorded.lengths)
        scale = self._estimator.learning_rate_scale(coefficients.log_importance_ratio)
        learning_rate = learning_rate_at(batch.step, self._config) * scale
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        return StepResult(
            loss=loss,
            gradient_norm=gradient_norm,
            learning_rate=learning_rate,
            log_probs=_in_batch_order([part.log_probs for part in parts], plan, recorded.lengths),
            prepared=prepared,
            coefficients=coefficients,
            padded_tokens=sum(
                computed_tokens(batch.row_lengths(rows), packed=self.policy.packed) for rows in plan
            ),
            seconds=time.monotonic() - started,
        )

    def _current_log_probs(self, batch: TrainingBatch, plan: tuple[Rows, ...]) -> Tensor | None:
        """One pass without gradients, only for estimators that couple sequences through the current policy."""
        if self._estimator.needs is not Needs.CURRENT_POLICY:
            return None
        parts = [action_log_probs(self.policy, batch, part, self._temperature) for part in plan]
        return _in_batch_order(parts, plan, batch.action_lengths)

    def _forward_and_backward(self, batch: TrainingBatch, prepared: PreparedBatch, rows: Rows) -> "_Part":
        weigher = _Weigher(self._estimator, prepared.select(flat(rows)), self._loss_scale)
        inputs = self.policy.inputs(batch_rows(batch, rows, actions_only=True))
        with self.policy.compute():
            scaled, known = self._module(inputs, self._temperature, Objective(weigher, accumulate=True))
        log_probs = known.log_probs.cpu()
        loss = scaled.item() / self._loss_scale
        if not bool(log_probs.isfinite().all()) or not math.isfinite(loss):
            raise NonFiniteError(
                f"step {batch.step}: the loss of a micro-batch is {loss} and"
                f" {int((~log_probs.isfinite()).sum())} of its log-probabilities are not finite"
            )
        scaled.backward()
        return _Part(loss, log_probs, weigher.coefficients)

    def _clip_gradients(self, step: int) -> float:
        parameters = self.policy.parameters()
        if self._loss_scale != 1:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(self._loss_scale)
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self._config.max_gradient_norm))
        if not math.isfinite(norm):
            raise NonFiniteError(f"step {step}: the gradient norm is {norm}")
        return norm

    @property
    def _loss_scale(self) -> float:
        return HALF_PRECISION_LOSS_SCALE if self.policy.compute_dtype == torch.float16 else 1.0


class _Weigher:
    """Asks the estimator for coefficients as log-probabilities of a micro-batch become known.

    Args:
        estimator: The estimator.
        part: The micro-batch.
        scale: Multiplies the loss.
    """

    def __init__(self, estimator: Estimator[Any], part: PreparedBatch, scale: float) -> None:
        self._estimator = estimator
        self._part = part
        self._scale = scale
        self._found: list[Coefficients] = []

    def __call__(self, first: int, after: int, log_probs: Tensor) -> Tensor:
        """Derivative of the loss by the log-probability of the tokens of some sequences, the next in order."""
        whole = first == 0 and after == self._part.sequences
        part = self._part if whole else self._part.select(range(first, after))
        coefficients = self._estimator.coefficients(part, log_probs.cpu())
        self._found.append(coefficients)
        return token_weights(part, coefficients) * self._scale

    @property
    def coefficients(self) -> Coefficients:
        """Those of the whole micro-batch."""
        return Coefficients.joined(self._found)


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """What one micro-batch gave."""

    loss: float
    log_probs: Tensor
    coefficients: Coefficients


def _in_batch_order(parts: list[Tensor], plan: tuple[Rows, ...], lengths: Tensor) -> Tensor:
    """Token columns of the micro-batches, put back into the order of the batch's sequences."""
    order = torch.tensor([index for rows in plan for index in flat(rows)])
    joined = torch.cat(parts)
    result = torch.empty_like(joined)
    result[token_positions(lengths, order)] = joined
    return result


def _joined_coefficients(parts: list[Coefficients], plan: tuple[Rows, ...], lengths: Tensor) -> Coefficients:
    """The coefficients of the whole batch from those of its micro-batches."""
    order = torch.tensor([index for rows in plan for index in flat(rows)])

    def sequences(columns: list[Tensor]) -> Tensor:
        joined = torch.cat(columns)
        result = torch.empty_like(joined)
        result[order] = joined
        return result

    def split(columns: list[Tensor | None]) -> Tensor | None:
        known = [column for column in columns if column is not None]
        return sequences(known) if known else None

    return Coefficients(
        weights=_in_batch_order([part.values for part in parts], plan, lengths),
        lengths=lengths,
        log_importance_ratio=sequences([part.log_importance_ratio for part in parts]),
        unusable_tokens=sequences([part.unusable_tokens for part in parts]),
        clamped=sequences([part.clamped for part in parts]),
        staleness_log_ratio=split([part.staleness_log_ratio for part in parts]),
        chip_log_ratio=split([part.chip_log_ratio for part in parts]),
    )
