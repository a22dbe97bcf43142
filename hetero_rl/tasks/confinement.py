"""Takes system calls away from the own process, for good: no network, no new process, no change to any file.

A seccomp filter (Linux, x86-64 and aarch64) answers the calls below with EPERM; no privilege is needed and nothing undoes it. It is a
list of what is refused, not of what is allowed, because an interpreter needs too many calls to list them all; together with the limits
on memory, time and file size it leaves a grader its sockets that are open already, and reading.
"""

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Mapping, Sequence

__all__ = ["confine"]

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW = 0x7FFF0000
_KILL_PROCESS = 0x80000000
_REFUSE = 0x00050000 | errno.EPERM
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16  # struct seccomp_data, little-endian
_TO_REFUSE = -1
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_X32_BIT = 0x40000000

# Numbers of: sockets (socket, socketpair, connect, bind, listen, accept, accept4), processes (clone, fork, vfork, clone3, execve, execveat,
# ptrace, process_vm_readv, process_vm_writev, kill, tkill, pidfd_send_signal), files (unlink, rename, link, symlink, mkdir, rmdir, truncate,
# chmod, chown and their *at forms), and ways around (io_uring_setup, bpf, perf_event_open, userfaultfd, keyctl, mount, unshare, setns,
# creat, openat2). Then, for each call that opens a file, which of its arguments holds the flags.
_REFUSED = {
    "x86_64": (
        0xC000003E,
        (
            *(41, 53, 42, 49, 50, 43, 288),
            *(56, 57, 58, 435, 59, 322, 101, 310, 311, 62, 200, 424),
            *(87, 263, 82, 264, 316, 86, 265, 88, 266, 83, 258, 84, 76, 77, 90, 91, 268, 92, 93, 94, 260),
            *(425, 321, 298, 323, 250, 165, 272, 308),
            *(85, 437),
        ),
        {257: 2, 2: 1},
    ),
    "aarch64": (
        0xC00000B7,
        (
            *(198, 199, 203, 200, 201, 202, 242),
            *(220, 435, 221, 281, 117, 270, 271, 129, 130, 424),
            *(35, 38, 276, 37, 36, 34, 45, 46, 52, 53, 54, 55),
            *(425, 280, 241, 282, 219, 40, 97, 268),
            437,
        ),
        {56: 2},
    ),
}


def confine() -> bool:
    """Confines this process and what it would start; False where the kernel or the processor is not one that can."""
    known = _REFUSED.get(platform.machine())
    if known is None or not sys.platform.startswith("linux"):
        return False
    program = _program(*known)
    # struct sock_fprog: the number of instructions and where they are.
    instructions = ctypes.create_string_buffer(program, len(program))
    filter_program = ctypes.create_string_buffer(
        struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    )
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    where = ctypes.addressof(filter_program)
    return bool(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, where, 0, 0) == 0)


def _program(architecture: int, numbers: Sequence[int], opens: Mapping[int, int]) -> bytes:
    """The filter. Calls of another architecture end the process; `numbers`, and opening to write, fail; the rest passes."""
    # The end of the program, so that distances to it are known: each way of opening checks its flags.
    opening = [
        part
        for argument in opens.values()
        for part in (
            (_LOAD, _ARGUMENTS_OFFSET + 8 * argument),
            (_JUMP_ANY_BIT, _WRITE_FLAGS, _TO_REFUSE, 0),
            (_RETURN, _ALLOW),
        )
    ]
    code: list[tuple[int, ...]] = [
        (_LOAD, _ARCHITECTURE_OFFSET),
        (_JUMP_EQUAL, architecture, 1, 0),
        (_RETURN, _KILL_PROCESS),
        (_LOAD, _NUMBER_OFFSET),
        (_JUMP_GREATER_EQUAL, _X32_BIT, _TO_REFUSE, 0),
        *((_JUMP_EQUAL, number, _TO_REFUSE, 0) for number in numbers),
        # The block of the n-th way of opening begins after the remaining comparisons and the RETURN behind them.
        *((_JUMP_EQUAL, number, len(opens) + 2 * index, 0) for index, number in enumerate(opens)),
        (_RETURN, _ALLOW),
        *opening,
        (_RETURN, _REFUSE),
    ]
    last = len(code) - 1
    return b"".join(_instruction(place, last, *parts) for place, parts in enumerate(code))


def _instruction(
    place: int, last: int, operation: int, value: int, if_true: int = 0, if_false: int = 0
) -> bytes:
    """One `struct sock_filter`; a jump to the refusal gets its distance."""
    return struct.pack(
        "=HBBI", operation, last - place - 1 if if_true == _TO_REFUSE else if_true, if_false, value
    )
