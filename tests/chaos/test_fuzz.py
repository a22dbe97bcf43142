"""A hub that is sent hostile messages refuses them, stays as large as it was, and goes on serving.

`make fuzz` sends FUZZ_MESSAGES (200,000); `make test` a few thousand of a fixed seed.
"""

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path

import grpc
import grpc.aio
import pytest

from hetero_rl.v1 import (
    fleet_service_pb2,
    rollout_service_pb2,
    training_service_pb2,
    weight_service_pb2,
)
from hetero_rl.wire.blocking_clients import FleetClient
from tests.chaos.messages import mutated, random_message
from tests.chaos.site import Site, small_settings

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MESSAGES = int(os.environ.get("FUZZ_MESSAGES", "1500"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
MODULES = (fleet_service_pb2, rollout_service_pb2, training_service_pb2, weight_service_pb2)
METHODS = [
    (f"/{service.full_name}/{method.name}", method)
    for module in MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
OPEN_METHODS = [(path, method) for path, method in METHODS if not path.endswith("CloseRun")]
# What grpc.aio calls INTERNAL of its own accord. When a call is answered while its client still writes a stream of requests, the C
# core fails the batch of the write; `_write` in grpc/aio/_call.py then sets this status, over the answer if that is not read yet,
# with the failed batch in the debug string. Nothing of it comes from the other side, whose statuses have "from peer" there.
OWN_FAULT = "Internal error from Core"
OWN_FAULT_CAUSE = "execute_batch"
# What a caller may be told. UNKNOWN and INTERNAL would be faults of the hub; a call that waits is cut off by this side.
ANSWERS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.CANCELLED,  # by this side, see `call`
}
KNOWN = ("w0", "w1", "chaos", "g0", "g1", "lease-1", "default")


@pytest.mark.timeout(MESSAGES / 50 + 300)
def test_hostile_messages_are_refused_and_the_hub_lives(tmp_path):
    site = Site(tmp_path, SEED, small_settings(4), workers=0)
    try:
        for role in ("hub", "trainer"):
            site.start(role)
        await_run(site)
        hub = site.processes["hub"]
        asyncio.run(send(site.address, MESSAGES // 5, SEED))
        before = resident_bytes(hub.pid)
        told = asyncio.run(send(site.address, MESSAGES, SEED + 1))
        grown = resident_bytes(hub.pid) / before - 1
        assert hub.poll() is None
        with FleetClient(site.address) as fleet:
            counters = fleet.run_status().counters
    finally:
        site.end()
    print(f"{sum(told.values())} messages, resident memory {grown:+.1%}: {dict(told)}")  # ruff: ignore[print] the published figure
    assert set(told) <= {code.name for code in ANSWERS}, told
    assert counters.get("faults_of_the_hub", 0) == 0
    assert grown < 0.25


def await_run(site):
    deadline = time.monotonic() + 120
    with FleetClient(site.address) as fleet:
        while latest_version(fleet) < 1:
            assert time.monotonic() < deadline, site.logs()
            time.sleep(0.1)


def latest_version(fleet):
    run = fleet.run_status().run
    return 0 if run is None else run.latest_weight_version


def resident_bytes(pid):
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def send(address, count, seed):
    """Sends that many messages over sixteen tasks; returns how often each status came back."""
    told = Counter()
    async with grpc.aio.insecure_channel(address) as channel:
        await asyncio.gather(
            *(_send_some(channel, -(-count // 16), seed * 1000 + task, told) for task in range(16))
        )
    return told


async def _send_some(channel, count, seed, told):
    draw = random.Random(seed)  # ruff: ignore[suspicious-non-cryptographic-random-usage] repeatable on purpose
    for _ in range(count):
        # A CloseRun that hits ends the run, and the rest would find it closed.
        path, method = draw.choice(METHODS if draw.random() < 0.01 else OPEN_METHODS)
        data = [
            one_message(draw, method) for _ in range(draw.randint(1, 3) if method.client_streaming else 1)
        ]
        told[(await call(channel, path, method, data)).name] += 1


def one_message(draw, method):
    choice = draw.random()
    if choice < 0.05:
        return draw.randbytes(draw.choice((0, 3, 100, 5000)))
    message = random_message(draw, method.input_type, KNOWN).SerializeToString()
    return mutated(draw, message) if choice < 0.5 else message


def _is_own_fault(error, method):
    """Whether this side's own gRPC made up the status."""
    return (
        method.client_streaming
        and error.code() is grpc.StatusCode.INTERNAL
        and error.details() == OWN_FAULT
        and OWN_FAULT_CAUSE in (error.debug_error_string() or "")
    )


async def call(channel, path, method, data):
    started = _start(channel, path, method, data)
    try:
        if method.server_streaming:
            async for _ in started:
                pass
        else:
            await started
    except grpc.aio.AioRpcError as error:
        return grpc.StatusCode.CANCELLED if _is_own_fault(error, method) else error.code()
    except asyncio.CancelledError:
        # gRPC cancels a call of its own accord when the answer came while it was still writing the request.
        if asyncio.current_task().cancelling():
            raise
        return await started.code()
    return grpc.StatusCode.OK


def _start(channel, path, method, data):
    if method.client_streaming:
        return channel.stream_unary(path)(iter(data), timeout=1)
    if not method.server_streaming:
        return channel.unary_unary(path)(data[0], timeout=0.3)
    return channel.unary_stream(path)(data[0], timeout=1)
