"""Weight kernels: from a log-ratio to the weight of a token or sequence. All are detached and finite for any input."""

import torch
from torch import Tensor

from hetero_rl.estimators.stages.edge import LOG_RATIO_BOUND, LogRatio, Part, Weight, bounded_exp

__all__ = ["expectation", "gamma", "identity", "one"]


def one(like: Tensor) -> Weight:
    """Weight 1: no correction."""
    return Weight(torch.ones_like(like), Part(0))


def identity(log_ratio: LogRatio) -> Weight:
    """The ratio itself."""
    return Weight(bounded_exp(log_ratio.values), log_ratio.part)


def gamma(log_ratio: LogRatio, c1: Tensor, c2: Tensor) -> Weight:
    """W^c1 exp(c2 (1 - W)), evaluated as exp(c2 + c1 log W - c2 W) (VESPO, arXiv:2602.10693v3, eq. 17 to 20).

    Args:
        log_ratio: log W per sequence [s].
        c1: Power per sequence [s]; governs W < 1.
        c2: Decay per sequence [s]; governs W > 1.
    """
    log_w = log_ratio.values.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return Weight(torch.exp(c2 + c1 * log_w - c2 * log_w.exp()), log_ratio.part)


def expectation(log_probability: Tensor, log_expectation: Tensor) -> Weight:
    """The weight p / E[q] from logs [s] (GEPO, arXiv:2508.17850, eq. 3); E[q] is made of recorded data only."""
    return Weight(bounded_exp(log_probability - log_expectation), Part.TOTAL)
