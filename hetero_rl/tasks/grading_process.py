"""One grader process: `python -m hetero_rl.tasks.grading_process FD`, started by `hetero_rl.tasks.grading`.

FD is its end of a socket pair. The first frame says which scorer to load and the limits; the answer is
{"ready": true, "confined": whether system calls were taken away} or {"error": ...}. Then each frame {"payload", "completions"} is
answered by a frame for each completion, as soon as it is graded: {"reward": number} or {"error": text}.
The process ends when the other side closes, and the kernel ends it when it takes more than its share.
"""

import math
import resource
import socket
import sys
from typing import Any

from hetero_rl.tasks.confinement import confine
from hetero_rl.tasks.frames import FrameError, receive_frame, send_frame
from hetero_rl.tasks.scorers import Scorer, load_scorer

CPU_GRACE_SECONDS = 5
"""Processor time beyond the time limit before the kernel ends a grader whose parent is no longer there to do so."""


def main(file_descriptor: int) -> None:
    """Serves grading requests until the other side closes."""
    with socket.socket(fileno=file_descriptor) as connection:
        setup = receive_frame(connection)
        try:
            score = load_scorer(setup["scorer"])
        except Exception as error:  # ruff: ignore[blind-except] a scorer's library may raise anything; the parent reports it
            send_frame(connection, {"error": f"{type(error).__name__}: {error}"})
            return
        _limit_resources(setup["memory_bytes"])
        send_frame(connection, {"ready": True, "confined": confine()})
        while True:
            try:
                request = receive_frame(connection)
            except FrameError:
                return
            payload = request["payload"].encode()
            for completion in request["completions"]:
                _limit_processor_time(setup["time_limit"])
                reply = _grade(score, payload, completion)
                try:
                    send_frame(connection, reply)
                except FrameError:
                    return


def _grade(score: Scorer, payload: bytes, completion: str) -> dict[str, Any]:
    try:
        reward = score(payload, completion)
    except Exception as error:  # ruff: ignore[blind-except] hostile text may make a scorer raise anything; it earns 0 and is counted
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    if not math.isfinite(reward):
        return {"error": f"the scorer returned {reward}"}
    return {"reward": reward}


def _limit_resources(memory_bytes: int) -> None:
    """No more memory than this, no files written, no further processes or threads, no core dumps."""
    for limit, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(limit)
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (allowed, allowed))


def _limit_processor_time(time_limit: float) -> None:
    """Counts from now; the soft limit ends the process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(used.ru_utime + used.ru_stime + time_limit) + CPU_GRACE_SECONDS
    resource.setrlimit(
        resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
