"""What happened in a chaos run, one JSON line each, and the pure function that judges it.

Every process appends to one file with O_APPEND, so lines are in the order in which they were written, and a process that is killed takes
nothing with it but, rarely, the end of a long line that it was writing: such a line is passed over. Events:

    sent           submissions (their number), fate: "once", "twice", "request lost" or "reply lost"
    acknowledged   worker, epoch, samples {"GROUP/INDEX": digest of its tokens and log-probabilities}
    stored_again   worker, epoch, sequence: what was on disk was taken for new
    taken          trainer_epoch, step, samples {"GROUP/INDEX": digest}, lags [..]
    killed         role, how

Each has its time, `at`, in seconds of the machine's monotonic clock, which all processes share.
"""

import dataclasses
import json
import os
import time
from collections import Counter
from pathlib import Path

__all__ = ["Applied", "History", "judge"]


_DEATHS = {"killed": 1, "power cut": 5}
"""Processes that die with an event, at most."""


@dataclasses.dataclass(frozen=True, slots=True)
class Applied:
    """One optimizer step of the final state: what the last checkpoint says changed the weights."""

    step: int
    samples: dict
    lags: list


class History:
    """Appends to a history file, or reads it."""

    def __init__(self, path):
        self.path = Path(path)

    def note(self, event, **fields):
        # It begins with the end of a line: the one before may have lost its own.
        line = "\n" + json.dumps({"event": event, "at": round(time.monotonic(), 3), **fields}) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    @property
    def size(self):
        """Bytes written so far."""
        return self.path.stat().st_size if self.path.exists() else 0

    def read(self):
        if not self.path.exists():
            return []
        events = [_parsed(line) for line in self.path.read_text().splitlines() if line]
        whole = [event for event in events if event is not None]
        deaths = sum(_DEATHS.get(event["event"], 0) for event in whole)
        if len(events) - len(whole) > deaths + 1:  # one more may be under way
            raise AssertionError(
                f"{len(events) - len(whole)} lines of {self.path} are torn, {deaths} processes died"
            )
        return whole


def _parsed(line):
    """An event; None for a line that was torn."""
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None


def judge(events, applied, *, total_steps, max_lag, samples_per_step):
    """Everything that is wrong with a finished run; empty when it kept its promises.

    Args:
        events: Of the history, in order.
        applied: The `Applied` steps of the final checkpoint.
        total_steps: Steps that the run had to take.
        max_lag: Bound of every sample's lag.
        samples_per_step: Samples of a whole batch.
    """
    return [
        *_steps(applied, total_steps, samples_per_step),
        *_twice(applied),
        *_lags(applied, max_lag),
        *_acknowledged(events, applied),
        *_taken(events, applied),
        *_stored_again(events),
    ]


def _steps(applied, total_steps, samples_per_step):
    steps = [item.step for item in applied]
    if steps != list(range(1, total_steps + 1)):
        yield f"steps are {steps}, expected 1 to {total_steps}"
    for item in applied:
        if len(item.samples) != samples_per_step:
            yield f"step {item.step} has {len(item.samples)} samples, expected {samples_per_step}"


def _twice(applied):
    counted = Counter(sample for item in applied for sample in item.samples)
    for sample, count in sorted(counted.items()):
        if count > 1:
            yield f"{sample} changed the weights {count} times"


def _lags(applied, max_lag):
    for item in applied:
        for lag in item.lags:
            if not 0 <= lag <= max_lag:
                yield f"step {item.step} has a sample of lag {lag}, the bound is {max_lag}"


def _acknowledged(events, applied):
    """An acknowledged sample is applied with the content that was acknowledged."""
    final = {sample: digest for item in applied for sample, digest in item.samples.items()}
    for event in events:
        if event["event"] != "acknowledged":
            continue
        for sample, digest in event["samples"].items():
            if sample not in final:
                yield f"{sample} was acknowledged to {event['worker']} and lost"
            elif final[sample] != digest:
                yield f"{sample} was acknowledged to {event['worker']} and other content was trained"


def _taken(events, applied):
    """A step that is handed out again, after a crash, is the same step."""
    final = {item.step: item.samples for item in applied}
    for event in events:
        if event["event"] == "taken" and event["samples"] != final.get(event["step"], event["samples"]):
            yield f"step {event['step']} was handed out with other samples before"


def _stored_again(events):
    for event in events:
        if event["event"] == "stored_again":
            yield (
                f"submission {event['sequence']} of {event['worker']}, epoch {event['epoch']}, was stored already and was "
                "taken for new"
            )
