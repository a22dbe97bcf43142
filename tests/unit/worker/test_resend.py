"""When calls are repeated, and when not."""

import random
import time

import pytest

from hetero_rl.errors import FencedError, InvalidMessageError, RefusedError, UnreachableError
from hetero_rl.worker.resend import Backoff, Contact, Pacing, may_pass


class Highest(random.Random):  # ruff: ignore[suspicious-non-cryptographic-random-usage] - jitter
    def uniform(self, a, b):
        return b


def test_delays_are_drawn_below_a_bound_that_doubles_up_to_the_longest():
    backoff = Backoff(Pacing(first_delay=0.2, longest_delay=1.0), Highest())
    assert [backoff.next_delay() for _ in range(5)] == pytest.approx([0.2, 0.4, 0.8, 1.0, 1.0])


def test_a_call_of_its_own_rhythm_is_repeated_no_later_than_that():
    backoff = Backoff(Pacing(first_delay=0.2, longest_delay=20.0), Highest(), longest_delay=0.5)
    assert [backoff.next_delay() for _ in range(4)] == [0.2, 0.4, 0.5, 0.5]


def test_delays_differ_between_workers():
    first, second = Backoff(Pacing()), Backoff(Pacing())
    assert [first.next_delay() for _ in range(4)] != [second.next_delay() for _ in range(4)]


@pytest.mark.parametrize(
    ("error", "repeated"),
    [
        (UnreachableError("no answer"), True),
        (RefusedError("not yet", "RUN_NOT_OPEN"), True),
        (RefusedError("stopping", "SHUTTING_DOWN"), True),
        (RefusedError("full", "STORAGE_FULL"), True),
        (RefusedError("other model", "MODEL_MISMATCH"), False),
        (RefusedError("gone", "LEASE_LOST"), False),
        (RefusedError("a reason of a newer hub", "SOMETHING_NEW"), False),
        (FencedError("replaced"), False),
        (InvalidMessageError("nonsense"), False),
    ],
)
def test_only_what_may_pass_is_repeated(error, repeated):
    assert may_pass(error) is repeated


def test_silence_within_the_patience_is_borne():
    Contact().check(60.0, UnreachableError("no answer"))


def test_silence_beyond_the_patience_names_its_length_and_the_last_error():
    contact = Contact()
    contact._heard = time.monotonic() - 100
    with pytest.raises(UnreachableError, match=r"100 s, longer than 60 s.*Last error: no answer"):
        contact.check(60.0, UnreachableError("no answer"))


def test_an_answer_ends_the_silence():
    contact = Contact()
    contact._heard = time.monotonic() - 100
    contact.note()
    contact.check(60.0, UnreachableError("no answer"))
