"""A state as what changed since the held weights."""

import pytest
import torch

pytest.importorskip("numba", reason="the codec extra is not installed")

from hetero_rl.errors import DamagedError
from hetero_rl.weights.changes import encode_changes
from hetero_rl.weights.difference import Difference
from hetero_rl.weights.full import encode_full, encode_full_tensors, stage_full
from hetero_rl.weights.held import HeldWeights
from hetero_rl.weights.tensors import raw_bytes

BFLOAT16 = torch.bfloat16


@pytest.fixture
def before():
    embedding = torch.linspace(-1, 1, 2048).view(64, 32)
    return {"embed": embedding, "empty": torch.empty(0, 4), "count": torch.tensor([3]), "head": embedding}


@pytest.fixture
def after(before):
    """Two elements moved; one of them by less than the serving type shows."""
    embedding = before["embed"].clone()
    embedding.view(-1)[7] += 0.5
    embedding.view(-1)[9] += 1e-6
    return before | {"embed": embedding, "head": embedding}


@pytest.fixture
def held(before, tmp_path):
    encoded = encode_full(before, tmp_path, version=1, step=0, serving_dtype=BFLOAT16)
    return HeldWeights.from_staged(stage_full(encoded.manifest, [blob.path for blob in encoded.blobs]))


def test_only_what_changed_is_kept(held, after):
    difference = Difference.of(held, after, BFLOAT16)
    assert [change.changes.positions.tolist() for change in difference.changes] == [[7], [], []]


def test_tensors_are_those_of_the_state_under_every_name(held, after):
    difference = Difference.of(held, after, BFLOAT16)
    assert list(difference) == ["embed", "head", "empty", "count"]
    assert len(difference) == 4
    assert raw_bytes(difference["head"]) == raw_bytes(after["embed"].to(BFLOAT16))
    assert difference["count"].tolist() == [3]
    assert difference["empty"].shape == (0, 4)
    assert raw_bytes(held_tensor(held, "embed"))[14:16] != raw_bytes(difference["embed"])[14:16]


def held_tensor(held, name):
    return dict(held.tensors())[name]


def test_a_full_copy_of_a_difference_is_that_of_the_state(held, after, tmp_path):
    difference = Difference.of(held, after, BFLOAT16)
    whole = encode_full_tensors(difference.distinct(), tmp_path / "a", version=2, step=1)
    expected = encode_full(after, tmp_path / "b", version=2, step=1, serving_dtype=BFLOAT16)
    assert whole.manifest == expected.manifest


def test_a_difference_is_of_no_use_once_the_held_weights_have_moved_on(held, after, tmp_path):
    difference = Difference.of(held, after, BFLOAT16)
    delta = encode_changes(held, difference.changes, tmp_path / "delta", version=2, step=1)
    held.apply_delta(delta.manifest, [blob.path for blob in delta.blobs])
    assert raw_bytes(held_tensor(held, "embed")) == raw_bytes(after["embed"].to(BFLOAT16))
    with pytest.raises(DamagedError, match="moved on from version 1"):
        _ = difference["embed"]


def test_a_state_with_other_tensors_is_refused_by_name(held, before):
    with pytest.raises(DamagedError, match="'embed' is BFLOAT16"):
        Difference.of(held, before | {"embed": before["embed"].view(32, 64)}, BFLOAT16)
