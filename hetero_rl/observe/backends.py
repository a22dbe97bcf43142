"""What each backend contributes: sums over its workers. Pure."""

import dataclasses
from collections.abc import Mapping, Sequence

from hetero_rl.wire.messages import WorkerState, WorkerSummary

__all__ = ["BackendSummary", "busy_rate", "summarize_backends"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BackendSummary:
    """The workers of one backend together."""

    name: str
    workers: int
    """Those known, gone ones too."""
    active: int
    generated_tokens: int
    token_share: float
    """Of the tokens of all backends."""
    busy_seconds: float
    busy_rate: float | None
    """Tokens per second in which an engine of it generated: the speed of one worker."""
    rate: float | None
    """Tokens per second of all of them together, lately; None where that is not known."""
    gap_mean: float | None
    """Mean |log pi - log mu| of the workers' last probe cards, in nats."""
    gap_max: float | None
    """The largest of any token of them."""


def busy_rate(worker: WorkerSummary) -> float | None:
    """Tokens per second in which the engine generated; None before it did."""
    return worker.generated_tokens / worker.busy_seconds if worker.busy_seconds > 0 else None


def summarize_backends(
    workers: Sequence[WorkerSummary], rates: Mapping[str, float] | None = None
) -> tuple[BackendSummary, ...]:
    """One summary for each backend, by name.

    Args:
        workers: All that are known.
        rates: Recent tokens per second by worker.
    """
    every = sum(worker.generated_tokens for worker in workers)
    names = sorted({worker.backend for worker in workers})
    return tuple(
        _summary(name, [worker for worker in workers if worker.backend == name], every, rates)
        for name in names
    )


def _summary(
    name: str, workers: Sequence[WorkerSummary], every: int, rates: Mapping[str, float] | None
) -> BackendSummary:
    tokens = sum(worker.generated_tokens for worker in workers)
    busy = sum(worker.busy_seconds for worker in workers)
    probes = [worker.last_probe for worker in workers if worker.last_probe is not None]
    known = [rates[worker.worker_name] for worker in workers if rates and worker.worker_name in rates]
    return BackendSummary(
        name=name,
        workers=len(workers),
        active=sum(worker.state is WorkerState.ACTIVE for worker in workers),
        generated_tokens=tokens,
        token_share=tokens / every if every else 0.0,
        busy_seconds=busy,
        busy_rate=tokens / busy if busy > 0 else None,
        rate=sum(known) if known else None,
        gap_mean=sum(probe.mean_absolute_difference for probe in probes) / len(probes) if probes else None,
        gap_max=max((probe.max_absolute_difference for probe in probes), default=None),
    )
