"""Processes that are forked from this one, which has imported everything: a start takes milliseconds.

    driver ──fork──► child: own log, failpoint armed, work(*arguments), gone

The driver itself must not have started gRPC, nor a thread: a fork copies neither. A child that ends by an exception writes it
into its log and exits with 1.
"""

import contextlib
import os
import signal
import sys
import traceback

from hetero_rl import failpoints

__all__ = ["Child", "fork"]


class Child:
    """A forked process, ended by its id."""

    def __init__(self, pid, failpoint):
        self.pid = pid
        self.failpoint = failpoint
        self.code = None

    def poll(self):
        """Its exit code, negative for a signal; None while it lives."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def signal(self, number):
        """Sends a signal unless it is gone."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        """Ends it, also when it is stopped; returns when it is gone."""
        self.signal(signal.SIGKILL)
        if self.code is None:
            _, status = os.waitpid(self.pid, 0)
            self.code = os.waitstatus_to_exitcode(status)


def fork(work, *arguments, log, failpoint=""):
    """Starts `work(*arguments)` in a process of its own, which dies at `failpoint` if it comes there."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Child(pid, failpoint)
    code = 1
    try:
        _prepare(log, failpoint)
        work(*arguments)
        code = 0
    except BaseException:  # ruff: ignore[blind-except] whatever it is ends this process, and nothing of the driver's may run here
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(code)
    raise AssertionError("unreachable")


def _prepare(log, failpoint):
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    failpoints.arm(failpoint)
