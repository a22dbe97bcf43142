"""Versions in a chain: applied exactly once, bit for bit, or refused by name."""

import dataclasses
import time

import pytest
import torch

pytest.importorskip("numba", reason="the codec extra is not installed")

from hetero_rl.errors import DamagedError
from hetero_rl.weights.arrival import FileSource
from hetero_rl.weights.changes import encode_delta, merge_deltas
from hetero_rl.weights.digests import state_digest
from hetero_rl.weights.full import encode_full, stage_full
from hetero_rl.weights.held import HeldWeights
from hetero_rl.weights.seconds import StageSeconds
from hetero_rl.weights.tensors import raw_bytes
from hetero_rl.wire.messages import WeightEncoding

SERVING = torch.bfloat16


@pytest.fixture
def states():
    """Five successive states of a small model with a tied head, in float32."""
    generator = torch.Generator().manual_seed(3)
    embedding = torch.randn(40, 16, generator=generator) * 0.02
    state = {"embed": embedding, "norm": torch.ones(16), "empty": torch.empty(0), "head": embedding}
    found = []
    for _ in range(5):
        found.append(state)
        moved = state["embed"] + torch.randn(40, 16, generator=generator) * 3e-5
        state = {"embed": moved, "norm": state["norm"].clone(), "empty": torch.empty(0), "head": moved}
    return found


@pytest.fixture
def hold(tmp_path):
    def holding(state):
        encoded = encode_full(state, tmp_path, version=1, step=0, serving_dtype=SERVING)
        return HeldWeights.from_staged(stage_full(encoded.manifest, [blob.path for blob in encoded.blobs]))

    return holding


@pytest.fixture
def delta(tmp_path):
    def coded(held, state, version):
        return encode_delta(held, state, tmp_path, version=version, step=version - 1, serving_dtype=SERVING)

    return coded


def apply(held, encoded):
    held.apply_delta(encoded.manifest, [blob.path for blob in encoded.blobs])


def served(state):
    return {name: bytes(raw_bytes(state[name].to(SERVING))) for name in ("embed", "norm", "empty")}


def bits(held):
    return {name: bytes(raw_bytes(tensor)) for name, tensor in held.tensors()}


def test_a_chain_of_deltas_gives_every_version_bit_for_bit(states, hold, delta):
    sender, receiver = hold(states[0]), hold(states[0])
    for version, state in enumerate(states[1:], start=2):
        encoded = delta(sender, state, version)
        apply(sender, encoded)
        apply(receiver, encoded)
        assert bits(receiver) == served(state)
        assert receiver.manifest.version == version
        assert receiver.manifest.step == version - 1
        assert receiver.manifest.state_digest == encoded.manifest.state_digest


def test_the_manifest_says_what_changed(states, hold, delta):
    encoded = delta(hold(states[0]), states[1], 2)
    embed, norm, empty = encoded.manifest.tensors
    assert (encoded.manifest.encoding, encoded.manifest.base_version) == (WeightEncoding.ULP_DELTA, 1)
    assert 0 < encoded.changed["embed"] < 640
    assert (encoded.changed["norm"], encoded.changed["empty"]) == (0, 0)
    assert embed.base_digest != embed.digest
    assert (norm.base_digest, norm.size, empty.size) == (norm.digest, 0, 0)
    assert embed.tied_names == ("head",)


def test_a_state_that_did_not_change_takes_no_blob(states, hold, delta):
    encoded = delta(hold(states[0]), states[0], 2)
    assert encoded.blobs == ()
    held = hold(states[0])
    apply(held, encoded)
    assert bits(held) == served(states[0])


def test_a_worker_several_versions_behind_takes_one_merged_delta(states, hold, delta, tmp_path):
    newest, summed = hold(states[0]), 0
    for version, state in enumerate(states[1:], start=2):
        encoded = delta(newest, state, version)
        apply(newest, encoded)
        summed += sum(blob.reference.size for blob in encoded.blobs)
    behind = hold(states[0])
    merged = merge_deltas(behind, newest, tmp_path)
    assert (merged.manifest.base_version, merged.manifest.version) == (1, 5)
    assert sum(blob.reference.size for blob in merged.blobs) < summed
    apply(behind, merged)
    assert bits(behind) == served(states[4])


