"""Every file of a hub's blob store, damaged in every way while no hub runs: no worker ever loads the bytes."""

import asyncio
import contextlib
import operator
import random
import shutil

import pytest

pytest.importorskip("numba", reason="the codec extra is not installed")

from hetero_rl.errors import DamagedError, RefusedError
from hetero_rl.hub.local_blobs import LocalBlobStore
from hetero_rl.trainer.model_upload import ModelUpload
from hetero_rl.weights.digests import digest_of_bytes
from hetero_rl.wire.blocking_clients import FleetClient
from hetero_rl.wire.clients import RolloutClient, WeightClient
from hetero_rl.wire.messages import BlobReference, ModelFile
from hetero_rl.worker.link import Link
from hetero_rl.worker.resend import Pacing

STEPS = 4
MODEL_FILE = b'{"vocab_size": 100}'
MODEL_FILES = (ModelFile("config.json", BlobReference(digest_of_bytes(MODEL_FILE), len(MODEL_FILE))),)


def flipped(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


DAMAGES = {
    "first bit flipped": lambda data: flipped(data, 0),
    "bit within flipped": lambda data: flipped(data, len(data) * 4 + 3),
    "last bit flipped": lambda data: flipped(data, len(data) * 8 - 1),
    "cut": operator.itemgetter(slice(-1)),
    "emptied": lambda _: b"",
    "extended": lambda data: data + b"\0",
    "another file's bytes": lambda data: bytes(len(data)),
    "removed": lambda _: None,
}


async def ran(site):
    """A run with a model file, full copies and deltas, and a worker that has followed to the version before the last."""
    publisher = await site.open(anchor_every=2, model_files=MODEL_FILES)
    await asyncio.to_thread(site.trainer.put_blob, reference_to(MODEL_FILE), iter([MODEL_FILE]))
    async with WeightClient(site.address) as client:
        stage = site.worker(client)
        for step in range(STEPS):
            await site.publish(publisher, step)
            if step < STEPS - 1:
                await site.follow(stage, step)
    publisher.close()


def reference_to(data):
    return BlobReference(digest_of_bytes(data), len(data))


def blob_files(directory):
    return sorted(path for path in (directory / "blobs").rglob("*") if path.is_file())


def write(path, data):
    path.chmod(0o600)
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)


async def try_to_reach(site, stage, step):
    """Whether a worker came to a step, bit for bit; otherwise it was told which blob is damaged."""
    try:
        await site.follow(stage, step)
    except RefusedError as error:
        return f"{error.reason}: {error}"
    return None


async def try_to_get(client, data):
    """Whether a blob came as it is; otherwise what the hub said."""
    try:
        came = b"".join([bytes(chunk) async for chunk in client.fetch_blob(digest_of_bytes(data), 0)])
    except RefusedError as error:
        return f"{error.reason}: {error}"
    assert came == data
    return None


@pytest.mark.asyncio
async def test_whatever_is_damaged_workers_end_with_the_right_weights_or_hear_which_blob_it_is(
    start_site, tmp_path
):
    (tmp_path / "origin").mkdir()
    async with start_site(tmp_path / "origin") as site:
        await ran(site)
    files = blob_files(tmp_path / "origin")
    assert len(files) >= STEPS
    unreachable = 0
    for file in files:
        for name, damage in DAMAGES.items():
            copy = tmp_path / "copy"
            shutil.copytree(tmp_path / "origin", copy)
            write(copy / "blobs" / file.name, damage(file.read_bytes()))
            async with start_site(copy) as site:
                told = await whole_story(site)
                said = await asyncio.to_thread(what_the_hub_said, site.address)
            unreachable += bool(told)
            assert all(file.name in text for text in told), (file.name, name, told)
            assert all(text.startswith(("NOT_FOUND", "DIGEST_MISMATCH")) for text in told), told
            assert any(file.name in text for text in said) or not told, (file.name, name, said)
            shutil.rmtree(copy)
    assert unreachable  # the table has cases in which no other way was left
    assert unreachable < len(files) * len(DAMAGES)  # and some in which there was one


async def whole_story(site):
    """What workers were refused before a resumed trainer published again; afterwards both are where they belong."""
    async with WeightClient(site.address) as client:
        stages = {"newcomer": site.worker(client, "newcomer"), "follower": site.worker(client)}
        told = [await try_to_reach(site, stage, STEPS - 1) for stage in stages.values()]
        told.append(await try_to_get(client, MODEL_FILE))
        publisher = await site.open(resume_step=0, model_files=MODEL_FILES)
        await asyncio.to_thread(site.trainer.put_blob, reference_to(MODEL_FILE), iter([MODEL_FILE]))
        assert await try_to_get(client, MODEL_FILE) is None
        await site.publish(publisher, STEPS)
        await site.publish(publisher, STEPS + 1)
        for stage in stages.values():
            await site.follow(stage, STEPS + 1)
        publisher.close()
    return [text for text in told if text]


def what_the_hub_said(address):
    with FleetClient(address) as fleet:
        return [event.message for event in fleet.list_events(0) if event.kind == "blob_damaged"]


def test_every_flipped_bit_of_a_file_is_found_once_a_store_is_opened_again(tmp_path):
    draw = random.Random(5)  # ruff: ignore[suspicious-non-cryptographic-random-usage] repeatable on purpose
    data = draw.randbytes(3000)
    blob = reference_to(data)
    path = tmp_path / blob.digest
    for bit in (*range(16), *(draw.randrange(len(data) * 8) for _ in range(200)), len(data) * 8 - 1):
        path.write_bytes(flipped(data, bit))
        store = LocalBlobStore(tmp_path)
        assert not store.is_proven(blob.digest)
        with pytest.raises(DamagedError, match=blob.digest):
            store.prove(blob.digest)
        assert not store.has(blob)
        assert not path.exists()
    path.write_bytes(data)
    store = LocalBlobStore(tmp_path)
    store.prove(blob.digest)
    assert store.is_proven(blob.digest)
    with contextlib.closing(store.open_upload(BlobReference("0" * 64, 5))) as upload:
        assert upload.held == 0


@pytest.mark.asyncio
async def test_a_model_file_that_is_damaged_while_the_run_goes_on_comes_back_without_a_new_trainer(
    start_site, tmp_path
):
    own = tmp_path / "config.json"
    own.write_bytes(MODEL_FILE)
    (tmp_path / "site").mkdir()
    async with start_site(tmp_path / "site") as site, WeightClient(site.address) as client:
        await ran(site)
        assert await try_to_get(client, MODEL_FILE) is None
        kept = tmp_path / "site" / "blobs" / digest_of_bytes(MODEL_FILE)
        write(kept, flipped(MODEL_FILE, 9))
        assert "DIGEST_MISMATCH" in await try_to_get(client, MODEL_FILE)
        upload = ModelUpload(site.trainer, [(MODEL_FILES[0], own)], seconds=0.02)
        with upload.kept():
            # A worker that starts asks until the hub has all files.
            async with RolloutClient(site.address) as rollout:
                link = Link(rollout, Pacing(longest_delay=0.2, patience=90))
                await link.repeat("question for the run", rollout.get_run)
            assert await try_to_get(client, MODEL_FILE) is None
