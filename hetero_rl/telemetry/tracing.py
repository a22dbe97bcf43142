"""Traces of training groups with OpenTelemetry (extra `otel`), over every process that handles them. Nothing happens without it.

    trainer   enqueue ─┐ root                                     take ─ train step ─ commit ─ publish
    hub                ├─ enqueued    leased        stored        taken
    worker             └────────────── lease ─ generate ─ submit
              one trace for each group: its id is a hash of run and group

The id of a trace, and of its root span, follow from the run and the group alone: a group that is generated again by another worker, or
taken by a resumed trainer, stays in its trace, and a share of groups (`observability.trace_share`) is the same share in every process.
Calls carry the caller's span in gRPC metadata (`traceparent`, W3C); the hub's spans link to it. No prompt and no completion is recorded.
"""

import contextlib
import contextvars
import hashlib
import importlib.util
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

from hetero_rl.errors import ConfigError

__all__ = [
    "METADATA_KEY",
    "Tracer",
    "current_ids",
    "current_metadata",
    "flush_traces",
    "group_spans",
    "make_provider",
    "record_groups",
    "start_tracing",
    "trace_run",
    "tracing",
    "use_caller",
    "use_tracer",
]

METADATA_KEY = "traceparent"
_ROOT = "enqueue"
_MOST_SPANS = 512
"""Of one call: a step of very many groups is traced by its first ones."""

_next_ids: contextvars.ContextVar[tuple[int, int] | None] = contextvars.ContextVar(
    "hetero_rl_next_ids", default=None
)
_caller: contextvars.ContextVar[str] = contextvars.ContextVar("hetero_rl_caller", default="")


