"""What a step's off-policy data looked like: pure functions from detached columns to named numbers.

Names are verl's where verl has one. r = pi/mu per token, W = prod_t r per sequence, differences are of log-probabilities.

    kl                       mean(log mu - log pi), the estimate k1 of KL(mu || pi)
    k2, k3_kl                mean((log r)^2 / 2), mean(r - 1 - log r)
    chi2_token, chi2_seq     mean(r^2) - 1, mean(W^2) - 1
    training_log_ppl, rollout_log_ppl, training_ppl, rollout_ppl     of pi and of mu, per sequence, then their mean
    log_ppl_diff, log_ppl_abs_diff, log_ppl_diff_max, log_ppl_diff_min, ppl_ratio     rollout minus training, of the logs
    rollout_probs_diff_max, _mean, _std, rollout_actor_probs_pearson_corr             on probabilities
    rollout_is_mean, _max, _min                                                       W as it is
    ess/raw, ess/raw/positive, ess/raw/negative     (sum W)^2 / (n sum W^2) over sequences, all and by the sign of A
    ess/used, ...                                   the same of the coefficients that were used
    k_hat                    shape of the tail of W (`stages.pareto`); absent where there is no tail to fit
    share/coefficient_below_0.01, share/clamped, share/masked, share/masked/positive, share/masked/negative
    share/masked/length_UP_TO                       masked share of tokens by length of the sequence, powers of two
    unusable_tokens                                 tokens without a finite log-ratio; they enter no other number
    groups, incomplete_groups                       of the whole batch, whatever part of it is looked at
    log_w/mean, log_w/min, log_w/max
    log_w/staleness, log_w/chip                     means over the sequences whose pi_old is known

Logs are held within +-20 before `exp`, as everywhere. A number that is not defined is absent, never NaN.
"""

import math

import torch
from torch import Tensor

from hetero_rl.estimators.batch import Coefficients, PreparedBatch
from hetero_rl.estimators.stages.edge import LOG_RATIO_BOUND
from hetero_rl.estimators.stages.level import segment_sum
from hetero_rl.estimators.stages.pareto import pareto_smooth

__all__ = ["diagnostics", "diagnostics_by", "effective_share"]

SMALL_COEFFICIENT = 0.01
"""A sequence whose mean coefficient is below this has no say in the step."""


def diagnostics(batch: PreparedBatch, coefficients: Coefficients, log_probs: Tensor) -> dict[str, float]:
    """All numbers of a step, or of any part of it.

    Args:
        batch: The prepared batch, or a selection of it.
        coefficients: Its coefficients.
        log_probs: log pi of each token [n], without gradients.

    Raises:
        ValueError: log_probs does not have one number per token.
    """
    recorded = batch.recorded
    if log_probs.shape != recorded.behavior_log_probs.shape:
        raise ValueError(
            f"log_probs has shape {tuple(log_probs.shape)}; {tuple(recorded.behavior_log_probs.shape)} is required"
        )
    current, behavior = log_probs.detach().double(), recorded.behavior_log_probs.double()
    usable = (current - behavior).isfinite()
    numbers = {name: fact for name, fact in batch.facts.items() if math.isfinite(fact)}
    numbers["unusable_tokens"] = float((~usable).sum())
    if bool(usable.any()):
        numbers |= _token_numbers(current[usable], behavior[usable])
        numbers |= _perplexities(current, behavior, usable, recorded.lengths)
    return numbers | _weight_numbers(batch, coefficients) | _share_numbers(batch, coefficients)


def diagnostics_by(
    labels: list[str], batch: PreparedBatch, coefficients: Coefficients, log_probs: Tensor
) -> dict[str, dict[str, float]]:
    """The same numbers for each label, such as the backend of each sequence.

    Args:
        labels: One for each sequence [s].
        batch: The prepared batch.
        coefficients: Its coefficients.
        log_probs: log pi of each token [n], without gradients.
    """
    if len(labels) != batch.recorded.lengths.shape[0]:
        raise ValueError(f"labels has {len(labels)} entries; {batch.recorded.lengths.shape[0]} are required")
    found = {}
    for label in sorted(set(labels)):
        chosen = torch.tensor([index for index, other in enumerate(labels) if other == label])
        part, tokens = batch.select(chosen), batch.tokens_of(chosen)
        found[label] = diagnostics(part, coefficients.select(chosen), log_probs[tokens])
    return found


def effective_share(log_weights: Tensor) -> float:
    """(sum w)^2 / (n sum w^2) of weights given by their logs [n], from 1/n to 1; 0 where every weight is 0."""
    wide = log_weights.double()
    total = float(wide.logsumexp(0)) if wide.numel() else -math.inf
    if not math.isfinite(total):
        return 0.0
    return math.exp(2 * total - float((2 * wide).logsumexp(0))) / wide.numel()


