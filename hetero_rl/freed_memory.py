"""Keeps the memory of large messages in the process, so that the system need not hand out fresh pages for each.

Without this, the C library gives every buffer of a megabyte back to the system when it is freed; getting it again costs more
than copying it full. Only glibc has the switch; elsewhere nothing happens.
"""

import ctypes
import sys

__all__ = ["keep_freed_memory"]

# Parameters of mallopt(3).
_TRIM_THRESHOLD = -1
_TOP_PAD = -2
_MMAP_THRESHOLD = -3
_LARGEST_BUFFER = 32 * 2**20
_KEPT = 64 * 2**20


def keep_freed_memory() -> None:
    """Tells the C library to keep up to 64 MiB of freed memory per arena."""
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST_BUFFER)
    mallopt(_TRIM_THRESHOLD, _KEPT)
    mallopt(_TOP_PAD, _KEPT // 4)
