"""What the file system says about files beside the blobs becomes this package's errors, and those stay as they are."""

import errno

import pytest

from hetero_rl.errors import DamagedError, DiskFullError, StorageError
from hetero_rl.worker.blob_cache import BlobCache


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (OSError(errno.ENOSPC, "no space"), DiskFullError),
        (OSError(errno.EIO, "broken"), StorageError),
        (DamagedError("other bytes"), DamagedError),
    ],
)
def test_an_error_in_the_room_of_a_cache_has_its_kind(tmp_path, raised, expected):
    with pytest.raises(StorageError) as caught, BlobCache(tmp_path, None, None).room():
        raise raised
    assert type(caught.value) is expected