def _trace_id(run: str, group_id: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{run}/{group_id}".encode()).digest()[:16], "big") or 1


def _root_id(run: str, group_id: str) -> int:
    return int.from_bytes(hashlib.sha256(f"root/{run}/{group_id}".encode()).digest()[:8], "big") or 1


class Tracer:
    """Makes spans of groups.

    Args:
        provider: `opentelemetry.sdk.trace.TracerProvider`; its id generator must be that of `make_provider`.
        run: Identity of the run.
    """

    def __init__(self, provider: Any, run: str) -> None:
        self._tracer = provider.get_tracer("hetero_rl")
        self._provider = provider
        self.run = run

    def start(
        self, name: str, group_id: str, *, started_ns: int | None, attributes: Mapping[str, Any]
    ) -> Any:
        """A started span of a group; the one called "enqueue" is the root of its trace."""
        from opentelemetry import trace

        parent = trace.SpanContext(
            _trace_id(self.run, group_id),
            _root_id(self.run, group_id),
            is_remote=True,
            trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
        )
        around = None if name == _ROOT else trace.set_span_in_context(trace.NonRecordingSpan(parent))
        if around is None:
            from opentelemetry.context import Context

            around = Context()
            _next_ids.set((parent.trace_id, parent.span_id))
        return self._tracer.start_span(
            name,
            context=around,
            start_time=started_ns,
            attributes={"hetero_rl.run": self.run, "hetero_rl.group": group_id, **attributes},
            links=_links(),
        )

    def flush(self, seconds: float) -> None:
        """Sends what waits, for at most so long."""
        self._provider.force_flush(int(seconds * 1000))


def _links() -> list[Any]:
    """The caller's span, where a call brought one."""
    from opentelemetry import trace

    parts = _caller.get().split("-")
    if len(parts) != 4 or len(parts[1]) != 32 or len(parts[2]) != 16:
        return []
    try:
        context = trace.SpanContext(int(parts[1], 16), int(parts[2], 16), is_remote=True)
    except ValueError:
        return []
    return [trace.Link(context)] if context.is_valid else []


_tracer: Tracer | None = None


def tracing() -> Tracer | None:
    """What makes spans in this process; None while nothing is traced."""
    return _tracer


def make_provider(processor: Any, *, role: str, share: float) -> Any:
    """A provider of OpenTelemetry whose root spans get the ids of their group.

    Args:
        processor: Takes ended spans.
        role: Of the process, such as "worker".
        share: Of groups that are traced, in (0, 1].
    """
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
    from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

    class GroupIds(RandomIdGenerator):  # type: ignore[misc]  # no types without the extra
        """Ids of the next root span of this thread, where they are given; random ones otherwise."""

        def generate_trace_id(self) -> int:
            given = _next_ids.get()
            return given[0] if given else super().generate_trace_id()

        def generate_span_id(self) -> int:
            given = _next_ids.get()
            _next_ids.set(None)
            return given[1] if given else super().generate_span_id()

    provider = TracerProvider(
        id_generator=GroupIds(),
        sampler=TraceIdRatioBased(share),
        resource=Resource.create({"service.name": f"hetero-rl-{role}"}),
    )
    provider.add_span_processor(processor)
    return provider


def start_tracing(endpoint: str, run: str, *, role: str, share: float = 1.0) -> None:
    """Sends spans of this process to a collector from now on; an empty endpoint does nothing.

    Args:
        endpoint: Of OTLP over HTTP, such as "http://127.0.0.1:4318".
        run: Identity of the run.
        role: Of the process.
        share: Of groups that are traced.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    if not endpoint:
        return
    if importlib.util.find_spec("opentelemetry") is None:
        raise ConfigError(
            f"observability.traces = {endpoint!r}: OpenTelemetry is not installed; pip install 'hetero-rl[otel]'"
        )
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
    use_tracer(Tracer(make_provider(BatchSpanProcessor(exporter), role=role, share=share), run))


def trace_run(run: str) -> None:
    """Names the run of later spans, for a process that learns it from the hub."""
    if _tracer is not None:
        _tracer.run = run


def flush_traces(seconds: float = 5.0) -> None:
    """Sends what waits to be sent, for at most so long; a process that ends by a signal would lose it."""
    if _tracer is not None:
        _tracer.flush(seconds)


def use_tracer(tracer: Tracer | None) -> None:
    """Makes spans with a tracer from now on; None ends it."""
    global _tracer  # ruff: ignore[global-statement] - one for each process, as OpenTelemetry has it
    _tracer = tracer


@contextlib.contextmanager
def group_spans(name: str, group_ids: Iterable[str], **attributes: Any) -> Generator[None]:
    """Spans of groups around a block; calls made in it carry the first of them."""
    tracer = _tracer
    if tracer is None:
        yield
        return
    from opentelemetry import trace

    spans = [
        tracer.start(name, group_id, started_ns=None, attributes=attributes) for group_id in _first(group_ids)
    ]
    current = trace.use_span(spans[0]) if spans else contextlib.nullcontext()
    try:
        with current:
            yield
    finally:
        for span in spans:
            span.end()


def record_groups(name: str, group_ids: Iterable[str], seconds: float = 0.0, **attributes: Any) -> None:
    """Spans of groups that end now and began `seconds` ago."""
    tracer = _tracer
    if tracer is None:
        return
    now = time.time_ns()
    for group_id in _first(group_ids):
        tracer.start(name, group_id, started_ns=now - int(seconds * 1e9), attributes=attributes).end(now)


def _first(group_ids: Iterable[str]) -> Sequence[str]:
    return tuple(dict.fromkeys(group_ids))[:_MOST_SPANS]


def current_metadata() -> tuple[tuple[str, str], ...]:
    """What a call carries: the span around it, as W3C writes it; nothing outside of one."""
    ids = current_ids()
    return ((METADATA_KEY, f"00-{ids['trace_id']}-{ids['span_id']}-01"),) if ids else ()


def current_ids() -> dict[str, str]:
    """Trace and span around this line; empty outside of one."""
    if _tracer is None:
        return {}
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def use_caller(metadata: Iterable[tuple[str, str | bytes]]) -> None:
    """Takes the caller's span from the metadata of a call that is being served by this task."""
    for key, value in metadata:
        if key == METADATA_KEY:
            _caller.set(value if isinstance(value, str) else value.decode("ascii", errors="replace"))
            return
