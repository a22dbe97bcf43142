"""GEPO: the group *expectation* weight, whose denominator is an average over the prompt's group.

    p_i = exp(mean_t log pi(y_t)),  q_i = exp(mean_t log mu(y_t))
    E[q] = sum_i q_i^2 / sum_i q_i                         over the group of one prompt
    coefficient = w_i = p_i / E[q], and 0 where min(w A, clip(w, 1 - epsilon_low, 1 + epsilon_high) A) is flat

arXiv:2508.17850, equations 2 and 3 and figure 1; "expectation" tells it from a later method of the same initials. E[q] comes
from recorded data alone, so it is computed in log space over the whole group before the batch is cut. Its gradient goes
through p_i only. On-policy w is not 1: its mean over a group is ESS/G. With one member (G = 1) E[q] = q, so w is the
geometric mean ratio of GSPO. Sequences without a usable log-probability are left out of E[q]; in an incomplete group E[q] is
taken over the members present.

The probabilities are length-normalised, as in the authors' code: with raw sums one member takes the whole group.
The clip of 0.2 is that of figure 1 and of every published result; it fires on the spread of confidence within a group
rather than on staleness. `clip` = False turns it off.

Variants as options: `expectation` "micro_batch" averages over consecutive sequences of the batch whatever their prompt, as the
authors' code does after shuffling; "group_mean" is the plain mean of q, the unbiased estimate of E_q[q]; `length_normalise` =
False takes the sum of log-probabilities, as the main text of the paper reads.
"""

import dataclasses
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions, Needs
from hetero_rl.estimators.batch import PreparedBatch
from hetero_rl.estimators.stages import kernel, level, masks
from hetero_rl.estimators.stages.aggregation import AggregationKind
from hetero_rl.estimators.stages.edge import LogRatio, Part
from hetero_rl.estimators.stages.groups import Groups, group_log_sum_exp
from hetero_rl.estimators.view import View, Weighed

__all__ = ["Gepo", "GepoOptions"]


class GepoOptions(EstimatorOptions):
    """Constants of `gepo`."""

    aggregation: AggregationKind = "sequence_mean_token_mean"
    """What one token counts in the loss of the batch."""
    epsilon_low: float = Field(0.2, ge=0)
    """Lower clip margin."""
    epsilon_high: float = Field(0.2, ge=0)
    """Upper clip margin."""
    clip: bool = True
    """Whether the clip acts."""
    expectation: Literal["group", "group_mean", "micro_batch"] = "group"
    """What E[q] is: the q-weighted mean of the group, its plain mean, or the q-weighted mean of a micro-batch."""
    micro_batch_size: int = Field(8, ge=1)
    """Sequences of a micro-batch; acts where expectation is "micro_batch"."""
    length_normalise: bool = True
    """Whether p and q are geometric means over the tokens or products."""


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
        o = self.options
        lengths = prepared.recorded.lengths
        log_q = level.finite_mean(prepared.recorded.behavior_log_probs, lengths)
        log_q = torch.where(log_q.isfinite(), log_q if o.length_normalise else log_q * lengths, -torch.inf)
        if o.expectation == "micro_batch":
            blocks = torch.arange(lengths.shape[0], device=lengths.device) // o.micro_batch_size
            groups = Groups.of(blocks)
        total = group_log_sum_exp(log_q, groups)
        if o.expectation == "group_mean":
            log_e = total - group_log_sum_exp(torch.where(log_q.isfinite(), 0.0, -torch.inf), groups)
        else:
            log_e = group_log_sum_exp(2 * log_q, groups) - total
        return dataclasses.replace(prepared, sequence_constants=log_e[groups.index].to(log_q.dtype))

    @override
    def weigh(self, view: View) -> Weighed:
        """Probability over the group expectation, and clip."""
        o = self.options
        log_p = view.mean_log_prob if o.length_normalise else view.mean_log_prob * view.lengths
        usable = view.constants.isfinite()
        log_w = LogRatio(log_p - torch.where(usable, view.constants, 0.0), Part.TOTAL)
        weight = kernel.identity(log_w)
        if not o.clip:
            return Weighed(weight, usable.to(weight.values.dtype), log_w)
        bounds = masks.clip_bounds(view.advantages, 1 - o.epsilon_low, 1 + o.epsilon_high)
        return Weighed(weight, masks.window(weight.values, *bounds).mul_(usable), log_w)
