"""One optimizer step: zero, forward and backward per micro-batch, check, clip, AdamW.

    batch ─► estimator.prepare (whole batch, once)
               └─ per micro-batch: log-probs ─► coefficients (detached) ─► surrogate loss ─► backward
    gradients ─► finite? ─► clip ─► AdamW

The denominators of the loss are those of the whole batch, so the sum over micro-batches is the loss of the step and
does not depend on how the batch was cut. Nothing is applied unless every log-probability, the loss and the gradient
norm are finite.

Shapes: S sequences, N action tokens of them: completion tokens that the policy chose.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from hetero_rl.config.tree import OptimizerConfig
from hetero_rl.errors import NonFiniteError
from hetero_rl.estimators import Coefficients, Estimator, Needs, PreparedBatch, RecordedBatch
from hetero_rl.trainer.batch import TrainingBatch
from hetero_rl.trainer.forward import Objective
from hetero_rl.trainer.layout import batch_rows
from hetero_rl.trainer.log_probs import row_log_probs
from hetero_rl.trainer.memory_limit import naming_the_knobs
from hetero_rl.trainer.micro_batches import Rows, computed_tokens, flat, plan_micro_batches, plan_rows
from hetero_rl.trainer.objective import LossTerms, Part, Weigher, batch_coefficients, in_batch_order
from hetero_rl.trainer.policy import Policy
from hetero_rl.trainer.precision import LossScale
from hetero_rl.trainer.ranks import Ranks
from hetero_rl.trainer.sharding import whole

__all__ = [
    "Learner",
    "StepResult",
    "action_log_probs",
    "learning_rate_at",
    "make_optimizer",
    "moments_beside",
    "plan_batch",
    "record",
]


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
    entropies: Tensor | None = None
    """[N] entropy of each position in nats, where the loss has an entropy bonus."""
    reference_log_probs: Tensor | None = None
    """[N] log pi_ref, where the loss has a divergence from a reference."""


def make_optimizer(policy: Policy, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over the float32 master weights, on a processor in one pass over them."""
    return torch.optim.AdamW(
        policy.parameters(),
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        # Elsewhere the fused one wants the count of steps on the device, where a checkpoint does not put it.
        fused=True if policy.device.type == "cpu" else None,
    )


@contextlib.contextmanager
def moments_beside(optimizer: torch.optim.Optimizer, *, offload: bool) -> Generator[None]:
    """Has the optimizer's moments beside their parameters for the time of a step, in the host's memory after it."""
    if not offload:
        yield
        return
    for parameter, state in optimizer.state.items():
        state.update({name: _moved(name, value, parameter.device) for name, value in state.items()})
    try:
        yield
    finally:
        for state in optimizer.state.values():
            state.update({name: _moved(name, value, torch.device("cpu")) for name, value in state.items()})


