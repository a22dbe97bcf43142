"""The estimator interface: recorded data and current log-probabilities in, detached coefficients out.

    prepare(recorded)                 once per optimizer step: everything that couples sequences
       └─ select(indices)             any micro-batch of it
            └─ coefficients(...)      from the detached log-probabilities of that very forward pass
                 └─ surrogate_loss    -sum(coefficient * A * aggregation weight * log pi)

A preset is one file: its formula and paper on top, and `weigh`, a few lines that compose the shared stages.
"""

import dataclasses
import enum
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from hetero_rl.errors import ConfigError
from hetero_rl.estimators.batch import Coefficients, PreparedBatch, RecordedBatch
from hetero_rl.estimators.stages.advantages import AdvantageKind, advantages
from hetero_rl.estimators.stages.aggregation import AggregationKind, sequence_weights
from hetero_rl.estimators.stages.groups import Groups
from hetero_rl.estimators.stages.level import new_columns, segment_sum, to_tokens
from hetero_rl.estimators.view import View, Walk, Weighed

__all__ = ["Estimator", "EstimatorOptions", "Needs"]


class Needs(enum.Enum):
    """What a method has to see before its first coefficient."""

    OWN_SEQUENCE = "own sequence"
    """Nothing but the sequence itself."""
    RECORDED_GROUP = "recorded group"
    """The recorded data of all members of the prompt group; no extra pass."""
    CURRENT_POLICY = "current policy"
    """The current log-probabilities of the whole batch: one extra pass without gradients."""


class EstimatorOptions(BaseModel):
    """Settings that every preset has; a preset adds its paper's constants and changes these defaults."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True
    )

    advantage: AdvantageKind = "group_mean"
    """How a reward becomes an advantage."""
    std_epsilon: float = Field(1e-6, ge=0)
    """Added to the group's standard deviation where one divides."""
    aggregation: AggregationKind = "token_mean"
    """What one token counts in the loss of the batch."""
    denominator: Literal["before_mask", "after_mask"] = "before_mask"
    """Whether masked tokens still count in the denominator. "after_mask" costs an extra pass."""

    @property
    def splits_ratio(self) -> bool:
        """Whether these options use pi_old, which then has to be recomputed."""
        return False


OptionsT = TypeVar("OptionsT", bound=EstimatorOptions)


