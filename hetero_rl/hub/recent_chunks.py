"""Chunks that were read lately, as they go over the wire: many workers fetch the same blob within seconds of each other."""

from collections import OrderedDict

__all__ = ["RecentChunks"]


class RecentChunks:
    """Messages by blob and position, the least recently used ones forgotten first. For one event loop.

    Args:
        most_bytes: Bytes held at most.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._messages: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._bytes = 0

    def get(self, digest: str, offset: int) -> bytes | None:
        """The message with a blob's bytes from an offset, if it is still there."""
        message = self._messages.get((digest, offset))
        if message is not None:
            self._messages.move_to_end((digest, offset))
        return message

    def put(self, digest: str, offset: int, message: bytes) -> None:
        """Keeps a message, and forgets others for it."""
        self._bytes += len(message) - len(self._messages.pop((digest, offset), b""))
        self._messages[digest, offset] = message
        while self._bytes > self._most_bytes:
            _, forgotten = self._messages.popitem(last=False)
            self._bytes -= len(forgotten)
