"""Peak memory of a piece of work, from the kernel's own high-water mark of this process. Linux only."""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

__all__ = ["can_measure", "peak_growth"]

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


def can_measure() -> bool:
    """Whether this system keeps a high-water mark that can be reset."""
    try:
        _RESET.write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def peak_growth(work: Callable[[], object]) -> int:
    """Bytes by which resident memory grew at most while `work` ran; its result is dropped."""
    gc.collect()
    # Freed memory that the allocator still holds would hide a peak below it.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    _RESET.write_text("5", encoding="ascii")
    before = _kilobytes("VmRSS:")
    work()
    return max(_kilobytes("VmHWM:") - before, 0) * 1024


def _kilobytes(key: str) -> int:
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(key):
            return int(line.split()[1])
    raise OSError(f"{_STATUS} has no line {key!r}")
