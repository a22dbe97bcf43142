"""Files that workers need are there again soon after the hub has lost them."""

import threading

import pytest

from hetero_rl.errors import UnreachableError
from hetero_rl.trainer.model_upload import ModelUpload
from hetero_rl.trainer.patience import Patience, StopSignal
from hetero_rl.wire.messages import BlobReference, ModelFile


class Hub:
    """What of the training port keeps blobs."""

    def __init__(self):
        self.blobs = {}
        self.asked = threading.Event()
        self.stored = threading.Event()
        self.away = False

    def put_blob(self, blob, chunks):
        self.asked.set()
        if self.away:
            raise UnreachableError("away")
        if blob.digest not in self.blobs:
            self.blobs[blob.digest] = b"".join(chunks)
            self.stored.set()


@pytest.fixture
def hub():
    return Hub()


@pytest.fixture
def files(tmp_path):
    found = []
    for name in ("config.json", "tokenizer.json"):
        path = tmp_path / name
        path.write_bytes(name.encode())
        found.append((ModelFile(name, BlobReference(name, len(name))), path))
    return found


def test_files_that_the_hub_has_lost_are_uploaded_again_while_the_run_goes_on(hub, files):
    upload = ModelUpload(hub, files, seconds=0.01)
    upload.upload(Patience(StopSignal(threading.Event())))
    assert set(hub.blobs) == {"config.json", "tokenizer.json"}
    hub.stored.clear()
    with upload.kept():
        del hub.blobs["tokenizer.json"]
        assert hub.stored.wait(90)
    assert hub.blobs["tokenizer.json"] == b"tokenizer.json"


def test_a_file_that_the_hub_has_is_not_read(hub, files):
    upload = ModelUpload(hub, files)
    upload.upload(Patience(StopSignal(threading.Event())))
    for _, path in files:
        path.unlink()
    upload.renew()
    assert len(hub.blobs) == 2


def test_a_hub_that_is_away_is_asked_again(hub, files):
    hub.away = True
    with ModelUpload(hub, files, seconds=0.01).kept():
        assert hub.asked.wait(90)
        hub.away = False
        assert hub.stored.wait(90)


def test_a_file_that_is_gone_stops_nothing(hub, files):
    files[0][1].unlink()
    ModelUpload(hub, files).renew()
    assert hub.blobs == {}
