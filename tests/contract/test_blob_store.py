"""What every blob store does, on disk or in memory."""

import hashlib

import pytest

from hetero_rl.errors import ConfigError, DamagedError, InvalidMessageError, RefusedError, StorageError
from hetero_rl.hub.local_blobs import LocalBlobStore
from hetero_rl.hub.memory_blobs import MemoryBlobStore
from hetero_rl.hub.remote_blobs import FsspecBlobStore, open_blob_store
from hetero_rl.wire.messages import BlobReference

DATA = bytes(range(256)) * 4
BLOB = BlobReference(hashlib.sha256(DATA).hexdigest(), len(DATA))


def open_store(kind, directory):
    """A store; again the same one for the same directory, as after a restart."""
    if kind == "memory":
        return MemoryBlobStore()
    if kind == "local":
        return LocalBlobStore(directory)
    pytest.importorskip("fsspec", reason="the extra fsspec is not installed")
    url = f"memory://{directory}" if kind == "fsspec-memory" else f"file://{directory}/store"
    return FsspecBlobStore(url, directory / "staging")


@pytest.fixture(params=["memory", "local", "fsspec-memory", "fsspec-file"])
def kind(request):
    return request.param


@pytest.fixture
def blobs(kind, tmp_path):
    return open_store(kind, tmp_path)


def put(blobs, data=DATA, blob=BLOB):
    upload = blobs.open_upload(blob)
    upload.write(upload.held, data[upload.held :])
    upload.finish()
    upload.close()


def test_a_finished_blob_is_read_from_any_offset(blobs):
    put(blobs)
    assert blobs.has(BLOB)
    assert blobs.size(BLOB.digest) == 1024
    assert blobs.read(BLOB.digest, 1000, 10) == DATA[1000:1010]
    assert blobs.read(BLOB.digest, 1020, 10) == DATA[1020:]
    assert blobs.read(BLOB.digest, 1024, 10) == b""


def test_a_blob_is_read_in_pieces_when_it_is_open(blobs):
    put(blobs)
    with blobs.opened(BLOB.digest) as piece:
        assert bytes(piece(0, 600)) == DATA[:600]
        assert bytes(piece(600, 600)) == DATA[600:]


def test_a_blob_is_invisible_before_it_is_finished(blobs):
    upload = blobs.open_upload(BLOB)
    upload.write(0, DATA)
    assert not blobs.has(BLOB)
    with pytest.raises(RefusedError, match="not stored"):
        blobs.read(BLOB.digest, 0, 1)
    with pytest.raises(RefusedError, match="not stored"):
        blobs.size(BLOB.digest)
    upload.close()


def test_a_broken_upload_goes_on_where_it_stopped(blobs):
    upload = blobs.open_upload(BLOB)
    upload.write(0, DATA[:100])
    upload.close()
    assert blobs.held_bytes(BLOB) == 100
    again = blobs.open_upload(BLOB)
    assert again.held == 100
    again.write(100, DATA[100:])
    again.finish()
    again.close()
    assert blobs.read(BLOB.digest, 0, 2000) == DATA


def test_an_upload_that_broke_after_its_last_byte_is_not_taken_for_whole(blobs):
    upload = blobs.open_upload(BLOB)
    upload.write(0, DATA)
    upload.close()  # and the hub was killed before it was checked
    held = blobs.held_bytes(BLOB)
    assert held < BLOB.size
    again = blobs.open_upload(BLOB)
    again.write(held, DATA[held:])
    again.finish()
    again.close()
    assert blobs.has(BLOB)


def test_a_gap_is_refused(blobs):
    upload = blobs.open_upload(BLOB)
    with pytest.raises(InvalidMessageError, match="offset is 5, but 0 bytes are held"):
        upload.write(5, b"x")
    upload.close()


def test_more_bytes_than_the_size_are_refused(blobs):
    upload = blobs.open_upload(BLOB)
    with pytest.raises(InvalidMessageError, match="1025 of 1024"):
        upload.write(0, DATA + b"x")
    upload.close()


def test_a_short_upload_is_not_finished(blobs):
    upload = blobs.open_upload(BLOB)
    upload.write(0, DATA[:5])
    with pytest.raises(InvalidMessageError, match="5 of 1024"):
        upload.finish()
    upload.close()
    assert blobs.held_bytes(BLOB) == 5


def test_other_bytes_are_thrown_away(blobs):
    upload = blobs.open_upload(BLOB)
    upload.write(0, DATA[::-1])
    with pytest.raises(DamagedError):
        upload.finish()
    upload.close()
    assert blobs.held_bytes(BLOB) == 0
    put(blobs)
    assert blobs.has(BLOB)


def test_a_newer_upload_takes_over(blobs):
    old = blobs.open_upload(BLOB)
    old.write(0, DATA[:10])
    new = blobs.open_upload(BLOB)
    with pytest.raises(RefusedError, match="taken over"):
        old.write(10, DATA[10:20])
    new.write(10, DATA[10:])
    new.finish()
    old.close()
    new.close()
    assert blobs.has(BLOB)


