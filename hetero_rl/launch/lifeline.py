"""Ties the life of a child process to its parent's: the other end of `process.ManagedProcess`'s pipe.

parent dies, by whatever ──► its end of our stdin closes ──► read returns end of file
    ──► SIGTERM to ourselves: the ordinary drain ──► still here after the grace: the process group is killed
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

__all__ = ["follow_parent"]


def follow_parent(
    grace: float, descriptor: int | None = None, end: Callable[[], None] | None = None
) -> threading.Thread:
    """Watches a pipe on a daemon thread; at its end drains this process and, after `grace` seconds, kills it.

    Args:
        grace: Seconds that the drain may take.
        descriptor: The pipe; None is standard input.
        end: What kills the process in the end; None kills its process group.
    """
    pipe = sys.stdin.fileno() if descriptor is None else descriptor

    def watch() -> None:
        while os.read(pipe, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace)
        (end or _kill_own_group)()

    watcher = threading.Thread(target=watch, name="lifeline", daemon=True)
    watcher.start()
    return watcher


def _kill_own_group() -> None:
    # Only a session leader owns its whole group; anybody else would take strangers along.
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)