def _token_numbers(current: Tensor, behavior: Tensor) -> dict[str, float]:
    log_r = (current - behavior).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    ratio = log_r.exp()
    pi, mu = current.clamp(max=0).exp(), behavior.clamp(max=0).exp()
    gap = (pi - mu).abs()
    numbers = {
        "kl": -float(log_r.mean()),
        "k2": float(log_r.square().mean()) / 2,
        "k3_kl": float((ratio - 1 - log_r).mean()),
        "chi2_token": float(ratio.square().mean()) - 1,
        "rollout_probs_diff_max": float(gap.max()),
        "rollout_probs_diff_mean": float(gap.mean()),
        "rollout_probs_diff_std": float(gap.std(correction=0)),
    }
    spread = float((pi - pi.mean()).square().sum() * (mu - mu.mean()).square().sum())
    if spread > 0:
        covariance = float(((pi - pi.mean()) * (mu - mu.mean())).sum())
        numbers["rollout_actor_probs_pearson_corr"] = covariance / math.sqrt(spread)
    return numbers


def _perplexities(current: Tensor, behavior: Tensor, usable: Tensor, lengths: Tensor) -> dict[str, float]:
    counts = segment_sum(usable.double(), lengths)
    present = counts > 0
    log_ppl = [
        -(segment_sum(torch.where(usable, column, 0.0), lengths)[present] / counts[present]).clamp(
            -LOG_RATIO_BOUND, LOG_RATIO_BOUND
        )
        for column in (current, behavior)
    ]
    difference = log_ppl[1] - log_ppl[0]
    return {
        "training_log_ppl": float(log_ppl[0].mean()),
        "rollout_log_ppl": float(log_ppl[1].mean()),
        "training_ppl": float(log_ppl[0].exp().mean()),
        "rollout_ppl": float(log_ppl[1].exp().mean()),
        "log_ppl_diff": float(difference.mean()),
        "log_ppl_abs_diff": float(difference.abs().mean()),
        "log_ppl_diff_max": float(difference.max()),
        "log_ppl_diff_min": float(difference.min()),
        "ppl_ratio": float((-difference).exp().mean()),
    }


def _weight_numbers(batch: PreparedBatch, coefficients: Coefficients) -> dict[str, float]:
    log_w = coefficients.log_importance_ratio.double()
    held = log_w.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    weights = held.exp()
    numbers = {
        "log_w/mean": float(log_w.mean()),
        "log_w/min": float(log_w.min()),
        "log_w/max": float(log_w.max()),
        "rollout_is_mean": float(weights.mean()),
        "rollout_is_max": float(weights.max()),
        "rollout_is_min": float(weights.min()),
        "chi2_seq": float(weights.square().mean()) - 1,
    }
    parts = {"staleness": coefficients.staleness_log_ratio, "chip": coefficients.chip_log_ratio}
    for name, part in parts.items():
        known = None if part is None else part[part.isfinite()].double()
        if known is not None and known.numel():
            numbers[f"log_w/{name}"] = float(known.mean())
    k_hat = pareto_smooth(log_w).k_hat
    if math.isfinite(k_hat):
        numbers["k_hat"] = k_hat
    used = coefficients.sequence_means.double().log()
    for name, logs in (("raw", log_w), ("used", used)):
        for sign, chosen in _signs(batch.advantages):
            if bool(chosen.any()):
                numbers[f"ess/{name}{sign}"] = effective_share(logs[chosen])
    return numbers


def _share_numbers(batch: PreparedBatch, coefficients: Coefficients) -> dict[str, float]:
    lengths = coefficients.lengths
    dropped = lengths.double() - segment_sum(coefficients.keep.double(), lengths)
    numbers = {
        "share/coefficient_below_0.01": _mean(coefficients.sequence_means < SMALL_COEFFICIENT),
        "share/clamped": _mean(coefficients.clamped),
    }
    for sign, chosen in _signs(batch.advantages):
        if bool(chosen.any()):
            numbers[f"share/masked{sign}"] = float(dropped[chosen].sum() / lengths[chosen].sum())
    buckets = torch.ceil(torch.log2(lengths.double())).to(torch.int64)
    for bucket in sorted(set(buckets.tolist())):
        chosen = buckets == bucket
        numbers[f"share/masked/length_{2**bucket}"] = float(dropped[chosen].sum() / lengths[chosen].sum())
    return numbers


def _signs(advantages: Tensor) -> tuple[tuple[str, Tensor], ...]:
    """All sequences, those with A > 0 and those with A < 0, with the end of their metrics' names."""
    return (
        ("", torch.ones_like(advantages, dtype=torch.bool)),
        ("/positive", advantages > 0),
        ("/negative", advantages < 0),
    )


def _mean(flags: Tensor) -> float:
    return float(flags.double().mean())
