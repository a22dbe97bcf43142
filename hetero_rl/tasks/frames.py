"""Length-prefixed JSON over a socket: how the trainer and its grader processes talk. Never pickle."""

import json
import socket
import struct
import time
from typing import Any

__all__ = ["MAX_FRAME_BYTES", "FrameError", "receive_frame", "send_frame"]

MAX_FRAME_BYTES = 16 * 2**20
_LENGTH = struct.Struct("<I")


class FrameError(Exception):
    """The other side closed the connection, or sent what is not a frame."""


def send_frame(connection: socket.socket, message: Any) -> None:
    """Sends one message.

    Raises:
        FrameError: If the message is too large or the other side is gone. A socket with a time limit raises
            its own TimeoutError when the other side does not read.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {len(body)} bytes; at most {MAX_FRAME_BYTES} are sent")
    try:
        connection.sendall(_LENGTH.pack(len(body)) + body)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise FrameError("the other side closed the connection") from error


def receive_frame(connection: socket.socket, time_limit: float | None = None) -> Any:
    """Receives one message.

    Args:
        connection: A connected stream socket.
        time_limit: Seconds until all of it must be here; None waits for ever.

    Raises:
        FrameError: If the other side closed the connection or what came is not a frame. TimeoutError says that
            the time is over.
    """
    deadline = None if time_limit is None else time.monotonic() + time_limit
    (length,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size, deadline))
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {length} bytes; at most {MAX_FRAME_BYTES} are read")
    try:
        return json.loads(_receive_exactly(connection, length, deadline))
    except (ValueError, RecursionError) as error:
        raise FrameError(f"not JSON: {error}") from error


def _receive_exactly(connection: socket.socket, size: int, deadline: float | None) -> bytes:
    received = bytearray()
    while len(received) < size:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no complete message in time")
            connection.settimeout(left)
        try:
            part = connection.recv(min(size - len(received), 2**16))
        except ConnectionResetError as error:
            raise FrameError("the other side closed the connection") from error
        if not part:
            raise FrameError("the other side closed the connection")
        received += part
    return bytes(received)
