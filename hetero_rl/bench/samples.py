"""Made-up completions whose numbers are as hard to compress as real ones.

Each token is drawn from a softmax over candidates of its own: how peaked it is varies from token to token, as with a
language model, from nearly certain to nearly uniform. Candidates follow Zipf's law over a vocabulary of today's size. A
byte-pair tokenizer numbers its tokens in the order in which it found them frequent; on text that it was not made from, the
logarithms of id and frequency rank differ by a standard deviation of about 1 (measured with 48 000 tokens on program text
and prose), and so they do here, or the ids are in no order at all. Log-probabilities are computed in double precision and
rounded once, so that their low bits are noise.
"""

import bisect
import itertools
import math
import random

from hetero_rl.wire.columns import float32_column, int32_column
from hetero_rl.wire.messages import FinishReason, TrajectoryBatch, VersionSpan

__all__ = ["STOP_TOKEN", "VOCABULARY_SIZE", "sample_batch"]

VOCABULARY_SIZE = 151_936
STOP_TOKEN = 0

_CANDIDATES = 16
_ORDER_NOISE = 1.0
_PEAKEDNESS = (0.3, 12.0)
"""Range of the standard deviation of a token's logits; log-uniform."""


def sample_batch(
    *, samples: int, tokens_each: int, seed: int, group_id: str = "group-0", shuffled_ids: bool = False
) -> TrajectoryBatch:
    """Completions of one group by weight version 1, each of `tokens_each` tokens and ended by the length limit."""
    source = random.Random(seed)  # ruff: ignore[suspicious-non-cryptographic-random-usage]  # made-up data, not a secret
    draw = _CandidateSource(source, shuffled=shuffled_ids)
    token_ids: list[int] = []
    log_probs: list[float] = []
    for _ in range(samples * tokens_each):
        token_id, log_prob = _sample_token(source, draw)
        token_ids.append(token_id)
        log_probs.append(log_prob)
    return TrajectoryBatch(
        group_id=group_id,
        sample_indices=tuple(range(samples)),
        lengths=(tokens_each,) * samples,
        token_ids=int32_column(token_ids),
        log_probs=float32_column(log_probs),
        version_spans=tuple(VersionSpan(sample, 0, tokens_each, 1) for sample in range(samples)),
        finish_reasons=(FinishReason.LENGTH,) * samples,
        numerics_id="0123456789abcdef",
        generation_seconds=1.0,
    )


class _CandidateSource:
    """Token ids by Zipf's law, without the stop token."""

    def __init__(self, source: random.Random, *, shuffled: bool) -> None:
        ranks = range(1, VOCABULARY_SIZE)
        keys = [
            source.random() if shuffled else math.log(rank) + source.gauss(0, _ORDER_NOISE) for rank in ranks
        ]
        by_id = sorted(ranks, key=lambda rank: keys[rank - 1])
        self._source = source
        self._ids = [0] * len(by_id)
        for position, rank in enumerate(by_id):
            self._ids[rank - 1] = position + 1
        self._cumulative = list(itertools.accumulate(1 / rank for rank in ranks))

    def __call__(self) -> int:
        point = self._source.random() * self._cumulative[-1]
        return self._ids[bisect.bisect_left(self._cumulative, point)]


def _sample_token(source: random.Random, draw: _CandidateSource) -> tuple[int, float]:
    low, high = _PEAKEDNESS
    spread = low * (high / low) ** source.random()
    logits = [source.gauss(0, spread) for _ in range(_CANDIDATES)]
    largest = max(logits)
    weights = [math.exp(logit - largest) for logit in logits]
    (chosen,) = source.choices(range(_CANDIDATES), weights)
    return draw(), logits[chosen] - largest - math.log(math.fsum(weights))
