"""A blob that is read on one thread while another brings it."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from hetero_rl.errors import DamagedError, StorageError, UnreachableError
from hetero_rl.weights.arrival import FileSource, Verifier
from hetero_rl.weights.digests import digest_of_bytes
from hetero_rl.weights.seconds import StageSeconds
from hetero_rl.wire.messages import BlobReference, DataType, TensorEntry
from hetero_rl.worker.arriving import ArrivingBlob

DATA = bytes(range(100))
BLOB = BlobReference(hashlib.sha256(DATA).hexdigest(), len(DATA))
PATIENCE = 90.0


@pytest.fixture
def thread():
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "blob.partial"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def blob(file):
    arriving = ArrivingBlob(BLOB, file)
    yield arriving
    arriving.close()


def test_a_read_waits_until_its_bytes_are_there_and_no_longer(blob, thread):
    blob.grew(10)
    assert blob.read(2, 8) == DATA[2:10]
    reading = thread.submit(blob.read, 5, 20)
    blob.grew(25)  # the blob is not complete
    assert reading.result(PATIENCE) == DATA[5:25]


def test_a_read_ends_with_what_went_wrong(blob, thread):
    blob.grew(10)
    reading = thread.submit(blob.read, 5, 20)
    blob.failed(UnreachableError("the line is cut"))
    with pytest.raises(UnreachableError, match="the line is cut"):
        reading.result(PATIENCE)


def test_what_went_wrong_after_the_last_byte_does_not_matter(blob, file):
    blob.ended(file)
    blob.failed(UnreachableError("the line is cut"))
    blob.check()
    assert blob.path() == file


def test_bytes_that_begin_anew_were_other_ones(blob):
    blob.grew(10)
    blob.grew(0)
    with pytest.raises(DamagedError, match=BLOB.digest):
        blob.read(0, 1)


@pytest.mark.parametrize("reads", [[(0, 60), (60, 40)], [(60, 40), (0, 60)], [(10, 5)], []])
def test_the_digest_is_that_of_the_whole_blob_however_it_was_read(blob, file, reads):
    blob.ended(file)
    for offset, size in reads:
        assert blob.read(offset, size) == DATA[offset : offset + size]
    blob.check()


@pytest.mark.parametrize("reads", [[(0, 60), (60, 40)], [(60, 40)], []])
def test_a_wrong_byte_anywhere_is_found(blob, file, reads):
    file.write_bytes(DATA[:-1] + b"\xff")
    blob.ended(file)
    for offset, size in reads:
        blob.read(offset, size)
    with pytest.raises(DamagedError, match="fetch it again"):
        blob.check()


def test_a_file_that_lost_bytes_is_an_error_of_the_disk(blob, file):
    file.write_bytes(DATA[:50])
    blob.ended(file)
    with pytest.raises(StorageError, match="ends at 50 of 100 bytes"):
        blob.read(0, 100)


def test_bytes_keep_their_place_when_the_file_gets_its_name(blob, file, tmp_path):
    blob.grew(60)
    assert blob.read(0, 60) == DATA[:60]
    blob.ended(file.rename(tmp_path / BLOB.digest))
    assert blob.read(60, 40) == DATA[60:]
    blob.check()


def test_a_complete_file_is_checked_before_it_is_read(file):
    assert FileSource(file, BLOB).read(3, 4) == DATA[3:7]
    file.write_bytes(DATA[::-1])
    with pytest.raises(DamagedError, match="fetch it again"):
        FileSource(file, BLOB)


def entry(name, digest):
    return TensorEntry(
        name=name, data_type=DataType.UINT8, shape=(100,), digest=digest, blob_index=0, offset=0, size=100
    )


def test_the_first_wrong_tensor_is_named():
    with Verifier(lambda entry, found: f"{entry.name} is {found[:4]}", seconds := StageSeconds()) as verifier:
        verifier.add(entry("right", BLOB.digest), memoryview(DATA), 0, len(DATA))
        for name in ("wrong", "wrong too"):
            verifier.add(entry(name, "0" * 64), memoryview(DATA), 0, len(DATA))
        with pytest.raises(DamagedError, match=f"^wrong is {digest_of_bytes(DATA)[:4]}$"):
            verifier.finish()
    assert seconds.verify > 0


def test_a_tensor_is_verified_part_by_part_and_passed_on_when_it_is_right():
    passed = []
    whole, wrong = entry("whole", BLOB.digest), entry("wrong", "0" * 64)
    with Verifier(
        lambda entry, found: entry.name, StageSeconds(), lambda entry, data: passed.append((entry, data))
    ) as verifier:
        for start, stop in [(0, 30), (30, 31), (31, 100)]:
            verifier.add(whole, memoryview(DATA), start, stop)
        verifier.add_unchanged(entry("same", "1" * 64), memoryview(b"as before"))
        verifier.add(wrong, memoryview(DATA), 0, 50)
        verifier.add(wrong, memoryview(DATA), 50, 100)
        with pytest.raises(DamagedError, match=r"^wrong$"):
            verifier.finish()
    assert [(entry.name, bytes(data)) for entry, data in passed] == [("whole", DATA), ("same", b"as before")]


def test_a_part_is_not_passed_on_before_the_rest_is_right():
    passed = []
    with Verifier(
        lambda entry, found: entry.name, StageSeconds(), lambda entry, data: passed.append(entry)
    ) as verifier:
        verifier.add(entry("part", BLOB.digest), memoryview(DATA), 0, 99)
        verifier.finish()
    assert not passed
