"""One table from exception to status, and the same refusal at the other end."""

import contextlib
import re
from pathlib import Path

import grpc
import pytest

from hetero_rl import errors
from hetero_rl.v1 import errors_pb2, rollout_service_pb2_grpc
from hetero_rl.wire.channels import server_options
from hetero_rl.wire.clients import RolloutClient
from hetero_rl.wire.refusal import METADATA_KEY, REASON_STATUS, abort, from_rpc_error, to_refusal

PROTO = Path(__file__).parents[3] / "proto/hetero_rl/v1/errors.proto"


def failed_call(status, text="no", metadata=()):
    return grpc.aio.AioRpcError(status, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), details=text)


def test_every_reason_of_the_protocol_has_a_status():
    reasons = {name.removeprefix("REFUSAL_REASON_") for name in errors_pb2.RefusalReason.keys()}  # ruff: ignore[in-dict-keys] - an enum wrapper does not iterate
    assert set(REASON_STATUS) == reasons - {"UNSPECIFIED"}


def test_every_reason_has_the_status_that_its_comment_names():
    documented = re.findall(
        r"// .*?([A-Z]{2,}(?:_[A-Z]+)*)(?:: come back)?\.\n\s+REFUSAL_REASON_(\w+) = [1-9]", PROTO.read_text()
    )
    assert {reason: status.name for reason, status in REASON_STATUS.items()} == {
        reason: status for status, reason in documented
    }


@pytest.mark.parametrize(
    ("error", "reason", "status"),
    [
        (errors.InvalidMessageError("x", "Lease.work"), "INVALID_FIELD", "INVALID_ARGUMENT"),
        (errors.InvalidMessageError("x", "c", "TOO_LARGE"), "TOO_LARGE", "INVALID_ARGUMENT"),
        (errors.RefusedError("x", "MODEL_MISMATCH"), "MODEL_MISMATCH", "FAILED_PRECONDITION"),
        (errors.RefusedError("x", "OF_A_LATER_VERSION"), "INCOMPATIBLE", "FAILED_PRECONDITION"),
        (errors.FencedError("x"), "FENCED", "FAILED_PRECONDITION"),
        (errors.DiskFullError("x"), "STORAGE_FULL", "RESOURCE_EXHAUSTED"),
        (errors.DamagedError("x"), "DIGEST_MISMATCH", "DATA_LOSS"),
        (errors.StorageError("x"), "STORAGE_FAILED", "INTERNAL"),
    ],
)
def test_an_error_becomes_the_refusal_of_the_table(error, reason, status):
    refusal = to_refusal(error)
    assert (refusal.reason, refusal.status.name, refusal.text) == (reason, status, "x")


def test_a_fault_of_the_hub_itself_is_no_refusal():
    assert to_refusal(errors.TrainingError("x")) is None


def test_a_refusal_arrives_with_reason_text_and_details():
    sent = to_refusal(errors.RefusedError("digests differ", "MODEL_MISMATCH", {"expected": "ab"}))
    error = from_rpc_error(failed_call(sent.status, sent.text, sent.trailing_metadata), "Join at h:1")
    assert isinstance(error, errors.RefusedError)
    assert (str(error), error.reason, error.details) == (
        "digests differ",
        "MODEL_MISMATCH",
        {"expected": "ab"},
    )


def test_an_invalid_field_arrives_by_name():
    sent = to_refusal(errors.InvalidMessageError("Lease.work is missing", "Lease.work"))
    error = from_rpc_error(failed_call(sent.status, sent.text, sent.trailing_metadata), "call")
    assert (error.reason, error.details) == ("INVALID_FIELD", {"field": "Lease.work"})


def test_being_fenced_arrives_as_being_fenced():
    sent = to_refusal(errors.FencedError("epoch 3 is newer"))
    error = from_rpc_error(failed_call(sent.status, sent.text, sent.trailing_metadata), "call")
    assert isinstance(error, errors.FencedError)


@pytest.mark.parametrize("status", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "INTERNAL", "UNKNOWN"])
def test_a_call_without_an_answer_is_unreachable(status):
    error = from_rpc_error(failed_call(grpc.StatusCode[status], "Connection refused"), "Join at h:1")
    assert isinstance(error, errors.UnreachableError)
    assert str(error) == f"Join at h:1: {status}: Connection refused"


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("UNIMPLEMENTED", "INCOMPATIBLE"),
        ("UNAUTHENTICATED", "NOT_AUTHORIZED"),
        ("PERMISSION_DENIED", "NOT_AUTHORIZED"),
        ("NOT_FOUND", "NOT_FOUND"),
    ],
)
def test_a_final_status_without_a_refusal_still_gets_a_reason(status, reason):
    assert from_rpc_error(failed_call(grpc.StatusCode[status]), "call").reason == reason


def test_a_message_above_the_size_limit_is_too_large_and_an_overloaded_hub_is_not():
    exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (
        from_rpc_error(failed_call(exhausted, "Received message larger than max"), "c").reason == "TOO_LARGE"
    )
    assert isinstance(
        from_rpc_error(failed_call(exhausted, "Concurrent RPC limit"), "c"), errors.UnreachableError
    )


def test_a_refusal_that_does_not_parse_is_read_by_its_status():
    error = from_rpc_error(
        failed_call(grpc.StatusCode.FAILED_PRECONDITION, "no", [(METADATA_KEY, b"\xff\xff")]), "call"
    )
    assert error.reason == "INCOMPATIBLE"


def test_a_reason_of_a_later_version_keeps_its_number():
    packed = b"\x08\x63"  # reason = 99
    error = from_rpc_error(
        failed_call(grpc.StatusCode.FAILED_PRECONDITION, "no", [(METADATA_KEY, packed)]), "call"
    )
    assert error.reason == "99"


class RefusingHub(rollout_service_pb2_grpc.RolloutServiceServicer):
    """An asyncio servicer that ends every call with the error it was made with."""

    def __init__(self, error):
        self.error = error

    async def GetRun(self, request, context):
        await abort(context, self.error)


@contextlib.asynccontextmanager
async def refusing_client(error):
    server = grpc.aio.server(options=server_options())
    rollout_service_pb2_grpc.add_RolloutServiceServicer_to_server(RefusingHub(error), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with RolloutClient(f"127.0.0.1:{port}") as client:
            yield client
    finally:
        await server.stop(None)


@pytest.mark.asyncio
async def test_an_asyncio_server_refuses_with_reason_and_details():
    sent = errors.RefusedError("the run is not open: start a trainer", "RUN_NOT_OPEN", {"a": "b"})
    async with refusing_client(sent) as client:
        with pytest.raises(errors.RefusedError, match="start a trainer") as caught:
            await client.get_run()
    assert (caught.value.reason, caught.value.details) == ("RUN_NOT_OPEN", {"a": "b"})


@pytest.mark.asyncio
async def test_a_fault_of_the_hub_itself_reaches_the_caller_as_no_answer(caplog):
    async with refusing_client(errors.TrainingError("a bug")) as client:
        with pytest.raises(errors.UnreachableError, match="GetRun at"):
            await client.get_run()
    assert "a bug" in caplog.text  # gRPC logs what a handler raised
