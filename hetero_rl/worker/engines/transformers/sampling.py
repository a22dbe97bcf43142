"""From logits to sampled tokens and their log-probabilities. Pure functions on tensors.

A token is drawn by inverting the cumulative distribution at one uniform number, which was drawn when the completion was
admitted. So a completion depends on its own seed, its prompt and the weights, never on what else is in the batch
(as far as the logits themselves do not).

Shapes: R rows being decoded, V entries of the vocabulary, M most new tokens.
"""

import hashlib
import secrets

import torch

__all__ = ["draw_tokens", "processed_log_probs", "sample_noise"]

# Keeps noise * total below total after rounding, so that the drawn index always exists.
_BELOW_ONE = 1.0 - 2.0**-52


def sample_noise(group_seed: int | None, sample_index: int, tokens: int) -> torch.Tensor:
    """Uniform numbers in [0, 1), one for each token that a sample of a group may have.

    Returns:
        float64 [tokens]; the same for the same seed and index, fresh when the group has no seed.
    """
    if group_seed is None:
        seed = secrets.randbits(63)
    else:
        named = f"{group_seed}:{sample_index}".encode()
        seed = int.from_bytes(hashlib.sha256(named).digest()[:8], "little") >> 1
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(tokens, generator=generator, dtype=torch.float64) * _BELOW_ONE


def processed_log_probs(
    logits: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor
) -> torch.Tensor:
    """Log-probabilities of the distribution after temperature, then top_k, then top_p, renormalised.

    Args:
        logits: float32 [R, V].
        temperature: float32 [R], above 0.
        top_p: float32 [R] in (0, 1]; the smallest set of most probable tokens with at least this mass is kept.
        top_k: int64 [R]; 0 keeps everything. Tokens that tie with the last one kept are kept too.

    Returns:
        float32 [R, V]; -inf for tokens that were cut off.
    """
    scaled = logits / temperature[:, None]
    ordered, order = scaled.sort(dim=-1, descending=True)
    vocabulary_size = logits.shape[-1]
    last_kept = torch.where(top_k > 0, top_k, vocabulary_size).clamp(max=vocabulary_size) - 1
    beyond_k = ordered < ordered.gather(-1, last_kept[:, None])
    ordered = ordered.masked_fill(beyond_k, -torch.inf)
    probabilities = ordered.softmax(dim=-1)
    mass_before = probabilities.cumsum(dim=-1) - probabilities
    # top_p = 1 keeps everything: rounding in the cumulative sum must not cut the tail off.
    beyond_p = (mass_before >= top_p[:, None]) & (top_p[:, None] < 1)
    beyond_p[:, 0] = False
    kept = ordered.masked_fill(beyond_p, -torch.inf)
    return torch.empty_like(scaled).scatter_(-1, order, kept).log_softmax(dim=-1)


def draw_tokens(log_probs: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Draws one token for each row by inverting the cumulative distribution.

    Args:
        log_probs: float32 [R, V].
        noise: float64 [R] in [0, 1).

    Returns:
        int64 [R]; never a token of probability 0.
    """
    cumulative = log_probs.exp().cumsum(dim=-1, dtype=torch.float64)
    target = noise[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True)[:, 0]
