"""Other people's software, measured beside ours: a process of an environment of its own that answers line by line.

    bench process                    peer process (its own interpreter and packages)
    ask({"do": "run"}) ────────────► one JSON object on stdin
    answer             ◄──────────── one JSON object on stdout: seconds, bytes

The environment is the one that `make test-parity` sets up: `.venv-parity` in the working directory, or what the variable
HETERO_RL_PEERS names.
"""

import contextlib
import json
import os
import subprocess  # ruff: ignore[suspicious-subprocess-import] - runs an interpreter that the user names
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import hetero_rl

__all__ = ["PEERS_VARIABLE", "Peer", "peer_python", "serve", "started"]

PEERS_VARIABLE = "HETERO_RL_PEERS"


def peer_python() -> Path | None:
    """The interpreter of the peers' environment; None when there is none."""
    named = os.environ.get(PEERS_VARIABLE)
    python = Path(named) if named else Path(".venv-parity") / "bin" / "python"
    return python.absolute() if python.is_file() else None


class Peer:
    """A started peer process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def ask(self, **question: Any) -> dict[str, Any]:
        """One question and its answer; raises OSError when the peer has gone."""
        if self._process.stdin is None or self._process.stdout is None:
            raise OSError("the peer process was started without pipes")
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise OSError(f"the peer process ended with status {self._process.wait()}")
        parsed: dict[str, Any] = json.loads(answer)
        return parsed


@contextlib.contextmanager
def started(python: Path, module: str, *arguments: str) -> Generator[Peer]:
    """A peer that runs a module of this package with another interpreter; it ends with the block."""
    root = str(Path(hetero_rl.__file__).parents[1])
    process = subprocess.Popen(
        [str(python), "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": root, "HF_HUB_OFFLINE": "1"},
    )
    try:
        yield Peer(process)
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The peer's side: answers questions until stdin ends. Whatever else prints goes to stderr."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with replies, os.fdopen(os.dup(0)) as questions:
        for line in questions:
            replies.write(json.dumps(answer(json.loads(line))) + "\n")
            replies.flush()
