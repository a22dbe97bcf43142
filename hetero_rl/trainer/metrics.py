"""The numbers of one step: what goes to metrics.jsonl, TensorBoard and the live view. Pure.

    reward/mean, reward/std            rewards of the trained sequences
    lag/mean, lag/max                  lag of a sequence: that of its most distant token, in optimizer steps
    log_importance_ratio/mean          log W = sum_t log(pi/mu), mean over sequences
    ess, ess/raw                       effective sample size of the coefficients, and of W, as a share of S
    share/clamped, masked, dropped     shares of sequences; dropped counts those that never reached the estimator
    kl/k1, kl/k3                       estimates of KL(mu || pi) per token: mean of -log r, and of r - 1 - log r, r = pi/mu
    trained_tokens/BACKEND             completion tokens of each backend's sequences
    log_prob_gap/mean, max             |log mu - log pi| per token; /BACKEND where a batch has several
    coefficient/mean                   what multiplied the advantage, mean over tokens
    chip/mean, staleness/mean          parts of log W of the sequences that were split, where there are any
    entropy/mean                       entropy of the policy's distributions in nats, with an entropy bonus
    reference_kl/k3                    estimate of KL(pi || pi_ref) per token, with a reference
    tokens_per_second/generated        completion tokens of the batch per second of the step
    tokens_per_second/trained          prompt and completion tokens per second of forward, backward and optimizer
    computed_tokens/share              tokens computed, padding included, over prompt and completion tokens; below 1
                                       where prompts are shared
    diagnostics/NAME                   the numbers of `hetero_rl.estimators.diagnostics`
    diagnostics/NAME/BACKEND           the same of each backend's sequences, where a batch has several
    wait_seconds/CAUSE                 seconds that the device waited since the record before
    checkpoint/failures                checkpoints in a row that failed, for example on a full disk
    step_seconds                       seconds since the record before

Shapes: S sequences, N action tokens of them.
"""

import math

import torch
from torch import Tensor

from hetero_rl.estimators.batch import Coefficients
from hetero_rl.estimators.diagnostics import diagnostics, diagnostics_by, effective_share
from hetero_rl.trainer.batch import TrainingBatch
from hetero_rl.trainer.step import StepResult
from hetero_rl.wire.messages import Disposition, SequenceOutcome

__all__ = ["batch_metrics", "result_metrics", "sequence_means", "sequence_outcomes"]


def sequence_means(values: Tensor, lengths: Tensor) -> Tensor:
    """Mean over the tokens of each sequence: [N] values in segments `lengths` [S]."""
    sequence = torch.repeat_interleave(torch.arange(lengths.numel()), lengths)
    sums = torch.zeros(lengths.numel(), dtype=values.dtype).index_add_(0, sequence, values)
    return sums / lengths


def batch_metrics(batch: TrainingBatch) -> dict[str, float]:
    """Metrics that need no policy."""
    total = batch.sequences + len(batch.dropped)
    values = {"share/dropped": len(batch.dropped) / total if total else 0.0}
    for cause in (Disposition.DROPPED_STALE, Disposition.DROPPED_INCOMPLETE):
        count = sum(entry.cause is cause for entry in batch.dropped)
        values[f"dropped/{cause.name.removeprefix('DROPPED_').lower()}"] = float(count)
    if batch.sequences:
        values |= {
            "reward/mean": batch.rewards.mean().item(),
            "reward/std": batch.rewards.std(correction=0).item(),
            "lag/mean": batch.lags.double().mean().item(),
            "lag/max": float(batch.lags.max()),
            "completion_tokens/mean": batch.lengths.double().mean().item(),
        }
    return values


def result_metrics(batch: TrainingBatch, result: StepResult) -> dict[str, float]:
    """Metrics of a step that was made."""
    coefficients = result.coefficients
    log_ratio = (result.log_probs - batch.behavior_log_probs[batch.action_mask]).double()
    return {
        "loss": result.loss,
        "gradient_norm": result.gradient_norm,
        "learning_rate": result.learning_rate,
        "log_importance_ratio/mean": coefficients.log_importance_ratio.double().mean().item(),
        "ess": effective_share(coefficients.sequence_means.log()),
        "ess/raw": effective_share(coefficients.log_importance_ratio),
        "share/clamped": coefficients.clamped.double().mean().item(),
        "share/masked": coefficients.masked.double().mean().item(),
        "kl/k1": -log_ratio.mean().item(),
        "kl/k3": (log_ratio.expm1() - log_ratio).mean().item(),
        "coefficient/mean": coefficients.values.double().mean().item(),
        "tokens_per_second/trained": sum(batch.total_lengths) / result.seconds,
        "computed_tokens/share": result.padded_tokens / sum(batch.total_lengths),
        **_term_metrics(result),
        **_trained_tokens(batch),
        **_gap_metrics(batch, log_ratio.abs()),
        **_diagnostics(batch, result),
        **_split_metrics(coefficients),
    }


