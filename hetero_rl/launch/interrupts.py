"""Ctrl-C and SIGTERM: once drains, twice stops at once.

signal ──► written to a socket by the C handler, whatever the main thread is doing
                └──► interrupt thread: first ──► on_first(): drain, say how to go on
                                       second ─► on_second(): end everything now

Nothing runs in the signal handler itself: an event or a lock that the main thread holds at that very moment would never
be given back.
"""

import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

__all__ = ["INTERRUPTED_EXIT_CODE", "Interrupts"]

INTERRUPTED_EXIT_CODE = 130
"""128 + SIGINT, as a shell reports it."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Handles the signals that end a process while its block runs; only from the main thread.

    Args:
        on_first: Called on a thread of this class at the first signal.
        on_second: Called on the same thread at every further one.
    """

    def __init__(self, on_first: Callable[[], None], on_second: Callable[[], None]) -> None:
        self._on_first = on_first
        self._on_second = on_second
        self._reader, self._writer = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="interrupts", daemon=True)
        self._former: dict[signal.Signals, object] = {}
        self._former_descriptor = -1

    def __enter__(self) -> Self:
        self._writer.settimeout(0)  # what a wakeup descriptor must be
        self._former_descriptor = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            # nohup asks that a closed terminal does not end the process.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._former[number] = signal.signal(number, _ignore)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal itself returned
        signal.set_wakeup_fd(self._former_descriptor)
        self._writer.close()
        self._thread.join()
        self._reader.close()

    def _serve(self) -> None:
        act = self._on_first
        while number := self._reader.recv(1):
            # The wakeup descriptor gets every signal of the process, SIGCHLD or SIGWINCH included.
            if number[0] in self._former:
                act()
                act = self._on_second


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Keeps Python from raising KeyboardInterrupt at a random line."""
