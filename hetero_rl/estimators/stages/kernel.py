"""Weight kernels and shapers: from a log-ratio to the weight of a token or sequence. Detached, finite for any input."""

import torch
from torch import Tensor

from hetero_rl.estimators.stages.edge import LOG_RATIO_BOUND, LogRatio, Part, Weight, bounded_exp
from hetero_rl.estimators.stages.level import to_tokens
from hetero_rl.estimators.stages.loops import compiled_loops

__all__ = [
    "cap",
    "expert_shape",
    "gamma",
    "identity",
    "one",
    "q_path",
    "soft_gate",
    "truncate",
]


def one(like: Tensor) -> Weight:
    """Weight 1: no correction."""
    return Weight(torch.ones_like(like), Part(0))


def identity(log_ratio: LogRatio, out: Tensor | None = None) -> Weight:
    """The ratio itself."""
    return Weight(bounded_exp(log_ratio, out), log_ratio.part)


def truncate(log_ratio: LogRatio, low: float | None, high: float | None, out: Tensor | None = None) -> Weight:
    """The ratio held between low and high; every token keeps a gradient."""
    weight = identity(log_ratio, out)
    if low is not None:
        weight.values.clamp_(min=low)
    return weight if high is None else cap(weight, high)


def cap(weight: Weight, high: float) -> Weight:
    """The weight, held below `high` in place."""
    weight.values.clamp_(max=high)
    return weight


def gamma(log_ratio: LogRatio, c1: Tensor, c2: Tensor) -> Weight:
    """W^c1 exp(c2 (1 - W)), evaluated as exp(c2 + c1 log W - c2 W) (VESPO, arXiv:2602.10693v3, eq. 17 to 20).

    Args:
        log_ratio: log W per sequence [s].
        c1: Power per sequence [s]; governs W < 1.
        c2: Decay per sequence [s]; governs W > 1.
    """
    log_w = log_ratio.values.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return Weight(torch.exp(c2 + c1 * log_w - c2 * log_w.exp()), log_ratio.part)


def soft_gate(log_ratio: LogRatio, half_tau: Tensor, lengths: Tensor, out: tuple[Tensor, Tensor]) -> Weight:
    """4 p (1 - p) r with p = sigmoid(tau (r - 1)): the gradient of SAPO's gate (arXiv:2511.20347).

    Args:
        log_ratio: Per token [n].
        half_tau: Half the temperature of each sequence [s].
        lengths: Tokens of each sequence [s].
        out: Where the weight is written [n], and a column to work in [n].
    """
    weight, gate = out
    ratio = bounded_exp(log_ratio, weight)
    # 4 p (1 - p) = 1 - tanh(tau (r - 1) / 2)^2.
    loops = compiled_loops(ratio)
    if loops is None:
        per_token = to_tokens(half_tau, lengths, ratio.shape[0])
        squared = torch.sub(ratio, 1, out=gate).mul_(per_token).tanh_().square_()
        return Weight(ratio.addcmul_(ratio, squared, value=-1), log_ratio.part)
    column, factors = ratio.numpy(), half_tau.to(ratio.dtype)
    one = column.dtype.type(1)
    loops.gate_argument(column, factors.numpy(), one, lengths.numpy(), gate.numpy())
    loops.gate(gate.tanh_().numpy(), one, column)
    return Weight(ratio, log_ratio.part)


def expert_shape(log_probs: Tensor, gamma: float, out: Tensor | None = None) -> Weight:
    """Gamma p / (p + gamma)^2: the gradient of p / (p + gamma) (LUFFY, arXiv:2504.14945), from log pi [n]."""
    probability = torch.exp(log_probs, out=out)
    loops = compiled_loops(probability)
    if loops is None:
        probability.clamp_(max=1)
        square = (probability + gamma).square_()
        return Weight(probability.mul_(gamma).div_(square), Part.TOTAL)
    column = probability.numpy()
    loops.expert_shape(column.dtype.type(1), column.dtype.type(gamma), column)
    return Weight(probability, Part.TOTAL)


def q_path(log_ratio: LogRatio, beta: float, q: float) -> Weight:
    """[(1 - beta) + beta W^(1-q)]^(1/(1-q)), the q-path between mu and pi at beta (arXiv:2012.07823).

    Args:
        log_ratio: log W [s].
        beta: 0 ignores the ratio, 1 is the ratio itself.
        q: 1 is W^beta, 0 is (1 - beta) + beta W, above 1 the weight is bounded.
    """
    log_w = log_ratio.values.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    if beta in {0.0, 1.0}:
        return Weight(torch.exp(beta * log_w), log_ratio.part)
    order = 1 - q
    if abs(order) < 1e-4:
        log_phi = beta * log_w + order * beta * (1 - beta) * log_w.square() / 2
    else:
        beta_column = torch.full_like(log_w, beta)
        log_phi = torch.logaddexp((1 - beta_column).log(), beta_column.log() + order * log_w) / order
    return Weight(bounded_exp(LogRatio(log_phi, log_ratio.part)), log_ratio.part)
