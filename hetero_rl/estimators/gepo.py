"""GEPO: the group *expectation* weight, whose denominator is an average over the prompt's group.

    p_i = exp(mean_t log pi(y_t)),  q_i = exp(mean_t log mu(y_t))
    E[q] = sum_i q_i^2 / sum_i q_i                         over the group of one prompt
    coefficient = w_i = p_i / E[q], and 0 where min(w A, clip(w, 1 - epsilon_low, 1 + epsilon_high) A) is flat

arXiv:2508.17850, equations 2 and 3 and figure 1; "expectation" tells it from a later method of the same initials. E[q] comes
from recorded data alone, so it is computed in log space over the whole group before the batch is cut. Its gradient goes
through p_i only. On-policy w is not 1: its mean over a group is ESS/G. With one member (G = 1) E[q] = q, so w is the
geometric mean ratio of GSPO. Sequences without a usable log-probability are left out of E[q].
The probabilities are length-normalised, as in the authors' code: with raw sums one member takes the whole group.
The clip of 0.2 is that of figure 1 and of every published result; it fires on the spread of confidence within a group
rather than on staleness. `epsilon_low` and `epsilon_high` set to None turn it off.
"""

import dataclasses
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions, Needs
from hetero_rl.estimators.batch import PreparedBatch
from hetero_rl.estimators.stages import kernel, masks
from hetero_rl.estimators.stages.aggregation import AggregationKind
from hetero_rl.estimators.stages.groups import Groups, group_log_sum_exp
from hetero_rl.estimators.stages.level import finite_mean
from hetero_rl.estimators.view import View, Weighed

__all__ = ["Gepo", "GepoOptions"]


class GepoOptions(EstimatorOptions):
    """Constants of `gepo`."""

    aggregation: AggregationKind = "sequence_mean_token_mean"
    """What one token counts in the loss of the batch."""
    epsilon_low: float | None = Field(0.2, ge=0)
    """Lower clip margin; None turns it off."""
    epsilon_high: float | None = Field(0.2, ge=0)
    """Upper clip margin; None turns it off."""


class Gepo(Estimator[GepoOptions]):
    """p over the group expectation of q, for each sequence [s], the same for all its tokens."""

    name: ClassVar[str] = "gepo"
    method_needs: ClassVar[Needs] = Needs.RECORDED_GROUP
    options_class: ClassVar[type[EstimatorOptions]] = GepoOptions
    formula: ClassVar[str] = "w where the clip is not active, else 0;  w = p / E_group[q], length-normalised"
    reference: ClassVar[str] = "HeteroRL / GEPO, arXiv:2508.17850"

    @override
    def couple(self, prepared: PreparedBatch, groups: Groups, log_probs: Tensor | None) -> PreparedBatch:
        """Adds log E[q] of each sequence's group."""
        del log_probs
        log_q = finite_mean(prepared.recorded.behavior_log_probs, prepared.recorded.lengths)
        log_q = torch.where(log_q.isfinite(), log_q, -torch.inf)
        log_e = group_log_sum_exp(2 * log_q, groups) - group_log_sum_exp(log_q, groups)
        constants = log_e[groups.index].to(log_q.dtype)
        return dataclasses.replace(prepared, sequence_constants=constants)

    @override
    def weigh(self, view: View) -> Weighed:
        """Length-normalised probability over the group expectation, and clip."""
        log_e = view.constants
        weight = kernel.expectation(view.mean_log_prob, torch.where(log_e.isfinite(), log_e, 0.0))
        keep = masks.clip_keep(
            weight.values, view.advantages, self.options.epsilon_low, self.options.epsilon_high
        )
        return Weighed(weight, keep & log_e.isfinite())