def _moved(name: str, value: Tensor, device: torch.device) -> Tensor:
    return value if name == "step" else value.to(device)


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
    batch: TrainingBatch, tokens_per_micro_batch: int, *, share_prompts: bool, packed: bool, parts: int = 1
) -> tuple[Rows, ...]:
    """The micro-batches of a batch; raises ConfigError when one sequence exceeds the budget.

    Args:
        batch: The batch.
        tokens_per_micro_batch: The budget.
        share_prompts: Whether the completions of a group share a row.
        packed: Whether rows are packed.
        parts: Rows are kept short enough for so many micro-batches of equal size, if there are sequences enough.
    """
    groups = batch.group_of_sequence
    budget = tokens_per_micro_batch
    if parts > 1:
        longest = max(batch.row_lengths([(index,) for index in range(batch.sequences)]))
        budget = min(budget, max(longest, math.ceil(sum(batch.total_lengths) / parts)))
    rows = plan_rows(
        groups.tolist(),
        batch.prompt_lengths[groups].tolist(),
        batch.lengths.tolist(),
        budget if share_prompts else 0,
    )
    plan = plan_micro_batches(batch.row_lengths(rows), min(budget, tokens_per_micro_batch), packed=packed)
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
        terms: What the loss has besides the estimator.
        reference: The policy that `terms.reference_kl` pulls towards.
        offload_optimizer: Whether the optimizer's moments are in the host's memory between steps.
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
        terms: LossTerms = LossTerms(),  # ruff: ignore[function-call-in-default-argument] - frozen
        reference: Policy | None = None,
        offload_optimizer: bool = False,
    ) -> None:
        self.policy = policy
        self.share_prompts = policy.packed and share_prompts is not False
        self.optimizer = make_optimizer(policy, config)
        self._module = policy.forward_module()
        self._estimator = estimator
        self._config = config
        self._budget = tokens_per_micro_batch
        self._temperature = temperature
        self._terms = terms
        self._loss_scale = LossScale(policy.compute_dtype)
        self._reference = reference
        self._offload = offload_optimizer

    def plan(self, batch: TrainingBatch) -> tuple[Rows, ...]:
        """The micro-batches of a batch; raises ConfigError when one sequence exceeds the budget."""
        return plan_batch(
            batch,
            self._budget,
            share_prompts=self.share_prompts,
            packed=self.policy.packed,
            parts=1 if self._ranks is None else self._ranks.world,
        )

    def step(self, batch: TrainingBatch, recorded: RecordedBatch) -> StepResult:
        """Makes one optimizer step with a batch of at least one sequence.

        Raises:
            MemoryLimitError: Forward or backward does not fit into memory; nothing was applied.
            NonFiniteError: A log-probability, the loss or the gradient is not finite; nothing was applied.
        """
        started = time.monotonic()
        plan = self.plan(batch)
        own = plan if self._ranks is None else self._ranks.share(plan)
        idle = 0 if self._ranks is None else math.ceil(len(plan) / self._ranks.world) - len(own)
        with naming_the_knobs(batch.step, self._budget):
            prepared = self._estimator.prepare(recorded, self._current_log_probs(batch, own, idle, plan))
            columns, gradient_norm = self._gradients(batch, prepared, own, idle, plan)
            while self._loss_scale.lowered_after(gradient_norm, batch.step):
                columns, gradient_norm = self._gradients(batch, prepared, own, idle, plan)
        if not math.isfinite(gradient_norm):
            raise NonFiniteError(f"step {batch.step}: the gradient norm is {gradient_norm}")
        scale = self._estimator.learning_rate_scale(columns.coefficients.log_importance_ratio)
        learning_rate = learning_rate_at(batch.step, self._config) * scale
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        with moments_beside(self.optimizer, offload=self._offload):
            self.optimizer.step()
        return StepResult(
            loss=columns.loss,
            gradient_norm=gradient_norm,
            learning_rate=learning_rate,
            log_probs=columns.log_probs,
            prepared=prepared,
            coefficients=columns.coefficients,
            padded_tokens=sum(
                computed_tokens(batch.row_lengths(rows), packed=self.policy.packed) for rows in plan
            ),
            seconds=time.monotonic() - started,
            entropies=columns.entropies,
            reference_log_probs=columns.reference_log_probs,
        )

    @property
    def _ranks(self) -> Ranks | None:
        return None if self.policy.sharded is None else self.policy.sharded.ranks

    def _gradients(
        self,
        batch: TrainingBatch,
        prepared: PreparedBatch,
        own: tuple[Rows, ...],
        idle: int,
        plan: tuple[Rows, ...],
    ) -> tuple[Part, float]:
        """Forward and backward of the whole batch, and the norm of the gradients, which are clipped."""
        self.optimizer.zero_grad(set_to_none=True)
        parts = [self._forward_and_backward(batch, prepared, rows) for rows in own]
        for _ in range(idle):
            self._compute_along(batch, plan)
        columns = self._columns(parts, own, prepared.recorded)
        _check_finite(batch.step, columns.loss, columns.log_probs)
        return columns, self._clip_gradients()

    def _current_log_probs(
        self, batch: TrainingBatch, own: tuple[Rows, ...], idle: int, plan: tuple[Rows, ...]
    ) -> Tensor | None:
        """One pass without gradients, only for estimators that couple sequences through the current policy."""
        if self._estimator.needs is not Needs.CURRENT_POLICY:
            return None
        parts = [action_log_probs(self.policy, batch, part, self._temperature) for part in own]
        for _ in range(idle):
            action_log_probs(self.policy, batch, plan[0][:1], self._temperature)
        return self._total(in_batch_order(parts, own, batch.action_lengths))

    def _forward_and_backward(self, batch: TrainingBatch, prepared: PreparedBatch, rows: Rows) -> Part:
        tokens = batch_rows(batch, rows, actions_only=True)
        reference = None
        if self._reference is not None:
            reference = row_log_probs(self._reference, tokens, self._temperature).cpu()
        weigher = Weigher(self._estimator, prepared.select(flat(rows)), self._scale, self._terms, reference)
        entropy_weights = weigher.entropy_weights
        if entropy_weights is not None:
            entropy_weights = entropy_weights.to(self.policy.device)
        objective = Objective(weigher, entropy_weights, accumulate=self._ranks is None)
        with self.policy.compute():
            scaled, known = self._module(self.policy.inputs(tokens), self._temperature, objective)
        log_probs, loss = known.log_probs.cpu(), scaled.item() / self._scale
        if self._ranks is None:
            _check_finite(batch.step, loss, log_probs)
        scaled.backward()
        entropies = None if known.entropies is None else known.entropies.cpu()
        return Part(loss, log_probs, weigher.coefficients, entropies, reference)

    def _compute_along(self, batch: TrainingBatch, plan: tuple[Rows, ...]) -> None:
        """Takes part in the other ranks' collectives with a row that counts nothing."""
        tokens = batch_rows(batch, plan[0][:1], actions_only=True)
        if self._reference is not None:
            row_log_probs(self._reference, tokens, self._temperature)
        nothing = Objective(lambda _first, _after, log_probs: torch.zeros_like(log_probs))
        with self.policy.compute():
            loss, _ = self._module(self.policy.inputs(tokens), self._temperature, nothing)
        loss.backward()

    def _columns(self, parts: list[Part], own: tuple[Rows, ...], recorded: RecordedBatch) -> Part:
        """What the whole batch gave, in its order, from the micro-batches of all ranks."""
        lengths = recorded.lengths
        split = recorded.old_log_probs is not None
        found = batch_coefficients([part.coefficients for part in parts], own, lengths, split=split)
        coefficients = Coefficients(
            lengths=lengths,
            weights=self._total(found.weights),
            log_importance_ratio=self._total(found.log_importance_ratio),
            unusable_tokens=self._total(found.unusable_tokens),
            clamped=self._total(found.clamped),
            staleness_log_ratio=None
            if found.staleness_log_ratio is None
            else self._total(found.staleness_log_ratio),
            chip_log_ratio=None if found.chip_log_ratio is None else self._total(found.chip_log_ratio),
        )

        def tokens(columns: list[Tensor | None]) -> Tensor:
            known = [column for column in columns if column is not None]
            return self._total(in_batch_order(known, own, lengths))

        loss = torch.tensor([math.fsum(part.loss for part in parts)], dtype=torch.float64)
        return Part(
            loss=float(self._total(loss)),
            log_probs=tokens([part.log_probs for part in parts]),
            coefficients=coefficients,
            entropies=tokens([part.entropies for part in parts]) if self._terms.entropy_bonus else None,
            reference_log_probs=tokens([part.reference_log_probs for part in parts])
            if self._reference is not None
            else None,
        )

    def _total(self, values: Tensor) -> Tensor:
        return values if self._ranks is None else self._ranks.total(values)

    def _clip_gradients(self) -> float:
        parameters = self.policy.parameters()
        if self._loss_scale.value != 1:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(self._loss_scale.value)
        return float(whole(torch.nn.utils.clip_grad_norm_(parameters, self._config.max_gradient_norm)))

    @property
    def _scale(self) -> float:
        """What the loss is multiplied with: sharded gradients are means over the ranks where sums are wanted."""
        return self._loss_scale.value * (1 if self._ranks is None else self._ranks.world)


def _check_finite(step: int, loss: float, log_probs: Tensor) -> None:
    if not bool(log_probs.isfinite().all()) or not math.isfinite(loss):
        raise NonFiniteError(
            f"step {step}: the loss of a micro-batch is {loss} and"
            f" {int((~log_probs.isfinite()).sum())} of its log-probabilities are not finite"
        )
