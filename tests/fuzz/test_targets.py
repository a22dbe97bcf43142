"""The targets of the coverage-guided fuzzer take real messages, and nearly real ones do no harm."""

import random

import pytest

pytest.importorskip("numba", reason="the codec extra is not installed")

from tests.chaos.messages import mutated
from tests.fuzz.targets import MESSAGES, TARGETS, chunk, remade, run, seeds


def test_every_target_accepts_a_real_message():
    accepted = {TARGETS[data[0]].__name__ for data in seeds() if run(data)}
    assert accepted == {target.__name__ for target in TARGETS} - {"join"}


def test_mutated_messages_are_taken_or_refused():
    draw = random.Random(3)  # ruff: ignore[suspicious-non-cryptographic-random-usage] repeatable on purpose
    inputs = seeds()
    taken = sum(run(bytes([data[0]]) + mutated(draw, data[1:])) for data in inputs for _ in range(100))
    assert 0 < taken < 100 * len(inputs)


def test_messages_that_are_remade_by_their_descriptors_are_taken_or_refused():
    draw = random.Random(4)  # ruff: ignore[suspicious-non-cryptographic-random-usage] repeatable on purpose
    inputs = [data for data in seeds() if TARGETS[data[0]] in MESSAGES]
    for data in inputs:
        for _ in range(60):
            run(remade(draw, data))
    assert remade(draw, bytes([TARGETS.index(chunk)])) is None


def test_nothing_is_no_input():
    assert not run(b"")
