"""A worker's client on a bad line: requests and replies are lost, some calls arrive twice at once, and all of it is written down.

What is lost the worker's own loop sends again under the same sequence numbers. A submission whose receipt was lost is on disk, so a
repeat must be told that it is a duplicate: one that is not is written down as "stored_again".
"""

import asyncio

from hetero_rl.errors import UnreachableError
from hetero_rl.wire.clients import RolloutClient
from hetero_rl.wire.messages import SubmissionReceipt
from tests.chaos.trainer_process import sample_digests

__all__ = ["bad_line"]


def bad_line(history, draw, loss):
    """A class that stands in for `RolloutClient`.

    Args:
        history: Where calls and receipts are noted.
        draw: `random.Random`.
        loss: Share of the calls whose reply is lost; half as many each are lost on their way there and arrive twice at once.
    """
    line = _Line(history, draw, loss)

    class BadLine(RolloutClient):
        async def submit_results(self, submission):
            once = super().submit_results

            async def call():
                return [await once(submission)]

            (receipt,) = await line.carry([submission], call)
            return receipt

        async def submit_batch(self, sequence):
            once = super().submit_batch
            return tuple(await line.carry(sequence, lambda: once(sequence)))

    return BadLine


class _Line:
    def __init__(self, history, draw, loss):
        self.history = history
        self.draw = draw
        self.loss = loss
        self.stored = set()
        """Of the submissions whose receipt was lost; those that were acknowledged are never sent again."""

    async def carry(self, submissions, call):
        """Answers of one call, whether it arrived once or twice."""
        if self.draw.random() < self.loss / 2:
            self.sent(submissions, "request lost")
            raise UnreachableError("the request was lost")
        twice = self.draw.random() < self.loss / 2
        answers = _merged(await asyncio.gather(call(), call())) if twice else await call()
        stored = [
            (submission, answer)
            for submission, answer in zip(submissions, answers, strict=True)
            if isinstance(answer, SubmissionReceipt)
        ]
        self.check(stored)
        if self.draw.random() < self.loss:
            self.sent(submissions, "reply lost")
            raise UnreachableError("the reply was lost")
        self.sent(submissions, "twice" if twice else "once")
        self.acknowledged(stored)
        return answers

    def sent(self, submissions, fate):
        self.history.note("sent", submissions=len(submissions), fate=fate)

    def check(self, stored):
        for submission, receipt in stored:
            key = (submission.worker.worker_epoch, submission.sequence)
            if key in self.stored and not receipt.duplicate:
                self.history.note(
                    "stored_again", worker=submission.worker.worker_name, epoch=key[0], sequence=key[1]
                )
            self.stored.add(key)

    def acknowledged(self, stored):
        samples = {}
        for submission, _ in stored:
            self.stored.discard((submission.worker.worker_epoch, submission.sequence))
            samples |= sample_digests(submission.results)
        if samples:
            worker = stored[0][0].worker
            self.history.note(
                "acknowledged", worker=worker.worker_name, epoch=worker.worker_epoch, samples=samples
            )


def _merged(pair):
    """Of two answers to the same submissions, the one that is no duplicate."""
    return [
        second if getattr(first, "duplicate", False) else first for first, second in zip(*pair, strict=True)
    ]