def test_a_delta_is_applied_exactly_once_and_in_order(states, hold, delta):
    sender, receiver = hold(states[0]), hold(states[0])
    first = delta(sender, states[1], 2)
    apply(sender, first)
    second = delta(sender, states[2], 3)
    with pytest.raises(DamagedError, match="against version 2, not against the held version 1"):
        apply(receiver, second)
    apply(receiver, first)
    with pytest.raises(DamagedError, match="against version 1, not against the held version 2"):
        apply(receiver, first)
    apply(receiver, second)
    assert bits(receiver) == served(states[2])


def test_a_publish_that_was_lost_leaves_the_senders_copy_where_it_was(states, hold, delta):
    sender, receiver = hold(states[0]), hold(states[0])
    delta(sender, states[1], 2)
    again = delta(sender, states[2], 3)
    apply(receiver, again)
    assert bits(receiver) == served(states[2])


class Late:
    """A blob whose bytes are waited for."""

    def __init__(self, path, reference):
        self.file = FileSource(path, reference)

    def read(self, offset, size):
        time.sleep(0.05)
        return self.file.read(offset, size)

    def check(self):
        self.file.check()


def test_waiting_for_bytes_is_not_decoding(states, hold, delta):
    held = hold(states[0])
    encoded = delta(held, states[1], 2)
    seconds = StageSeconds()
    sources = [Late(blob.path, blob.reference) for blob in encoded.blobs]
    assert sources
    started = time.perf_counter()
    held.apply_arriving(encoded.manifest, sources, seconds)
    passed = time.perf_counter() - started
    assert bits(held) == served(states[1])
    assert 0 <= seconds.decode <= passed - 0.05


def test_another_version_of_the_same_number_is_refused_by_its_digest(states, hold, delta):
    receiver = hold(states[3])
    with pytest.raises(DamagedError, match="'embed' of the held version has digest"):
        apply(receiver, delta(hold(states[0]), states[1], 2))
    assert bits(receiver) == served(states[3])


@pytest.mark.parametrize("damage", ["flip", "truncate", "missing"])
def test_a_damaged_blob_changes_nothing(states, hold, delta, damage):
    receiver = hold(states[0])
    encoded = delta(hold(states[0]), states[1], 2)
    path = encoded.blobs[0].path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data if damage == "flip" else data[:-3])
    if damage == "missing":
        path.unlink()
    with pytest.raises(DamagedError, match=encoded.manifest.blobs[0].digest[:8]):
        apply(receiver, encoded)
    assert bits(receiver) == served(states[0])


def test_a_delta_that_gives_other_bytes_than_promised_makes_the_copy_unusable(states, hold, delta):
    receiver = hold(states[0])
    encoded = delta(hold(states[0]), states[1], 2)
    tensors = (
        dataclasses.replace(encoded.manifest.tensors[0], digest="0" * 64),
        *encoded.manifest.tensors[1:],
    )
    forged = dataclasses.replace(encoded.manifest, tensors=tensors, state_digest=state_digest(tensors))
    with pytest.raises(DamagedError, match="'embed' has digest"):
        receiver.apply_delta(forged, [blob.path for blob in encoded.blobs])
    with pytest.raises(DamagedError, match="load a full copy"):
        apply(receiver, encoded)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"norm": torch.ones(4, 4)}, r"'norm' is BFLOAT16\[4, 4\]"),
        ({"norm": torch.ones(16, dtype=torch.int32)}, r"'norm' is INT32"),
        ({"renamed": torch.ones(16)}, "'renamed'"),
        ({"head": torch.zeros(40, 16)}, "'embed'"),
    ],
)
def test_a_state_with_other_tensors_is_refused_by_name(states, hold, delta, change, message):
    with pytest.raises(DamagedError, match=message):
        delta(hold(states[0]), states[1] | change, 2)


def test_a_state_that_lacks_a_tensor_is_refused_by_name(states, hold, delta):
    state = {name: tensor for name, tensor in states[1].items() if name != "norm"}
    with pytest.raises(DamagedError, match="lacks tensor 'norm'"):
        delta(hold(states[0]), state, 2)
