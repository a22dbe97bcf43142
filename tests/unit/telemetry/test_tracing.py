"""A trace of each group over every process that handles it, collected in memory."""

import json
import logging

import pytest

from hetero_rl.errors import ConfigError
from hetero_rl.telemetry import tracing
from hetero_rl.telemetry.logs import JsonFormatter
from hetero_rl.telemetry.tracing import Tracer, current_metadata, group_spans, record_groups, start_tracing


class TestWithoutTheExtra:
    def test_nothing_is_recorded_and_nothing_is_carried(self):
        with group_spans("generate", ["g1"]):
            record_groups("lease", ["g1"])
            assert current_metadata() == ()

    def test_asking_for_traces_says_what_to_install(self, monkeypatch):
        monkeypatch.setattr(tracing.importlib.util, "find_spec", lambda name: None)

        with pytest.raises(ConfigError, match=r"hetero-rl\[otel\]"):
            start_tracing("http://127.0.0.1:4318", "run", role="worker")

    def test_an_empty_endpoint_is_off(self):
        start_tracing("", "run", role="worker")
        assert tracing.tracing() is None


@pytest.fixture
def spans():
    """Traces in memory; returns the ended spans so far."""
    pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed here")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = tracing.make_provider(SimpleSpanProcessor(exporter), role="test", share=1.0)
    tracing.use_tracer(Tracer(provider, "mine"))
    yield exporter.get_finished_spans
    tracing.use_tracer(None)
    provider.shutdown()


def test_spans_of_a_group_are_one_trace_below_the_one_that_enqueued_it(spans):
    # As in three processes, of which none has seen the others' spans.
    record_groups("generate", ["g1"])
    with group_spans("enqueue", ["g1", "g2"]):
        pass
    record_groups("train step", ["g1", "g2"], 2.0, step=3)

    by_name = {(span.name, span.attributes["hetero_rl.group"]): span for span in spans()}
    root = by_name["enqueue", "g1"]
    assert root.parent is None
    for name in ("generate", "train step"):
        span = by_name[name, "g1"]
        assert span.context.trace_id == root.context.trace_id
        assert span.parent.span_id == root.context.span_id
    assert by_name["train step", "g2"].context.trace_id != root.context.trace_id
    assert by_name["train step", "g1"].attributes["step"] == 3
    trained = by_name["train step", "g1"]
    assert trained.end_time - trained.start_time == 2_000_000_000


def test_a_call_carries_the_span_around_it_and_the_hub_s_span_links_to_it(spans):
    with group_spans("submit", ["g1"]):
        metadata = current_metadata()
    tracing.use_caller(metadata)
    record_groups("stored", ["g1"])
    tracing.use_caller([("traceparent", "")])

    submit, stored = spans()
    assert metadata == (
        ("traceparent", f"00-{submit.context.trace_id:032x}-{submit.context.span_id:016x}-01"),
    )
    assert [link.context.span_id for link in stored.links] == [submit.context.span_id]


@pytest.mark.parametrize("sent", ["", "x", "00-zz-yy-01", f"00-{0:032x}-{0:016x}-01", "0-" * 9])
def test_what_is_no_context_is_no_link(spans, sent):
    tracing.use_caller([("traceparent", sent)])

    record_groups("stored", ["g1"])

    assert spans()[0].links == ()


def test_spans_that_wait_are_sent_before_a_process_leaves(spans):
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    patient = BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000)
    provider = tracing.make_provider(patient, role="worker", share=1.0)
    tracing.use_tracer(Tracer(provider, "mine"))
    record_groups("generate", ["g1"])

    tracing.flush_traces(60.0)

    assert [span.name for span in exporter.get_finished_spans()] == ["generate"]
    provider.shutdown()


def test_a_record_within_a_span_names_it(spans):
    entry = logging.LogRecord("x", logging.INFO, "x.py", 1, "hello", (), None)
    with group_spans("generate", ["g1"]):
        said = json.loads(JsonFormatter().format(entry))

    assert said["trace_id"] == f"{spans()[0].context.trace_id:032x}"
    assert "trace_id" not in json.loads(JsonFormatter().format(entry))


def test_groups_within_a_share_are_the_same_in_every_process(spans):
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    found = []
    for role in ("worker", "trainer"):
        exporter = InMemorySpanExporter()
        provider = tracing.make_provider(SimpleSpanProcessor(exporter), role=role, share=0.25)
        tracing.use_tracer(Tracer(provider, "mine"))
        record_groups("x", [f"g{number}" for number in range(400)])
        found.append({span.attributes["hetero_rl.group"] for span in exporter.get_finished_spans()})

    assert found[0] == found[1]
    assert 50 < len(found[0]) < 150  # 100 of 400, and a hash does not change from run to run


@pytest.mark.asyncio
async def test_metadata_reaches_the_hub_over_both_kinds_of_channels(spans):
    import asyncio

    import grpc
    import grpc.aio

    from hetero_rl.wire.channels import control_options, open_async_channel, open_channel
    from hetero_rl.wire.trace_context import CallerContext

    async def echo(request, context):  # ruff: ignore[unused-async] - what a server of asyncio calls
        record_groups("stored", ["g1"])
        return request

    method = grpc.unary_unary_rpc_method_handler(echo)
    server = grpc.aio.server(interceptors=(CallerContext(),))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("x.Y", {"Echo": method})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    address = f"127.0.0.1:{port}"

    def blocking():
        with open_channel(address, None, control_options()) as channel, group_spans("commit", ["g1"]):
            channel.unary_unary("/x.Y/Echo")(b"1", timeout=60)

    async with open_async_channel(address, None, control_options()) as channel:
        with group_spans("submit", ["g1"]):
            await channel.unary_unary("/x.Y/Echo")(b"1", timeout=60)
    await asyncio.to_thread(blocking)
    await server.stop(None)

    ended = {span.context.span_id: span for span in spans()}
    callers = [ended[span.links[0].context.span_id].name for span in ended.values() if span.name == "stored"]
    assert sorted(callers) == ["commit", "submit"]
