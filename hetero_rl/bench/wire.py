"""`hetero-rl bench wire`: what the column encoding saves, and what a durable, validated submission costs.

Encoding starts from a batch as the worker holds it and ends with the bytes for the network; decoding is the way back. Both
are compared with the fastest repeated-field variant of the same data, in CPU time. Ingest is in `ingest`.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from hetero_rl.bench import ingest, repeated
from hetero_rl.bench.samples import sample_batch
from hetero_rl.bench.schema import BenchReport, Figure
from hetero_rl.bench.timing import Ratio, compare, fastest
from hetero_rl.v1 import trajectory_pb2
from hetero_rl.wire.column_codec import ColumnEncoding
from hetero_rl.wire.columns import (
    Float32Bytes,
    Int32Bytes,
    float32_column,
    float32_view,
    int32_column,
    int32_view,
)
from hetero_rl.wire.convert.trajectories import trajectory_batch_from_proto, trajectory_batch_to_proto
from hetero_rl.wire.messages import TrajectoryBatch

_Number = TypeVar("_Number", int, float)

__all__ = ["bytes_per_token", "encoding_figures", "run", "size_figures"]

_SAMPLES, _TOKENS = 16, 512
_REPEATS = 20
"""Encodings of one measurement: one alone takes well under a millisecond."""


def run(*, quick: bool = False) -> BenchReport:
    """Measures all figures of the wire.

    Args:
        quick: Take seconds; the figures prove nothing.
    """
    tokens = 64 if quick else _TOKENS
    batch = sample_batch(samples=_SAMPLES, tokens_each=tokens, seed=1)
    shuffled = sample_batch(samples=_SAMPLES, tokens_each=tokens, seed=1, shuffled_ids=True)
    figures = (
        *encoding_figures(batch, pairs=5 if quick else 15),
        *size_figures(batch, shuffled),
        *ingest.ingest_figures(quick=quick),
    )
    return BenchReport(bench="wire", figures=figures)


def encode(batch: TrajectoryBatch, encoding: ColumnEncoding) -> bytes:
    """The bytes of a batch on the wire."""
    return trajectory_batch_to_proto(batch, encoding).SerializeToString()


def decode(packed: bytes) -> TrajectoryBatch:
    """The batch of bytes from the wire."""
    return trajectory_batch_from_proto(trajectory_pb2.TrajectoryBatch.FromString(packed))


def encoding_figures(batch: TrajectoryBatch, *, pairs: int) -> tuple[Figure, ...]:
    """Speed of encoding and decoding over repeated fields."""
    return (*_encode_figures(batch, pairs), *_list_figures(batch, pairs), *_decode_figures(batch, pairs))


def _encode_figures(batch: TrajectoryBatch, pairs: int) -> tuple[Figure, ...]:
    name, baseline = _fastest(repeated.from_columns(batch))
    words = f"protobuf repeated fields filled from the same columns ({name}, the fastest variant), CPU time"
    raw = _compare(functools.partial(encode, batch, ColumnEncoding.RAW), baseline, pairs)
    planes = _compare(functools.partial(encode, batch, ColumnEncoding.BYTE_PLANES), baseline, pairs)
    return (
        raw.figure("encode_over_repeated_fields", f"raw columns against {words}", target=5.0),
        planes.figure("encode_planes_over_repeated_fields", f"compressed columns against {words}"),
    )


def _list_figures(batch: TrajectoryBatch, pairs: int) -> tuple[Figure, ...]:
    """The same from lists of Python numbers, which engines hand over: making a column of them is part of the work."""
    token_ids = _split(list(int32_view(batch.token_ids)), batch.lengths)
    log_probs = _split(list(float32_view(batch.log_probs or b"")), batch.lengths)
    name, baseline = _fastest(repeated.from_lists(batch, token_ids, log_probs))

    def from_lists() -> bytes:
        ids = Int32Bytes(b"".join([int32_column(part) for part in token_ids]))
        numbers = Float32Bytes(b"".join([float32_column(part) for part in log_probs]))
        return encode(dataclasses.replace(batch, token_ids=ids, log_probs=numbers), ColumnEncoding.RAW)

    ratio = _compare(from_lists, baseline, pairs)
    words = f"raw columns made from Python lists against repeated fields filled from them ({name}), CPU time"
    return (ratio.figure("encode_lists_over_repeated_fields", words),)


def _decode_figures(batch: TrajectoryBatch, pairs: int) -> tuple[Figure, ...]:
    variants: dict[str, Callable[[], object]] = {}
    for form in repeated.id_formats():
        message = form.message(
            ids=int32_view(batch.token_ids), log_probs=float32_view(batch.log_probs or b"")
        )
        packed = message.SerializeToString()
        variants[f"{form.name} to columns"] = functools.partial(repeated.to_columns, form, packed)
    name, baseline = _fastest(variants)
    words = f"protobuf repeated fields read into columns ({name}, the fastest variant), CPU time"
    figures = []
    for encoding, figure in (
        (ColumnEncoding.RAW, "decode_over_repeated_fields"),
        (ColumnEncoding.BYTE_PLANES, "decode_planes_over_repeated_fields"),
    ):
        packed = encode(batch, encoding)
        ratio = _compare(functools.partial(decode, packed), baseline, pairs)
        figures.append(ratio.figure(figure, f"{encoding.name} columns against {words}"))
    return tuple(figures)


def _fastest(variants: Mapping[str, Callable[[], object]]) -> tuple[str, Callable[[], object]]:
    name = fastest(variants, clock=time.process_time)
    return name, variants[name]


def _compare(candidate: Callable[[], object], baseline: Callable[[], object], pairs: int) -> Ratio:
    return compare(_repeat(candidate), _repeat(baseline), pairs=pairs, clock=time.process_time)


def _repeat(work: Callable[[], object]) -> Callable[[], None]:
    def repeated_work() -> None:
        for _ in range(_REPEATS):
            work()

    return repeated_work


def size_figures(batch: TrajectoryBatch, shuffled: TrajectoryBatch) -> tuple[Figure, ...]:
    """Bytes of a whole submission's batch for each token, compressed without loss; the same on every machine."""
    ordered, without_order = bytes_per_token(batch), bytes_per_token(shuffled)
    raw = bytes_per_token(batch, ColumnEncoding.RAW)
    varint = len(repeated.from_columns(batch)["varint from a list"]()) / sum(batch.lengths)
    others = f"raw columns take {raw:.2f}, repeated fields {varint:.2f}"
    return (
        Figure(
            name="bytes_per_token",
            value=ordered,
            unit="bytes",
            low=ordered,
            high=ordered,
            target=5.2,
            relation="<=",
            baseline=f"id, float32 log-probability and everything else of the batch; {others}",
        ),
        Figure(
            name="bytes_per_token_shuffled_ids",
            value=without_order,
            unit="bytes",
            low=without_order,
            high=without_order,
            baseline="the same with a vocabulary in random order, which no tokenizer has",
        ),
    )


def bytes_per_token(batch: TrajectoryBatch, encoding: ColumnEncoding = ColumnEncoding.BYTE_PLANES) -> float:
    """Size of an encoded batch, metadata included, over its tokens; refuses an encoding that loses anything."""
    packed = encode(batch, encoding)
    if decode(packed) != batch:
        raise AssertionError(f"{encoding.name} does not give back what was encoded")
    return len(packed) / sum(batch.lengths)


def _split(numbers: list[_Number], lengths: tuple[int, ...]) -> list[list[_Number]]:
    parts, start = [], 0
    for length in lengths:
        parts.append(numbers[start : start + length])
        start += length
    return parts