def test_the_empty_blob_is_a_blob(blobs):
    empty = BlobReference(hashlib.sha256(b"").hexdigest(), 0)
    assert not blobs.has(empty)
    put(blobs, b"", empty)
    assert blobs.has(empty)
    assert blobs.held_bytes(empty) == 0


def test_a_deleted_blob_is_gone_and_can_come_again(blobs):
    put(blobs)
    blobs.delete(BLOB.digest)
    blobs.delete(BLOB.digest)
    assert not blobs.has(BLOB)
    assert blobs.held_bytes(BLOB) == 0
    put(blobs)
    assert blobs.has(BLOB)


@pytest.mark.parametrize("kind", ["local", "fsspec-memory", "fsspec-file"])
def test_blobs_and_half_uploads_survive_a_restart(kind, tmp_path):
    blobs = open_store(kind, tmp_path)
    put(blobs)
    other = BlobReference(hashlib.sha256(DATA[1:]).hexdigest(), len(DATA) - 1)
    upload = blobs.open_upload(other)
    upload.write(0, DATA[1:50])
    upload.close()
    again = open_store(kind, tmp_path)
    assert again.has(BLOB)
    assert again.held_bytes(other) == 49
    put(again, DATA[1:], other)
    assert again.has(other)


def test_a_digest_never_becomes_a_path(tmp_path):
    with pytest.raises(RefusedError):
        LocalBlobStore(tmp_path).read("../secret", 0, 1)


def test_what_is_held_is_listed_unless_it_is_being_written(blobs):
    put(blobs)
    other = BlobReference(hashlib.sha256(DATA[1:]).hexdigest(), len(DATA) - 1)
    upload = blobs.open_upload(other)
    upload.write(0, DATA[1:50])
    assert set(blobs.digests()) == {BLOB.digest}
    upload.close()
    assert set(blobs.digests()) == {BLOB.digest, other.digest}


def test_a_withdrawn_blob_is_gone_at_once_and_its_bytes_later(blobs):
    put(blobs)
    blobs.withdraw(BLOB.digest)
    assert not blobs.has(BLOB)
    with pytest.raises(RefusedError, match="not stored"):
        blobs.read(BLOB.digest, 0, 1)
    blobs.purge(BLOB.digest)
    assert blobs.held_bytes(BLOB) == 0
    assert set(blobs.digests()) == set()


def test_a_blob_that_came_back_is_not_purged(blobs):
    put(blobs)
    blobs.withdraw(BLOB.digest)
    put(blobs)
    blobs.purge(BLOB.digest)
    assert blobs.read(BLOB.digest, 0, 2000) == DATA


def test_a_withdrawn_half_upload_begins_again(blobs):
    upload = blobs.open_upload(BLOB)
    upload.write(0, DATA[:100])
    upload.close()
    blobs.withdraw(BLOB.digest)
    blobs.purge(BLOB.digest)
    assert blobs.held_bytes(BLOB) == 0
    put(blobs)
    assert blobs.has(BLOB)


def test_a_run_stays_with_the_store_that_it_began_with(tmp_path):
    pytest.importorskip("fsspec", reason="the extra fsspec is not installed")
    url = f"file://{tmp_path}/bucket"
    blobs = open_blob_store(url, tmp_path / "hub")
    put(blobs)
    assert open_blob_store(url, tmp_path / "hub").has(BLOB)
    assert open_blob_store(None, tmp_path / "hub").has(BLOB)
    with pytest.raises(ConfigError, match="keeps its blobs at"):
        open_blob_store("memory://elsewhere", tmp_path / "hub")


def test_two_runs_in_one_store_do_not_see_each_other(tmp_path):
    pytest.importorskip("fsspec", reason="the extra fsspec is not installed")
    url = f"file://{tmp_path}/bucket"
    put(open_blob_store(url, tmp_path / "one"))
    assert set(open_blob_store(url, tmp_path / "two").digests()) == set()


def test_a_run_that_began_on_the_disk_stays_there(tmp_path):
    put(open_blob_store(None, tmp_path))
    assert open_blob_store(None, tmp_path).has(BLOB)
    with pytest.raises(ConfigError, match="keeps its blobs in"):
        open_blob_store(f"file://{tmp_path}/bucket", tmp_path)


def test_a_protocol_that_nobody_knows_is_a_wrong_setting(tmp_path):
    pytest.importorskip("fsspec", reason="the extra fsspec is not installed")
    with pytest.raises(ConfigError, match="nosuch://bucket"):
        open_blob_store("nosuch://bucket", tmp_path)


def test_what_a_store_raises_becomes_a_storage_error(tmp_path):
    pytest.importorskip("fsspec", reason="the extra fsspec is not installed")
    blobs = FsspecBlobStore(f"file://{tmp_path}/store", tmp_path / "staging")
    put(blobs)
    path = tmp_path / "store" / BLOB.digest
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError, match="failed"):
        blobs.read(BLOB.digest, 0, 10)
