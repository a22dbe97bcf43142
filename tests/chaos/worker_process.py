"""The real worker with the scripted engine, on a bad line: `python -m tests.chaos.worker_process ADDRESS DIRECTORY NAME SEED LOSS`.

LOSS is the share of submissions whose reply is lost, and, half as often each, whose request is lost and which arrive twice at once. What
is lost the worker's own loop sends again. What the worker was told is on disk goes into the history.
"""

import asyncio
import os
import random
import sys
from pathlib import Path

from hetero_rl.config import load_config
from hetero_rl.errors import UnreachableError
from hetero_rl.wire.clients import RolloutClient
from hetero_rl.wire.messages import SubmissionReceipt
from hetero_rl.worker import main as worker_main
from tests.chaos.history import History
from tests.chaos.trainer_process import sample_digests


def note(history, submission, receipt):
    """What the worker was told is on disk."""
    if isinstance(receipt, SubmissionReceipt):
        history.note(
            "acknowledged",
            worker=submission.worker.worker_name,
            epoch=submission.worker.worker_epoch,
            sequence=submission.sequence,
            samples=sample_digests(submission.results),
        )


def bad_line(history, draw, loss):
    """A class that stands in for the client of the worker."""

    async def carry(call):
        """Answers of one call, whether it arrived once or twice; what the hub answered may be lost as well."""
        if draw.random() < loss / 2:
            raise UnreachableError("the request was lost")
        if draw.random() < loss / 2:
            answers = [
                second if getattr(first, "duplicate", False) else first
                for first, second in zip(*await asyncio.gather(call(), call()), strict=True)
            ]
        else:
            answers = await call()
        if draw.random() < loss:
            raise UnreachableError("the reply was lost")
        return answers

    class BadLine(RolloutClient):
        async def submit_results(self, submission):
            once = super().submit_results

            async def call():
                return [await once(submission)]

            (receipt,) = await carry(call)
            note(history, submission, receipt)
            return receipt

        async def submit_batch(self, sequence):
            once = super().submit_batch
            outcomes = await carry(lambda: once(sequence))
            for submission, outcome in zip(sequence, outcomes, strict=True):
                note(history, submission, outcome)
            return tuple(outcomes)

    return BadLine


def main(address, directory, name, seed, loss):
    os.environ["XDG_CACHE_HOME"] = str(Path(directory) / "cache" / name)
    draw = random.Random(int(seed))  # ruff: ignore[suspicious-non-cryptographic-random-usage] repeatable on purpose
    worker_main.RolloutClient = bad_line(History(Path(directory) / "history.jsonl"), draw, float(loss))
    config = load_config(
        overrides=["inference.worker.max_concurrent_sequences=8", "inference.start_timeout=300"]
    )
    worker_main.run_worker(address, "cpu", config, name, engine_name="scripted")


if __name__ == "__main__":
    main(*sys.argv[1:])
