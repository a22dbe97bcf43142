"""Which of the receiver's loops is the fastest on this processor: found out by trying. Needs numba."""

import functools
import time
from collections.abc import Callable

import llvmlite.binding
import numpy as np
from numpy.typing import NDArray

from hetero_rl.weights import pieces, receiver, wide_receiver
from hetero_rl.weights.learned import LAYOUTS, Bits, Layout, Learned
from hetero_rl.wire.messages import DataType

__all__ = ["Decode", "fastest"]

Decode = Callable[..., None]
"""`receiver.decode`, or another that gives the same bits."""

_TRIED_ELEMENTS = 2**18
_TRIES = 5


@functools.cache
def fastest(data_type: DataType) -> Decode:
    """The loop to decode a type with; compiles what it tries, which is seconds the first time in an installation."""
    candidates = [receiver.decode]
    if _takes_entries_for_whole_vectors():
        candidates.append(wide_receiver.decode)
    return min(candidates, key=lambda decode: _least_seconds(decode, data_type))


def _takes_entries_for_whole_vectors() -> bool:
    """Whether another loop is worth compiling: where LLVM must take entries one by one, it always lost."""
    features = llvmlite.binding.get_host_cpu_features()
    return all(features.get(name, False) for name in ("avx512f", "avx512dq", "avx512vl"))


def _least_seconds(decode: Decode, data_type: DataType) -> float:
    """The least time of a few tries; the first one compiles and does not count."""
    bits, words = _sample(LAYOUTS[data_type], data_type.item_size)
    tries = [_seconds(decode, LAYOUTS[data_type], bits.copy(), words) for _ in range(1 + _TRIES)]
    return min(tries[1:])


def _sample(layout: Layout, item_size: int) -> tuple[Bits, NDArray[np.uint32]]:
    """Elements with about the exponents of trained weights. There, words at random say what words of an update say."""
    random = np.random.default_rng(0)
    weights = random.normal(0, 0.02, _TRIED_ELEMENTS).astype(np.float32).view(np.uint32)
    exponents = (weights >> 23) & ((1 << layout.exponent_bits) - 1)
    bits = (exponents << layout.exponent_shift).astype(f"u{item_size}")
    return bits, random.integers(0, 2**32, _TRIED_ELEMENTS, np.uint32)


def _seconds(decode: Decode, layout: Layout, bits: Bits, words: NDArray[np.uint32]) -> float:
    arguments = layout.exponent_shift, layout.sign, *Learned(layout).arrays()
    before = time.perf_counter()
    decode(bits, words, pieces.MOST_LANES, *arguments)
    return time.perf_counter() - before
