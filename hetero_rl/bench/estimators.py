"""`hetero-rl bench estimators`: what the weight stage of every preset costs, in time and in memory.

2,048 sequences of mean length 1,024 in float32 on one thread, in CPU time. The stage is everything between the
log-probabilities and the coefficients: `prepare` on the whole batch, with the current log-probabilities where the method
needs them, and `coefficients`. The forward pass is no part of it.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hetero_rl.bench.memory import can_measure, peak_growth
from hetero_rl.bench.schema import BenchReport, Figure
from hetero_rl.bench.timing import Ratio, compare
from hetero_rl.estimators import (
    Coefficients,
    Estimator,
    Needs,
    RecordedBatch,
    estimator_class,
    list_estimators,
    make_estimator,
)

__all__ = ["Sample", "make_sample", "run"]

_READ = "one pass in plain torch that forms the log-ratios of both columns and sums them per sequence, CPU time, one thread"
_FLAT = "(log_probs - behavior_log_probs).sum(), CPU time, one thread"
_INPUTS = "bytes of the columns per token that the method reads"


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """A batch to weigh."""

    recorded: RecordedBatch
    log_probs: Tensor
    """log pi [N]."""


def make_sample(sequences: int, mean_length: int, *, split: bool, seed: int = 0) -> Sample:
    """A batch whose log-ratios have a standard deviation of 0.05 per token.

    Args:
        sequences: Number of sequences, in groups of 8.
        mean_length: Mean tokens of a sequence; lengths are uniform around it.
        split: Whether pi_old is recomputed.
        seed: Seed of all numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(
        mean_length // 16, 2 * mean_length - mean_length // 16, (sequences,), generator=generator
    )
    tokens = int(lengths.sum())
    behavior = -torch.rand(tokens, generator=generator) - 0.01
    log_probs = (behavior + 0.05 * torch.randn(tokens, generator=generator)).clamp(max=-1e-4)
    old = behavior + 0.01 * torch.randn(tokens, generator=generator) if split else None
    recorded = RecordedBatch(
        behavior_log_probs=behavior,
        old_log_probs=old,
        lengths=lengths,
        group_ids=torch.arange(sequences) // 8,
        rewards=torch.rand(sequences, generator=generator),
        max_new_tokens=2 * mean_length,
    )
    return Sample(recorded, log_probs)


def run(*, quick: bool = False) -> BenchReport:
    """Measures every preset.

    Args:
        quick: Take seconds for two presets; the figures prove nothing.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        figures = _figures(("vespo", "snis"), 64, 5) if quick else _figures(list_estimators(), 2048, 9)
    finally:
        torch.set_num_threads(threads)
    return BenchReport(bench="estimators", figures=figures)


def _figures(presets: Sequence[str], sequences: int, pairs: int) -> tuple[Figure, ...]:
    plain, split = (make_sample(sequences, 1024, split=split) for split in (False, True))
    over_read: dict[str, Ratio] = {}
    over_inputs: dict[str, float] = {}
    for name in presets:
        sample = split if _example(name).needs_old_log_probs else plain
        stage = _stage(name, sample)
        # `compare` divides the baseline's time by the candidate's; here the stage is what is divided.
        read = functools.partial(_read, sample)
        over_read[name] = compare(read, stage, pairs=pairs, clock=time.process_time)
        if can_measure():
            over_inputs[name] = peak_growth(stage) / _input_bytes(sample)
    worst = max(over_read, key=lambda name: over_read[name].value)
    figures = [
        over_read[worst].figure("worst_stage_over_read", f"{worst}: {_READ}", target=3.0, relation="<=")
    ]
    if over_inputs:
        heaviest = max(over_inputs, key=lambda name: over_inputs[name])
        figures.append(_memory("worst_memory_over_inputs", heaviest, over_inputs[heaviest], target=2.0))
    flat = compare(
        functools.partial(_flat, plain), functools.partial(_read, plain), pairs=pairs, clock=time.process_time
    )
    figures.append(flat.figure("read_over_flat_sum", _FLAT))
    figures += [
        ratio.figure(f"stage_over_read/{name}", "as worst_stage_over_read")
        for name, ratio in over_read.items()
    ]
    figures += [_memory(f"memory_over_inputs/{name}", name, value) for name, value in over_inputs.items()]
    return tuple(figures)


def _example(name: str) -> Estimator[Any]:
    return make_estimator(name, estimator_class(name).example_options)


def _stage(name: str, sample: Sample) -> Callable[[], Coefficients]:
    estimator = _example(name)
    current = sample.log_probs if estimator.needs is Needs.CURRENT_POLICY else None

    def work() -> Coefficients:
        return estimator.coefficients(estimator.prepare(sample.recorded, current), sample.log_probs)

    return work


def _edges(sample: Sample) -> list[tuple[Tensor, Tensor]]:
    recorded = sample.recorded
    if recorded.old_log_probs is None:
        return [(sample.log_probs, recorded.behavior_log_probs)]
    old = recorded.old_log_probs
    return [(sample.log_probs, old), (old, recorded.behavior_log_probs)]


def _read(sample: Sample) -> None:
    for numerator, denominator in _edges(sample):
        torch.segment_reduce(numerator - denominator, "sum", lengths=sample.recorded.lengths, unsafe=True)


def _flat(sample: Sample) -> None:
    (sample.log_probs - sample.recorded.behavior_log_probs).sum()


def _input_bytes(sample: Sample) -> int:
    columns = (sample.log_probs, sample.recorded.behavior_log_probs, sample.recorded.old_log_probs)
    return sum(column.numel() * column.element_size() for column in columns if column is not None)


def _memory(figure: str, preset: str, value: float, target: float | None = None) -> Figure:
    return Figure(
        name=figure,
        value=value,
        unit="ratio",
        low=value,
        high=value,
        target=target,
        relation=None if target is None else "<=",
        baseline=f"{preset}: {_INPUTS}" if target is not None else "as worst_memory_over_inputs",
    )
