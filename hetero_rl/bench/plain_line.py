"""A plain TCP connection over the paced line: what the line carries of a transfer that costs nothing.

    this process: recv ◄── line, a process of its own ◄── a thread of this process: waits for one byte, then sends all

Tells what a measured transfer loses from what the line loses on a busy machine.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Generator
from pathlib import Path

from hetero_rl.bench.paced_link import Pace, serve_paced
from hetero_rl.bench.processes import served
from hetero_rl.errors import UnreachableError

__all__ = ["plain_walls"]

_RECEIVED = 2**16


def plain_walls(pace: Pace, size: int, count: int, directory: Path) -> list[float]:
    """Seconds from the question to the last of `size` bytes, of `count` connections in a row over a line of their own."""
    line = directory / "plain_line"
    with (
        _sender(bytes(size), count) as target,
        served(serve_paced, target, pace, line, address_file=line) as paced,
    ):
        return [_fetch(paced.address, size) for _ in range(count)]


def _fetch(address: str, size: int) -> float:
    host, _, port = address.rpartition(":")
    left = size
    with socket.create_connection((host, int(port))) as connection:
        asked = time.perf_counter()
        connection.sendall(b"?")
        while left:
            received = len(connection.recv(_RECEIVED))
            if not received:
                raise UnreachableError(f"the plain connection ended {left} bytes early")
            left -= received
        return time.perf_counter() - asked


@contextlib.contextmanager
def _sender(data: bytes, count: int) -> Generator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_send, args=(listener, data, count))
        thread.start()
        try:
            yield "{}:{}".format(*listener.getsockname())
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # ends a wait for a connection that does not come
            thread.join()


def _send(listener: socket.socket, data: bytes, count: int) -> None:
    for _ in range(count):
        try:
            connection, _ = listener.accept()
        except OSError:  # the listener was closed
            return
        with connection:
            connection.recv(1)
            connection.sendall(data)
