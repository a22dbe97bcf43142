"""Probe cards: a few fixed sequences with the trainer's own log-probabilities. Standard library only.

A worker scores the card of each version after loading it and before serving it. A conversion bug, a lost delta, a stale
cache or an output head left behind shows as a difference that no chip's arithmetic explains.
"""

import math
import random
from collections.abc import Iterable, Sequence
from itertools import starmap

from hetero_rl.errors import EngineError
from hetero_rl.wire.columns import Float32Bytes, count, float32_column, float32_view, int32_column
from hetero_rl.wire.messages import ProbeCard, ProbeResult, ScoreWork

__all__ = [
    "UNDEFINED_DIFFERENCE",
    "compare_probe",
    "make_probe_card",
    "probe_passes",
    "probe_score_work",
    "random_probe_sequences",
]

UNDEFINED_DIFFERENCE = 1e6
"""What a NaN or infinite log-probability counts as; a number, so that means stay finite, and above any tolerance."""


def random_probe_sequences(
    sequences: int, tokens: int, vocabulary_size: int, seed: int
) -> tuple[tuple[int, ...], ...]:
    """Sequences of uniformly drawn ids, the same for the same arguments: what to probe with when no text is at hand."""
    generator = random.Random(seed)  # ruff: ignore[suspicious-non-cryptographic-random-usage] - repeatable, not secret
    return tuple(tuple(generator.randrange(vocabulary_size) for _ in range(tokens)) for _ in range(sequences))


def make_probe_card(
    sequences: Sequence[Sequence[int]], log_probs: Iterable[float], tolerance: float
) -> ProbeCard:
    """A card of token sequences, each of at least 2 tokens.

    Args:
        sequences: Token ids of each sequence.
        log_probs: The trainer's log-probability of each token but the first of each sequence, one after another.
        tolerance: Largest mean absolute difference that is trusted, natural log units.

    Raises:
        ValueError: The numbers of tokens and log-probabilities do not fit.
    """
    lengths = tuple(len(sequence) for sequence in sequences)
    column = float32_column(log_probs)
    scored = sum(lengths) - len(lengths)
    if min(lengths, default=0) < 2 or count(column, 4) != scored:
        raise ValueError(
            f"a probe card of sequences of {lengths} tokens needs at least 2 tokens in each and {scored} "
            f"log-probabilities; got {count(column, 4)}"
        )
    ids = int32_column(token for sequence in sequences for token in sequence)
    return ProbeCard(lengths=lengths, token_ids=ids, log_probs=column, tolerance=tolerance)


def probe_score_work(card: ProbeCard, weight_version: int) -> ScoreWork:
    """The card as work for `Engine.score`."""
    return ScoreWork(
        score_id=f"probe-{weight_version}",
        lengths=card.lengths,
        token_ids=card.token_ids,
        weight_version=weight_version,
    )


def compare_probe(card: ProbeCard, worker_log_probs: Float32Bytes, weight_version: int) -> ProbeResult:
    """Differences, trainer minus worker, over the tokens of a card.

    Raises:
        EngineError: The worker's engine gave another number of log-probabilities than the card has.
    """
    expected, found = float32_view(card.log_probs), float32_view(worker_log_probs)
    if len(expected) != len(found) or not len(expected):
        raise EngineError(
            f"the engine gave {len(found)} log-probabilities for a probe card of {len(expected)} under version "
            f"{weight_version}; its scoring is not usable"
        )
    differences = list(starmap(_difference, zip(expected, found, strict=True)))
    tokens = len(differences)
    return ProbeResult(
        weight_version=weight_version,
        mean_absolute_difference=math.fsum(map(abs, differences)) / tokens,
        max_absolute_difference=max(map(abs, differences)),
        mean_difference=math.fsum(differences) / tokens,
        tokens=tokens,
        log_probs=worker_log_probs,
    )


def probe_passes(card: ProbeCard, result: ProbeResult) -> bool:
    """Whether a worker may serve after scoring a card."""
    return result.mean_absolute_difference <= card.tolerance


def _difference(trainer: float, worker: float) -> float:
    difference = trainer - worker
    return difference if math.isfinite(difference) else UNDEFINED_DIFFERENCE
