"""The requests of one blob upload, chunk by chunk, from where the hub's part ends."""

from collections.abc import Iterable, Iterator

from hetero_rl.errors import InvalidMessageError
from hetero_rl.v1 import training_service_pb2
from hetero_rl.wire.channels import CHUNK_BYTES
from hetero_rl.wire.convert import weights
from hetero_rl.wire.messages import BlobReference

__all__ = ["Upload", "rechunk"]


class Upload:
    """The requests of one upload, and what went wrong on this side while they were made."""

    def __init__(self, epoch: int, blob: BlobReference, chunks: Iterable[bytes], offset: int) -> None:
        self.blob = blob
        self.error: Exception | None = None
        self._epoch = epoch
        self._chunks = chunks
        self._offset = offset

    def requests(self) -> Iterator[training_service_pb2.PutBlobRequest]:
        """One request per chunk; the first names epoch and blob. Runs on a thread of gRPC."""
        try:
            yield from self._requests()
        except Exception as error:
            self.error = error
            raise

    def _requests(self) -> Iterator[training_service_pb2.PutBlobRequest]:
        first = True
        position = self._offset
        for data in rechunk(self._chunks, CHUNK_BYTES, skip=self._offset):
            request = training_service_pb2.PutBlobRequest(offset=position, data=data)
            if first:
                request.trainer_epoch = self._epoch
                request.blob.CopyFrom(weights.blob_to_proto(self.blob))
                first = False
            position += len(data)
            yield request
        if position != self.blob.size:
            raise InvalidMessageError(
                f"the chunks of blob {self.blob.digest} add up to {position} bytes, its size is {self.blob.size}"
            )
        if first:
            yield training_service_pb2.PutBlobRequest(
                trainer_epoch=self._epoch, blob=weights.blob_to_proto(self.blob), offset=position
            )


def rechunk(chunks: Iterable[bytes], size: int, *, skip: int = 0) -> Iterator[bytes]:
    """The same bytes without the first `skip`, in pieces of `size` bytes; the last may be smaller.

    Example:
        >>> list(rechunk([b"abc", b"de", b"f"], 2, skip=1))
        [b'bc', b'de', b'f']
    """
    pending = bytearray()
    for chunk in chunks:
        if skip >= len(chunk):
            skip -= len(chunk)
            continue
        pending += memoryview(chunk)[skip:]
        skip = 0
        while len(pending) >= size:
            yield bytes(pending[:size])
            del pending[:size]
    if pending:
        yield bytes(pending)
