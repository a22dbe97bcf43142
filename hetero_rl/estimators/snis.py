"""Self-normalised importance sampling over the prompt's group.

    W_i = prod_t pi(y_t)/mu(y_t)
    coefficient_i = G W_i / sum_j W_j          over the G members of the group that are present and have a weight

A reconstruction from the abstract of "Principled policy optimization for LLMs via SNIS" (openreview HVciz8hi1c); its text could not
be obtained. Consistent, with a bias of order 1/G. On-policy every coefficient is 1; the coefficients of a group always sum to its
members. Weights couple the group through the current policy, so they are computed once per step, in one extra pass without
gradients. As sequences grow the largest weight takes the group: watch the effective sample size. One member says nothing: refused.
"""

import dataclasses
from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions, Needs
from hetero_rl.estimators.batch import PreparedBatch
from hetero_rl.estimators.stages import normalise
from hetero_rl.estimators.stages.edge import Part, Weight
from hetero_rl.estimators.stages.groups import Groups
from hetero_rl.estimators.view import View, Weighed, log_weights

__all__ = ["Snis", "SnisOptions"]


class SnisOptions(EstimatorOptions):
    """Constants of `snis`."""


class Snis(Estimator[SnisOptions]):
    """Self-normalised weight of each sequence [s], the same for all its tokens."""

    name: ClassVar[str] = "snis"
    method_needs: ClassVar[Needs] = Needs.CURRENT_POLICY
    options_class: ClassVar[type[EstimatorOptions]] = SnisOptions
    formula: ClassVar[str] = "G W_i / sum_j W_j over the group;  W = prod_t pi/mu"
    reference: ClassVar[str] = "reconstructed from openreview.net/forum?id=HVciz8hi1c"
    min_group_size: ClassVar[int] = 2

    @override
    def couple(self, prepared: PreparedBatch, groups: Groups, log_probs: Tensor | None) -> PreparedBatch:
        """Adds the log of each sequence's coefficient."""
        if log_probs is None:
            return prepared
        log_w = log_weights(prepared, log_probs)
        return dataclasses.replace(prepared, sequence_constants=normalise.group_self_log(log_w, groups))

    @override
    def weigh(self, view: View) -> Weighed:
        """The weight found for the whole group."""
        return Weighed(Weight(view.constants.exp(), Part.TOTAL))
