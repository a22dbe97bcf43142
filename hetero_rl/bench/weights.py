"""`hetero-rl bench weights`: size of a weight update against its entropy and a published codec, and the codec's speed.

Real updates are successive policy-gradient steps at learning rate 1e-6; the worst of those that change 0.5 to 4.5 % of
the elements counts. Synthetic ones go from 0.3 to 50 %. Speeds are CPU time against copying the bytes of the model in
pieces that no cache holds. The line and the bulk path go through a real hub, in a process of its own.
"""

import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

from hetero_rl.bench.schema import BenchReport, Figure
from hetero_rl.bench.timing import MIN_PAIRS, Ratio, compare
from hetero_rl.bench.weight_bulk import bulk_figures
from hetero_rl.bench.weight_floors import floor_given_exponent, gap_xor_zstd
from hetero_rl.bench.weight_link import link_figures
from hetero_rl.bench.weight_updates import Update, real_updates, synthetic_update
from hetero_rl.weights.decoders import fastest
from hetero_rl.weights.delta import DeltaCoder, compare_bits
from hetero_rl.wire.messages import DataType

__all__ = ["decode_update", "encode_update", "run"]

_SYNTHETIC_ELEMENTS = 30_000_000
_SYNTHETIC_SCALES = (5e-8, 3e-7, 1e-6, 4e-6, 4e-5)
"""Standard deviations of the step: about 0.3, 1.2, 3.3, 10 and 50 % of the elements change."""
_DENSITIES = (0.005, 0.045)
_FLOOR = "entropy of positions and signed steps given the old exponent, over the whole model"
_CODEC = "16-bit gaps and XOR of the bits, zstd level 1"
_COPY = "copying the model's bytes, CPU time, one thread"


def run(*, quick: bool = False) -> BenchReport:
    """Measures sizes and speeds.

    Args:
        quick: Take seconds on a tiny model; the figures prove nothing.
    """
    updates = []
    for update in real_updates(quick=quick):
        _say(f"{update.name}: {update.density:.2%} of {update.elements:,} elements changed")
        updates.append(update)
    judged = [update for update in updates if _DENSITIES[0] <= update.density <= _DENSITIES[1]] or updates
    elements = 100_000 if quick else _SYNTHETIC_ELEMENTS
    densest = max(judged, key=lambda update: update.density)
    figures = _size_figures(judged, updates)
    _say("sizes are known; synthetic updates")
    figures.append(_synthetic_figure(elements))
    _say("speeds")
    figures += _speed_figures(densest, quick=quick)
    _say("the slow line")
    figures += link_figures(densest, quick=quick)
    _say("bytes in bulk")
    figures += bulk_figures(quick=quick)
    return BenchReport(bench="weights", figures=tuple(figures))


def _say(text: str) -> None:
    """Minutes go by: tells how far it is, beside the report."""
    sys.stderr.write(f"weights: {text}\n")
    sys.stderr.flush()


def encode_update(update: Update) -> list[bytes]:
    """The coded tensors of an update, comparison included."""
    coder = DeltaCoder()
    return [coder.encode(DataType.BFLOAT16, old, compare_bits(old, new)) for old, new in update.pairs]


def decode_update(payloads: Sequence[bytes], held: Sequence[np.ndarray]) -> None:
    """Applies coded tensors in place."""
    coder = DeltaCoder()
    for payload, bits in zip(payloads, held, strict=True):
        coder.decode(DataType.BFLOAT16, bits, memoryview(payload))


def _size(update: Update) -> int:
    """Coded bytes; raises AssertionError unless they give back every bit."""
    payloads = encode_update(update)
    held = [old.copy() for old, _ in update.pairs]
    decode_update(payloads, held)
    if not all(np.array_equal(bits, new) for bits, (_, new) in zip(held, update.pairs, strict=True)):
        raise AssertionError(f"{update.name} did not come back bit for bit")
    return sum(map(len, payloads))


