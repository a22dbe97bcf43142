"""The causes that a diagnosis can name, each with what to do about it. Texts only."""

import dataclasses

from hetero_rl.reports.findings import Finding, Verdict

__all__ = ["CAUSES", "Cause", "finding_of", "undecided"]


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """One cause. `{}` in its sentence is replaced by what was measured."""

    verdict: Verdict
    sentence: str
    next_step: str


CAUSES: dict[str, Cause] = {
    "off_by_one": Cause(
        Verdict.UNUSABLE,
        "off-by-one: each token carries the log-probability of its {} neighbour",
        "Fix the indexing where the engine's log-probabilities are read: the value of token t is at the logits of t - 1.",
    ),
    "temperature_applied_twice": Cause(
        Verdict.UNUSABLE,
        "the temperature was applied twice ({})",
        "Ask the engine for log-probabilities at one place only: raw and divide in one place, or processed and do not.",
    ),
    "temperature_not_applied": Cause(
        Verdict.UNUSABLE,
        "the log-probabilities are of the raw distribution, the temperature is missing ({})",
        "Set the engine's mode to processed log-probabilities, or sample at temperature 1.",
    ),
    "top_p_renormalised": Cause(
        Verdict.UNUSABLE,
        "top-p renormalisation: log-probabilities are of the truncated distribution, the log of the kept mass is missing{}",
        "Sample with top_p 1 and top_k 0 (look for defaults in generation_config.json), or report raw log-probabilities.",
    ),
    "constant_bias": Cause(
        Verdict.UNUSABLE,
        "a constant bias of {} nats on every log-probability",
        "Look for what is added after the softmax: a wrong normaliser, a logit bias, a penalty. No numerics shift all tokens.",
    ),
    "rounded_bfloat16": Cause(
        Verdict.CAUTION,
        "the log-probabilities have bfloat16 precision: rounded on the wire, or by a softmax in bfloat16{}",
        "Compute the log-softmax in float32 and send float32; the error of a sum grows with length.",
    ),
    "rounded_float16": Cause(
        Verdict.CAUTION,
        "the log-probabilities have float16 precision: rounded on the wire, or by a softmax in float16{}",
        "Compute the log-softmax in float32 and send float32; the error of a sum grows with length.",
    ),
    "drift_past_position": Cause(
        Verdict.UNUSABLE,
        "log-probabilities drift only past position {}",
        "Look at what changes there: a position table, rope scaling, a sliding window, a kernel for long sequences. Until "
        "then keep prompt plus completion below it.",
    ),
    "grows_with_position": Cause(
        Verdict.CAUTION,
        "the gap grows with the position, from about position {} on",
        "Compare attention and rope settings of both sides; keep sequences short until they agree.",
    ),
    "noise_on_log_probs": Cause(
        Verdict.CAUTION,
        "noise N(0, {}) on the log-probabilities themselves, the same for certain tokens and for unlikely ones",
        "A forward pass in low precision spares tokens of probability near 1; this does not. Look between softmax and wire.",
    ),
    "stale_weights": Cause(
        Verdict.UNUSABLE,
        "the weights were not updated: it still computes with version {}",
        "Check that the loader reached the serving process, and that its failure is not swallowed.",
    ),
    "stale_tensor": Cause(
        Verdict.UNUSABLE,
        "one tensor is stale: {}",
        "Check the name mapping of that tensor in the engine's loader, and whether it is packed or copied after loading.",
    ),
    "tied_head_stale": Cause(
        Verdict.UNUSABLE,
        "the tied output head was left behind at version {}",
        "The engine keeps a copy of the embedding for its head: refresh the copy after each load.",
    ),
    "prefix_cache_kept": Cause(
        Verdict.UNUSABLE,
        "the prefix cache was kept over the update: prompts still have the keys and values of version {}",
        "Reset the prefix cache with each update, and check that the reset is not refused while requests run.",
    ),
    "numerics_or_weights": Cause(
        Verdict.CAUTION,
        "the gap is above the floor of {}: the chip's numerics, or weights that are not the trainer's; this data cannot "
        "tell them apart",
        "Run `hetero-rl calibrate`, which changes the weights and back: wrong weights show then. If they are right, compare "
        "data types, attention implementation and fused kernels.",
    ),
    "distribution_or_weights": Cause(
        Verdict.UNUSABLE,
        "another distribution than the trainer's ({}): a temperature applied twice or not at all, or wrong weights; this data "
        "cannot tell them apart",
        "Run `hetero-rl calibrate`, which computes what each of them would give.",
    ),
    "too_little_data": Cause(
        Verdict.CAUTION,
        "only {} tokens to compare: too few to tell a cause",
        "Collect more tokens: longer sequences or more of them.",
    ),
    "not_finite": Cause(
        Verdict.UNUSABLE,
        "{} log-probabilities are not finite or above 0",
        "Such a token poisons every sum that it enters: find where the engine overflows or masks.",
    ),
}


def finding_of(code: str, detail: str, evidence: tuple[str, ...], subject: str = "") -> Finding:
    """The finding of a known cause."""
    cause = CAUSES[code]
    return Finding(
        verdict=cause.verdict,
        code=code,
        cause=cause.sentence.format(detail),
        evidence=evidence,
        next_step=cause.next_step,
        subject=subject,
    )


def undecided(first: Finding, second: Finding) -> Finding:
    """Two causes that the data cannot tell apart, as one finding."""
    return Finding(
        verdict=max(first.verdict, second.verdict),
        code=f"{first.code}|{second.code}",
        cause=f"{first.cause}; or {second.cause}; this data cannot tell them apart",
        evidence=(*first.evidence, *second.evidence),
        next_step=f"{first.next_step} If that is in order: {second.next_step}",
        subject=first.subject,
    )
