"""What a coded weight update is compared with: an entropy, and the best published codec. Needs numpy and zstandard."""

import numpy as np
from numpy.typing import NDArray

from hetero_rl.bench.weight_updates import Update
from hetero_rl.errors import ConfigError

__all__ = ["floor_given_exponent", "gap_xor_zstd"]

Bits = NDArray[np.uint16]

_PIECE = 2**20


def floor_given_exponent(update: Update) -> float:
    """Bytes of the positions and signed steps at their empirical entropy given the old exponent, over the whole model.

    The sum over exponents e of n_e * H2(p_e) for the positions and k_e * H(step | e) for the steps; no code whose only
    context is the exponent takes less.
    """
    elements = np.zeros(256, np.int64)
    keys = [np.empty(0, np.int64)]
    for old, new in update.pairs:
        for start in range(
            0, old.size, _PIECE
        ):  # counting widens elements to 64 bits: a piece of them at a time
            before, after = old[start : start + _PIECE], new[start : start + _PIECE]
            elements += np.bincount((before >> 7) & 255, minlength=256)
            changed = np.flatnonzero(before != after)
            steps = _ordered(after[changed]) - _ordered(before[changed])
            keys.append(((before[changed] >> 7) & 255).astype(np.int64) << 20 | (steps + 2**17))
    kinds, counts = np.unique(np.concatenate(keys), return_counts=True)
    changes = np.bincount(kinds >> 20, weights=counts, minlength=256)
    shares = changes / np.maximum(elements, 1)
    bits = float((elements * (_entropy(shares) + _entropy(1 - shares))).sum())
    return (bits - float((counts * np.log2(counts / changes[kinds >> 20])).sum())) / 8


def gap_xor_zstd(update: Update) -> int:
    """Bytes of 16-bit gaps and the XOR of old and new bits, both in one zstd stream of level 1 per tensor.

    A gap above 65535 is continued by an entry with gap 65535 and XOR 0.
    """
    try:
        import zstandard
    except ImportError as error:
        raise ConfigError("the baseline of this benchmark needs zstandard: pip install zstandard") from error
    compressor = zstandard.ZstdCompressor(level=1)
    return sum(len(compressor.compress(_gaps_and_masks(old, new))) for old, new in update.pairs)


def _gaps_and_masks(old: Bits, new: Bits) -> bytes:
    positions = np.flatnonzero(old != new)
    gaps = np.diff(positions, prepend=-1) - 1
    continued = gaps // 65536
    entries = np.cumsum(continued + 1) - 1
    coded_gaps = np.full(int((continued + 1).sum()), 65535, np.uint16)
    masks = np.zeros(coded_gaps.size, np.uint16)
    coded_gaps[entries] = gaps % 65536
    masks[entries] = old[positions] ^ new[positions]
    return coded_gaps.tobytes() + masks.tobytes()


def _ordered(bits: Bits) -> NDArray[np.int64]:
    wide = bits.astype(np.int64)
    return np.where(wide & 0x8000, 0xFFFF - wide, wide + 0x8000)


def _entropy(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    return -shares * np.log2(np.where(shares > 0, shares, 1))