def _size_figures(updates: Sequence[Update], of: Sequence[Update]) -> list[Figure]:
    """Of the updates that count, out of all that were made."""
    sizes = [_size(update) for update in updates]
    names = "; ".join(f"{update.name}, {update.density:.2%} changed" for update in updates)
    others = ", ".join(f"{update.density:.2%}" for update in of if update not in updates) or "none"
    to_floor = [size / floor_given_exponent(update) for size, update in zip(sizes, updates, strict=True)]
    to_codec = [size / gap_xor_zstd(update) for size, update in zip(sizes, updates, strict=True)]
    bits = [8 * size / update.changed for size, update in zip(sizes, updates, strict=True)]
    return [
        _worst("payload_over_floor_b", to_floor, f"{_FLOOR}; {names}", 1.15),
        _worst("payload_over_gap_xor_zstd", to_codec, f"{_CODEC}; {names}", 0.7),
        _worst("bits_per_change", bits, names, unit="bits"),
        _worst(
            "density",
            [100 * update.density for update in updates],
            f"{names}; beyond what counts: {others}",
            unit="%",
        ),
    ]


def _synthetic_figure(elements: int) -> Figure:
    ratios = []
    for scale in _SYNTHETIC_SCALES:
        update = synthetic_update(elements, scale)
        ratios.append(_size(update) / gap_xor_zstd(update))
    baseline = f"{_CODEC}; {elements:,} weights of N(0, 0.02), 0.3 to 50 % changed"
    return _worst("synthetic_payload_over_gap_xor_zstd", ratios, baseline, 1.0)


def _worst(
    name: str, values: Sequence[float], baseline: str, target: float | None = None, unit: str = "ratio"
) -> Figure:
    return Figure(
        name=name,
        value=max(values),
        unit=unit,
        low=min(values),
        high=max(values),
        target=target,
        relation="<=" if target is not None else None,
        baseline=baseline,
    )


def _speed_figures(densest: Update, *, quick: bool) -> list[Figure]:
    """Speeds on the update that changes most: it costs most."""
    pairs = MIN_PAIRS if quick else _PAIRS
    copy = _copier(2 * densest.elements, block=2**20 if quick else _LARGER_THAN_CACHES)
    baseline = f"{_COPY}; {densest.name}, {densest.density:.2%} changed"
    encoding = _compare(lambda: encode_update(densest), copy, pairs)
    payloads = encode_update(densest)
    # Every run needs bits from before; they are copied outside of what is timed.
    fresh = iter([[old.copy() for old, _ in densest.pairs] for _ in range(pairs + 1)])
    decoding = _compare(lambda: decode_update(payloads, next(fresh)), copy, pairs)
    loop = fastest(DataType.BFLOAT16).__module__.rpartition(".")[2]
    return [
        encoding.figure("encode_over_memcpy", baseline, target=0.05),
        decoding.figure("decode_apply_over_memcpy", f"{baseline}; decoded by {loop}", target=0.1),
    ]


_PAIRS = 7
_LARGER_THAN_CACHES = 512 * 2**20  # some processors have 300 MiB


def _compare(candidate: Callable[[], object], baseline: Callable[[], object], pairs: int) -> Ratio:
    return compare(candidate, baseline, pairs=pairs, clock=time.process_time)


def _copier(size: int, block: int) -> Callable[[], None]:
    """Copies that many bytes, walking through buffers larger than a processor's cache."""
    # Written to, both: the kernel gives out pages of zeros when they are first touched, which a timed copy would pay for.
    source, target = np.ones(block, np.uint8), np.ones(block, np.uint8)
    cursor = 0

    def copy() -> None:
        nonlocal cursor
        left = size
        while left:
            piece = min(left, block - cursor)
            np.copyto(target[cursor : cursor + piece], source[cursor : cursor + piece])
            cursor = (cursor + piece) % block
            left -= piece

    return copy
