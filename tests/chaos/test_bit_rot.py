"""Whatever happens to the bytes of a journal, nothing is read as something else and nothing is lost without a word."""

import dataclasses
import random

import pytest

from hetero_rl.hub.stores.records import StoredBatch
from hetero_rl.hub.stores.sqlite_store import SqliteStore
from tests.chaos.bit_rot import rot, verdict
from tests.chaos.rot_images import contents, make_images

CASES = 25


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    draw = random.Random(5)  # ruff: ignore[suspicious-non-cryptographic-random-usage] repeatable on purpose
    return make_images(tmp_path_factory.mktemp("rot") / "images", draw)


@pytest.fixture
def said(images):
    """What a journal says, to be changed."""
    return dict(images[-1].states[-1])


def test_damaged_journals_of_one_seed_are_refused_or_told_or_harmless(tmp_path):
    counts, problems = rot(tmp_path, 20, cases=CASES)
    assert problems == []
    outcomes = {key[3] for key in counts}
    assert {"identical", "refused", "told"} <= outcomes


@pytest.mark.parametrize("number", range(5))
def test_a_journal_that_nobody_damaged_says_everything(images, tmp_path, number):
    image = images[number]
    store = SqliteStore(image.copy_to(tmp_path / "case"))
    store.verify(begun=True)
    store.begin()
    expected = image.states[-1]
    assert verdict(expected, contents(store, expected), bool(store.take_damage())) == ("identical", [])
    store.rollback()
    store.close()


def test_a_completion_that_reads_differently_is_found(said):
    found = dict(said)
    batches, sequences = said["trajectories", "g1"]
    changed = dataclasses.replace(batches[0].batch, generation_seconds=99.0)
    found["trajectories", "g1"] = ((StoredBatch(changed, "w1", "cpu"),), sequences)
    outcome, problems = verdict(said, found, told=True)
    assert outcome == "told"
    assert len(problems) == 1
    assert "reads differently" in problems[0]


def test_a_completion_that_is_gone_without_a_word_is_found(said):
    found = {**said, ("trajectories", "g1"): ((), ())}
    assert verdict(said, found, told=False) == ("told", ["something is missing, and nothing says so"])
    assert verdict(said, found, told=True) == ("told", [])


def test_a_submission_that_is_no_longer_known_is_found(said):
    _, problems = verdict(said, {**said, ("known", 1): False}, told=True)
    assert problems == ["('known', 1) reads differently: False for True"]


def test_what_cannot_be_read_is_refused(said):
    found = {key: value for key, value in said.items() if key[0] != "group"}
    assert verdict(said, found, told=False) == ("refused", [])
