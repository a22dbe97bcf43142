"""Named places where a test of crashes ends the process, as a power cut would.

`HETERO_RL_FAILPOINT=NAME` kills the process when it comes to that place; `NAME@N` at the N-th time. Without the variable a place costs
one comparison. Names say what was just done, such as "after_commit_before_ack:submit_results".
"""

import os
import signal

__all__ = ["VARIABLE", "arm", "reach"]

VARIABLE = "HETERO_RL_FAILPOINT"


class _Armed:
    """The place that this process dies at, and how often it may still pass."""

    def __init__(self, setting: str) -> None:
        self.name, _, count = setting.partition("@")
        self.left = int(count or 1)

    def reach(self, name: str) -> None:
        if name != self.name:
            return
        self.left -= 1
        if self.left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


_armed: _Armed | None = None


def arm(setting: str) -> None:
    """Makes this process die at NAME or NAME@N; an empty text disarms it."""
    global _armed  # ruff: ignore[global-statement] a process dies as a whole
    _armed = _Armed(setting) if setting else None


def reach(name: str) -> None:
    """Marks a place; kills this process when the place is the armed one."""
    if _armed is not None:
        _armed.reach(name)


arm(os.environ.get(VARIABLE, ""))
