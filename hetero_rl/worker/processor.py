"""The processor of this machine."""

import platform
from pathlib import Path

__all__ = ["cpu_name"]


def cpu_name() -> str:
    """Model name of the processor as Linux reports it, or what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()