def _term_metrics(result: StepResult) -> dict[str, float]:
    """Of the parts that the loss has besides the estimator."""
    values = {}
    if result.entropies is not None:
        values["entropy/mean"] = result.entropies.double().mean().item()
    if result.reference_log_probs is not None:
        log_ratio = (result.reference_log_probs - result.log_probs).double()
        values["reference_kl/k3"] = (log_ratio.expm1() - log_ratio).mean().item()
    return values


def sequence_outcomes(batch: TrainingBatch, result: StepResult | None) -> list[SequenceOutcome]:
    """What became of every sequence of a step: the trained ones in the batch's order, then the dropped ones."""
    dropped = [
        SequenceOutcome(
            group_id=entry.group_id,
            sample_index=entry.sample_index,
            reward=entry.reward,
            advantage=0.0,
            log_importance_ratio=0.0,
            coefficient=0.0,
            mean_absolute_gap=0.0,
            max_absolute_gap=0.0,
            lag=entry.lag,
            disposition=entry.cause,
        )
        for entry in batch.dropped
    ]
    return dropped if result is None else [*_trained_outcomes(batch, result), *dropped]


def _trained_outcomes(batch: TrainingBatch, result: StepResult) -> list[SequenceOutcome]:
    lengths = batch.action_lengths
    gaps = (batch.behavior_log_probs[batch.action_mask] - result.log_probs).abs()
    coefficients = sequence_means(result.coefficients.values, lengths).tolist()
    mean_gaps = sequence_means(gaps, lengths).tolist()
    largest_gaps = [float(part.max()) for part in torch.split(gaps, lengths.tolist())]
    masked = result.coefficients.masked.tolist()
    return [
        SequenceOutcome(
            group_id=batch.group_ids[int(batch.group_of_sequence[index])],
            sample_index=batch.sample_indices[index],
            reward=float(batch.rewards[index]),
            advantage=float(result.prepared.advantages[index]),
            log_importance_ratio=float(result.coefficients.log_importance_ratio[index]),
            coefficient=coefficients[index],
            mean_absolute_gap=mean_gaps[index],
            max_absolute_gap=largest_gaps[index],
            lag=int(batch.lags[index]),
            disposition=Disposition.MASKED if masked[index] else Disposition.TRAINED,
            staleness_log_ratio=_known(result.coefficients.staleness_log_ratio, index),
            chip_log_ratio=_known(result.coefficients.chip_log_ratio, index),
        )
        for index in range(batch.sequences)
    ]


def _known(parts: Tensor | None, index: int) -> float | None:
    if parts is None:
        return None
    number = float(parts[index])
    return number if math.isfinite(number) else None


def _diagnostics(batch: TrainingBatch, result: StepResult) -> dict[str, float]:
    """Those of the step, and of each backend where there are several: of one they are the same numbers."""
    step = (result.prepared, result.coefficients, result.log_probs)
    values = {f"diagnostics/{name}": value for name, value in diagnostics(*step).items()}
    if len(set(batch.backends)) > 1:
        for backend, numbers in diagnostics_by(list(batch.backends), *step).items():
            own = {name: value for name, value in numbers.items() if name not in result.prepared.facts}
            values |= {f"diagnostics/{name}/{backend}": value for name, value in own.items()}
    return values


def _trained_tokens(batch: TrainingBatch) -> dict[str, float]:
    values: dict[str, float] = {}
    for backend, tokens in zip(batch.backends, batch.action_lengths.tolist(), strict=True):
        name = f"trained_tokens/{backend}"
        values[name] = values.get(name, 0.0) + tokens
    return values


def _gap_metrics(batch: TrainingBatch, gaps: Tensor) -> dict[str, float]:
    values = {"log_prob_gap/mean": gaps.mean().item(), "log_prob_gap/max": gaps.max().item()}
    backends = sorted(set(batch.backends))
    if len(backends) > 1:
        sequence = torch.repeat_interleave(torch.arange(batch.sequences), batch.action_lengths)
        for backend in backends:
            own = torch.tensor([name == backend for name in batch.backends])[sequence]
            values[f"log_prob_gap/mean/{backend}"] = gaps[own].mean().item()
    return values


def _split_metrics(coefficients: Coefficients) -> dict[str, float]:
    staleness, chip = coefficients.staleness_log_ratio, coefficients.chip_log_ratio
    if staleness is None or chip is None or not bool(chip.isfinite().any()):
        return {}
    known = chip.isfinite()
    return {
        "chip/mean": chip[known].double().mean().item(),
        "staleness/mean": staleness[known].double().mean().item(),
        "share/split": known.double().mean().item(),
    }
