"""What the bulk path holds in memory does not grow with the blob: a blob several times larger than every bound goes through it.

uploader (this process) ──► hub, a process ──► relay, a process ──► fetcher, a process
                                 └──► readers that take one chunk and no more
"""

import asyncio
import hashlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hetero_rl.bench.processes import running_hub_process
from hetero_rl.bench.weight_bulk import open_run
from hetero_rl.wire.blocking_clients import TrainingClient
from hetero_rl.wire.clients import WeightClient
from hetero_rl.wire.messages import BlobReference

pytestmark = [
    pytest.mark.skipif(
        not Path("/proc/self/status").exists(), reason="memory of processes is read from /proc"
    ),
    pytest.mark.timeout(900),
]

MIB = 2**20
SIZE = 448 * MIB
BLOCK = hashlib.shake_256(b"block").digest(MIB)
PATIENCE = 600.0
BOUND = SIZE // 2
"""Above chunks under way and the freed memory that threads keep for the next ones: 40 to 130 MiB."""
HUB_BOUND = SIZE
"""Above that and the 96 MiB of chunks that were asked for lately, and below those with a copy of the blob."""
FETCHER = Path(__file__).with_name("fetcher.py")


def pieces():
    for number in range(SIZE // MIB):
        yield number.to_bytes(8, "little") + BLOCK[8:]


@pytest.fixture(scope="module")
def blob():
    digest = hashlib.sha256()
    for piece in pieces():
        digest.update(piece)
    return BlobReference(digest.hexdigest(), SIZE)


@pytest.fixture
def hub(tmp_path):
    with running_hub_process(tmp_path / "run") as served:
        yield served


@pytest.fixture
def relay(hub, tmp_path):
    """A relay's process and its address."""
    output = tmp_path / "relay.txt"
    command = [sys.executable, "-m", "hetero_rl.cli.main", "relay", "--hub", hub.address]
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", "--cache-dir", str(tmp_path / "relay")],
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        until = time.monotonic() + PATIENCE
        while not (found := re.search(r"listens on (\S+)", output.read_text(encoding="utf-8"))):
            assert process.poll() is None, output.read_text(encoding="utf-8")
            assert time.monotonic() < until
            time.sleep(0.05)
        yield process.pid, found[1]
    finally:
        process.kill()
        process.wait()


def peak(process_id):
    """Most resident bytes of a process so far."""
    status = Path(f"/proc/{process_id}/status").read_text(encoding="ascii")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def upload(hub, blob):
    with TrainingClient(hub.address) as trainer:
        open_run(trainer)
        trainer.put_blob(blob, pieces())


def fetched(address, directory, blob):
    """What the fetcher says."""
    command = [sys.executable, str(FETCHER), address, str(directory), blob.digest, str(blob.size)]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_hub_relay_and_worker_hold_a_part_of_a_blob_that_passes_through_them(hub, relay, blob, tmp_path):
    relay_id, relay_address = relay
    hub_before, relay_before = peak(hub.process_id), peak(relay_id)
    upload(hub, blob)
    uploaded = peak(hub.process_id) - hub_before
    found = fetched(relay_address, tmp_path / "worker", blob)
    assert found["digest"] == blob.digest
    assert uploaded < BOUND
    assert peak(hub.process_id) - hub_before < HUB_BOUND
    assert peak(relay_id) - relay_before < BOUND
    assert found["grown"] < BOUND


async def first_chunks(address, blob, readers):
    """Begins so many downloads and reads one chunk of each; gives the streams and how much of each has come."""
    clients = [WeightClient(address) for _ in range(readers)]
    streams = [client.fetch_blob(blob.digest, 0) for client in clients]
    return clients, streams, [len(await anext(stream)) for stream in streams]


def test_readers_that_stop_reading_cost_the_hub_no_copy_of_the_blob_each(hub, blob, tmp_path):
    before = peak(hub.process_id)
    upload(hub, blob)

    async def stand_still():
        clients, streams, came = await first_chunks(hub.address, blob, readers=3)
        # As long as a whole download takes, nobody reads.
        found = await asyncio.to_thread(fetched, hub.address, tmp_path / "worker", blob)
        most = peak(hub.process_id) - before
        rest = [len(chunk) async for chunk in streams[0]]
        for stream, client in zip(streams, clients, strict=True):
            await stream.aclose()
            await client.close()
        return found, most, came[0] + sum(rest)

    found, most, came = asyncio.run(stand_still())
    assert found["digest"] == blob.digest
    assert came == blob.size  # the one that reads on gets everything
    assert most < HUB_BOUND, f"{most / MIB:.0f} MiB"
