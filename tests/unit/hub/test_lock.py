"""One hub per run directory."""

import os

import pytest

from hetero_rl.errors import StorageError
from hetero_rl.hub.lock import RunLock


def test_a_second_hub_is_told_who_holds_the_directory(tmp_path):
    with RunLock(tmp_path), pytest.raises(StorageError, match=f"pid {os.getpid()}"):
        RunLock(tmp_path)


def test_a_released_directory_can_be_taken(tmp_path):
    with RunLock(tmp_path):
        pass
    with RunLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be used"):
        RunLock(tmp_path / "file" / "hub")
