"""Two hosts on one machine: network namespaces joined by a line that can be cut. Needs root and `ip`.

namespace A ── vA 10.77.N.1 ═══ line ═══ 10.77.N.2 vB ── namespace B
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
from pathlib import Path

__all__ = ["Hosts", "enter", "unavailable"]

_CLONE_NEWNET = 0x40000000
_COMMAND = shutil.which("ip")


def unavailable():
    """Why there can be no hosts here; empty when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if _COMMAND is None:
        return "network namespaces need the command `ip`"
    name = f"probe{os.getpid()}"
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "add", "vA", "type", "veth", "peer", "name", "vB")
    except subprocess.CalledProcessError as error:
        return f"this kernel makes no network namespaces with a line between them: {error.stderr}"
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("netns", "del", name)
    return ""


def _ip(*arguments):
    subprocess.run([_COMMAND, *arguments], check=True, capture_output=True, text=True)


class Hosts:
    """The two namespaces, until the block ends."""

    def __init__(self):
        number = os.getpid() % 250 + 2
        self.names = {side: f"hetero{os.getpid()}{side}" for side in "AB"}
        self.addresses = {"A": f"10.77.{number}.1", "B": f"10.77.{number}.2"}

    def __enter__(self):
        a, b = self.names["A"], self.names["B"]
        try:
            for name in (a, b):
                _ip("netns", "add", name)
            _ip("link", "add", "vA", "netns", a, "type", "veth", "peer", "name", "vB", "netns", b)
            for side, name in self.names.items():
                _ip("-n", name, "addr", "add", f"{self.addresses[side]}/24", "dev", f"v{side}")
                _ip("-n", name, "link", "set", "lo", "up")
                _ip("-n", name, "link", "set", f"v{side}", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names.values():
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", name)

    def cut(self):
        """Takes the line away."""
        _ip("-n", self.names["A"], "link", "set", "vA", "down")

    def heal(self):
        """Gives the line back."""
        _ip("-n", self.names["A"], "link", "set", "vA", "up")


def enter(name, work, *arguments):
    """Runs work on a host. For a forked process: there is no way back."""
    descriptor = os.open(Path("/run/netns") / name, os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter the namespace {name}")
    os.close(descriptor)
    work(*arguments)
