"""When a version is a delta, and against what."""

import dataclasses

import pytest
import torch

pytest.importorskip("numba", reason="the codec extra is not installed")

from hetero_rl.errors import DamagedError
from hetero_rl.trainer import baseline as module
from hetero_rl.trainer.baseline import Baseline
from hetero_rl.trainer.snapshots import Snapshot
from hetero_rl.weights.digests import state_digest
from hetero_rl.weights.encodings import supported_encodings
from hetero_rl.wire.messages import WeightEncoding

FULL, DELTA = WeightEncoding.FULL_RAW, WeightEncoding.ULP_DELTA


@pytest.fixture
def snapshots():
    """Snapshots of steps 0 to 7; each moves 16 of 1024 elements by one unit in the last place."""
    bits = torch.randn(1024, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16).view(torch.int16)
    found = []
    for step in range(8):
        bits = bits.clone()
        bits[step * 16 : step * 16 + 16] += 1
        found.append(Snapshot(step, {"weight": bits.view(torch.bfloat16)}))
    return found


@pytest.fixture
def code(tmp_path):
    def encode(baseline, snapshot):
        return baseline.encode(snapshot, tmp_path, version=snapshot.step + 1, card=None)

    return encode


def publish(baseline, code, snapshots):
    codings = []
    for snapshot in snapshots:
        encoded = code(baseline, snapshot)
        baseline.stored(encoded)
        codings.append(encoded.manifest.encoding)
    return codings


def test_an_anchor_comes_first_and_every_so_many_versions(snapshots, code):
    assert publish(Baseline(3), code, snapshots) == [FULL, DELTA, DELTA, FULL, DELTA, DELTA, FULL, DELTA]


def test_an_interval_of_one_means_full_copies_only(snapshots, code):
    assert set(publish(Baseline(1), code, snapshots)) == {FULL}


def test_without_the_codec_every_version_is_a_full_copy(snapshots, code, monkeypatch):
    monkeypatch.setattr(module, "supported_encodings", lambda: (FULL,))
    assert set(publish(Baseline(16), code, snapshots)) == {FULL}
    assert DELTA in supported_encodings()


def test_the_baseline_moves_only_to_what_is_stored(snapshots, code):
    baseline = Baseline(16)
    baseline.stored(code(baseline, snapshots[0]))
    lost = code(baseline, snapshots[1])
    after = code(baseline, snapshots[2])
    assert (lost.manifest.base_version, after.manifest.base_version, baseline.version) == (1, 1, 1)
    assert after.manifest.tensors[0].changed_elements == 32
    baseline.stored(after)
    assert code(baseline, snapshots[3]).manifest.base_version == 3


def test_a_delta_that_would_not_be_smaller_is_a_full_copy(snapshots, code):
    baseline = Baseline(16)
    publish(baseline, code, snapshots[:2])
    noise = torch.randint(-(2**15), 2**15, (1024,), dtype=torch.int16).view(torch.bfloat16)
    encoded = code(baseline, Snapshot(2, {"weight": noise}))
    assert encoded.manifest.encoding is FULL


def test_a_model_whose_tensors_changed_is_a_full_copy(snapshots, code):
    baseline = Baseline(16)
    publish(baseline, code, snapshots[:2])
    encoded = code(baseline, Snapshot(2, {"weight": snapshots[2].tensors["weight"].view(32, 32)}))
    assert encoded.manifest.encoding is FULL


def test_after_a_refusal_full_copies_follow_for_a_while(snapshots, code):
    baseline = Baseline(3)
    publish(baseline, code, snapshots[:2])
    baseline.refused()
    assert publish(baseline, code, snapshots[2:]) == [FULL, FULL, FULL, DELTA, DELTA, FULL]


def test_a_delta_that_does_not_decode_is_no_baseline(snapshots, code):
    baseline = Baseline(16)
    publish(baseline, code, snapshots[:2])
    encoded = code(baseline, snapshots[2])
    tensors = (dataclasses.replace(encoded.manifest.tensors[0], digest="0" * 64),)
    forged = dataclasses.replace(encoded.manifest, tensors=tensors, state_digest=state_digest(tensors))
    with pytest.raises(DamagedError, match="'weight' has digest"):
        baseline.stored(dataclasses.replace(encoded, manifest=forged))
    assert baseline.version == 0
    assert code(baseline, snapshots[3]).manifest.encoding is FULL