class Estimator(ABC, Generic[OptionsT]):
    """One off-policy estimator: immutable, without state between steps."""

    name: ClassVar[str]
    method_needs: ClassVar[Needs] = Needs.OWN_SEQUENCE
    options_class: ClassVar[type[EstimatorOptions]]
    formula: ClassVar[str]
    """The coefficient, in one line of plain text."""
    reference: ClassVar[str]
    """Paper or report."""
    example_options: ClassVar[dict[str, Any]] = {}
    """Values for the constants that the paper leaves open, for a first try."""
    min_group_size: ClassVar[int] = 1
    """Smallest group with which the weight itself means anything."""

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    @property
    def needs(self) -> Needs:
        """What this estimator, with its options, has to see before its first coefficient."""
        return Needs.CURRENT_POLICY if self.options.denominator == "after_mask" else self.method_needs

    @property
    def needs_old_log_probs(self) -> bool:
        """Whether log pi_old has to be recomputed for every sequence."""
        return self.options.splits_ratio

    def check_run(self, *, group_size: int, old_log_probs: bool) -> None:
        """Refuses a run that this estimator cannot learn from.

        Args:
            group_size: Completions per prompt.
            old_log_probs: Whether log pi_old is recomputed for every sequence.

        Raises:
            ConfigError: A group of one has nothing to compare with, or pi_old is needed and not recomputed.
        """
        if self.needs_old_log_probs and not old_log_probs:
            raise ConfigError(
                f"old_log_probs is missing; {self.name!r} with these options splits the ratio at pi_old. Set "
                'estimator.recompute_old_log_probs = "always", or choose options that use pi/mu'
            )
        if group_size < self.min_group_size:
            raise ConfigError(
                f"group_size is {group_size}; {self.name!r} compares at least {self.min_group_size} completions of a prompt"
            )
        if group_size == 1 and self.options.advantage != "none":
            raise ConfigError(
                f"group_size is 1 and the advantage of {self.name!r} is {self.options.advantage!r}: every advantage "
                'would be 0. Use a larger group, or the estimator option advantage = "none"'
            )

    def prepare(self, recorded: RecordedBatch, current_log_probs: Tensor | None = None) -> PreparedBatch:
        """Computes once per optimizer step whatever couples the sequences of the batch.

        Args:
            recorded: The whole batch of the optimizer step.
            current_log_probs: log pi of each token [N], without gradients; required where `needs` is CURRENT_POLICY.

        Raises:
            ValueError: current_log_probs is missing or has the wrong shape, or the group size makes no sense.
        """
        groups = Groups.of(recorded.group_ids)
        whole = recorded.group_size or int(groups.sizes.max())
        self.check_run(group_size=whole, old_log_probs=recorded.old_log_probs is not None)
        if self.needs is Needs.CURRENT_POLICY and current_log_probs is None:
            raise ValueError(
                f"current_log_probs is None; {self.name!r} with these options needs those of the whole batch"
            )
        log_probs = None if current_log_probs is None else _checked(recorded, current_log_probs)
        prepared = PreparedBatch(
            recorded=recorded,
            advantages=advantages(
                recorded.rewards,
                groups,
                self.options.advantage,
                self.options.std_epsilon,
                counted=None if recorded.expert is None else ~recorded.expert,
            ),
            sequence_weights=self._sequence_weights(recorded, recorded.lengths),
            facts={
                "groups": float(groups.sizes.shape[0]),
                "incomplete_groups": float((groups.sizes < whole).sum()),
            },
        )
        prepared = self.couple(prepared, groups, log_probs)
        if self.options.denominator == "after_mask" and log_probs is not None:
            prepared = self._count_after_mask(prepared, log_probs)
        return prepared

    def coefficients(self, batch: PreparedBatch, log_probs: Tensor) -> Coefficients:
        """Coefficients of a micro-batch; the result does not depend on how the batch was cut.

        Args:
            batch: The micro-batch, `PreparedBatch.select` of the prepared batch, or all of it.
            log_probs: log pi of each of its tokens [n], of the forward pass that is trained; gradients are not followed.
        """
        with torch.no_grad():
            detached = _checked(batch.recorded, log_probs)
            return self._collect(batch, detached)

    def learning_rate_scale(self, log_importance_ratio: Tensor) -> float:
        """What the learning rate of this step is multiplied with, from log W of all its sequences [S]; 1 for most."""
        del self, log_importance_ratio
        return 1.0

    def couple(self, prepared: PreparedBatch, groups: Groups, log_probs: Tensor | None) -> PreparedBatch:
        """Adds what the method takes from the whole batch; most methods take nothing."""
        del self, groups, log_probs
        return prepared

    @abstractmethod
    def weigh(self, view: View) -> Weighed:
        """The method itself: weights and masks of the sequences of `view`, each from its own numbers."""

    def _collect(self, batch: PreparedBatch, log_probs: Tensor) -> Coefficients:
        per_token = new_columns(1, log_probs.shape[0], log_probs.dtype, log_probs.device)[0]
        walk = Walk(batch, log_probs, per_token)
        found: list[tuple[slice, Tensor, Tensor]] = []
        for tokens, view in walk:
            found.append((tokens, view.lengths, view.coefficients(self.weigh(view))))
        if all(values.shape == lengths.shape for _, lengths, values in found):
            return Coefficients(weights=torch.cat([values for *_, values in found]), **walk.report())
        for tokens, lengths, values in found:
            # Others had a token without a ratio; this piece stayed per sequence.
            if values.shape == lengths.shape:
                per_token[tokens] = to_tokens(values, lengths, tokens.stop - tokens.start)
        return Coefficients(weights=per_token, **walk.report())

    def _sequence_weights(self, recorded: RecordedBatch, token_counts: Tensor) -> Tensor:
        weights = sequence_weights(token_counts, self.options.aggregation, recorded.max_new_tokens)
        return weights.to(recorded.rewards.dtype)

    def _count_after_mask(self, prepared: PreparedBatch, log_probs: Tensor) -> PreparedBatch:
        kept = self.coefficients(prepared, log_probs).keep.to(log_probs.dtype)
        counts = segment_sum(kept, prepared.recorded.lengths)
        return dataclasses.replace(
            prepared, sequence_weights=self._sequence_weights(prepared.recorded, counts)
        )


def _checked(recorded: RecordedBatch, log_probs: Tensor) -> Tensor:
    tokens = recorded.behavior_log_probs.shape[0]
    if log_probs.shape != (tokens,):
        raise ValueError(
            f"log_probs has shape {tuple(log_probs.shape)}; one number per token, ({tokens},), is required"
        )
    detached = log_probs.detach()
    return detached if detached.dtype in {torch.float32, torch.float64} else detached.float()
