"""When a version is a delta, and against what."""

import dataclasses

import pytest
import torch

pytest.importorskip("numba", reason="the codec extra is not installed")

from hetero_rl.errors import DamagedError
from hetero_rl.observe.weights import read_codings
from hetero_rl.trainer import baseline as module
from hetero_rl.trainer.baseline import Baseline
from hetero_rl.trainer.snapshots import Snapshot
from hetero_rl.weights.digests import state_digest
from hetero_rl.weights.encodings import supported_encodings
from hetero_rl.weights.full import stage_full
from hetero_rl.weights.held import HeldWeights
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


@pytest.fixture
def make(tmp_path):
    return lambda anchor_every: Baseline(anchor_every, tmp_path / "logs")


def publish(baseline, code, snapshots):
    codings = []
    for snapshot in snapshots:
        encoded = code(baseline, snapshot)
        baseline.stored(encoded)
        codings.append(encoded.manifest.encoding)
    return codings


def test_a_full_copy_comes_first_and_is_due_every_so_many_versions_besides_the_delta(
    make, snapshots, code, tmp_path
):
    baseline, anchors = make(3), []
    for snapshot in snapshots:
        publish(baseline, code, [snapshot])
        if baseline.anchor_due:
            anchors.append(baseline.anchor(tmp_path / "aside"))
    assert [anchor.manifest.version for anchor in anchors] == [4, 7]
    assert [(anchor.manifest.encoding, anchor.manifest.base_version) for anchor in anchors] == [(FULL, 0)] * 2


def test_a_full_copy_aside_is_the_version_as_published(make, snapshots, code, tmp_path):
    baseline = make(3)
    tied = [Snapshot(s.step, {"w": s.tensors["weight"], "head": s.tensors["weight"]}) for s in snapshots]
    encoded = [code(baseline, tied[0])]
    baseline.stored(encoded[0])
    encoded.append(code(baseline, tied[1]))
    baseline.stored(encoded[1])
    anchor = baseline.anchor(tmp_path / "aside").manifest
    assert (anchor.version, anchor.step, anchor.state_digest) == (2, 1, encoded[1].manifest.state_digest)
    assert anchor.tensors[0].tied_names == ("head",)


def test_a_hub_that_takes_no_other_ways_gets_full_copies_in_place_of_deltas(make, snapshots, code):
    baseline = make(3)
    baseline.routes_refused()
    assert publish(baseline, code, snapshots) == [FULL, DELTA, DELTA, FULL, DELTA, DELTA, FULL, DELTA]
    assert not baseline.anchor_due


def test_a_merged_delta_leads_from_an_earlier_version_to_the_newest(make, snapshots, code, tmp_path):
    baseline = make(8)
    codings = [code(baseline, snapshots[0])]
    baseline.stored(codings[0])
    behind = HeldWeights.from_staged(stage_full(codings[0].manifest, [codings[0].blobs[0].path]))
    for snapshot in snapshots[1:6]:
        codings.append(code(baseline, snapshot))
        baseline.stored(codings[-1])
    merged = baseline.merged(1, tmp_path / "aside")
    assert (merged.manifest.base_version, merged.manifest.version) == (1, 6)
    sizes = [sum(blob.reference.size for blob in coding.blobs) for coding in codings[1:]]
    assert merged.blobs[0].reference.size < sum(sizes)
    behind.apply_delta(merged.manifest, [merged.blobs[0].path])
    assert behind.manifest.state_digest == codings[-1].manifest.state_digest
    assert baseline.merged(6, tmp_path) is None
    assert baseline.merged(99, tmp_path) is None


def test_only_as_many_logs_are_kept_as_lie_between_two_full_copies(make, snapshots, code, tmp_path):
    baseline = make(3)
    publish(baseline, code, snapshots[:6])
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"before-4", "before-5", "before-6"}
    assert baseline.merged(2, tmp_path / "aside") is None
    assert baseline.merged(3, tmp_path / "aside") is not None


def test_a_log_that_was_damaged_makes_no_delta(make, snapshots, code, tmp_path):
    baseline = make(8)
    publish(baseline, code, snapshots[:5])
    log = tmp_path / "logs" / "before-3"
    log.write_bytes(log.read_bytes()[::-1])
    with pytest.raises(DamagedError, match="'weight'"):
        baseline.merged(1, tmp_path / "aside")


def test_the_record_of_a_delta_says_what_coding_it_took_and_could_have_taken(snapshots, code, tmp_path):
    baseline = Baseline(8, tmp_path / "logs", tmp_path / "weights.jsonl")
    publish(baseline, code, snapshots[:3])
    codings = read_codings(tmp_path / "weights.jsonl")
    assert sorted(codings) == [2, 3]  # the first version is a full copy
    assert codings[2]["seconds"] > 0
    # 16 of 1024 elements, by one value up or down: 1024 H2(1/64) = 118.8 bits and nearly 16; less where exponents say more.
    assert codings[2]["floor_a_bytes"] == pytest.approx(134.8 / 8, rel=0.05)
    assert 0 < codings[2]["floor_b_bytes"] <= codings[2]["floor_a_bytes"]


def test_an_interval_of_one_means_full_copies_only(make, snapshots, code):
    assert set(publish(make(1), code, snapshots)) == {FULL}


def test_without_the_codec_every_version_is_a_full_copy(make, snapshots, code, monkeypatch):
    monkeypatch.setattr(module, "supported_encodings", lambda: (FULL,))
    assert set(publish(make(16), code, snapshots)) == {FULL}
    assert DELTA in supported_encodings()


def test_the_baseline_moves_only_to_what_is_stored(make, snapshots, code):
    baseline = make(16)
    baseline.stored(code(baseline, snapshots[0]))
    lost = code(baseline, snapshots[1])
    after = code(baseline, snapshots[2])
    assert (lost.manifest.base_version, after.manifest.base_version, baseline.version) == (1, 1, 1)
    assert after.manifest.tensors[0].changed_elements == 32
    baseline.stored(after)
    assert code(baseline, snapshots[3]).manifest.base_version == 3


def test_a_delta_that_would_not_be_smaller_is_a_full_copy(make, snapshots, code):
    baseline = make(16)
    publish(baseline, code, snapshots[:2])
    noise = torch.randint(-(2**15), 2**15, (1024,), dtype=torch.int16).view(torch.bfloat16)
    encoded = code(baseline, Snapshot(2, {"weight": noise}))
    assert encoded.manifest.encoding is FULL


def test_a_model_whose_tensors_changed_is_a_full_copy(make, snapshots, code):
    baseline = make(16)
    publish(baseline, code, snapshots[:2])
    encoded = code(baseline, Snapshot(2, {"weight": snapshots[2].tensors["weight"].view(32, 32)}))
    assert encoded.manifest.encoding is FULL


def test_after_a_refusal_full_copies_follow_for_a_while(make, snapshots, code):
    baseline = make(3)
    publish(baseline, code, snapshots[:2])
    baseline.refused()
    assert publish(baseline, code, snapshots[2:]) == [FULL, FULL, FULL, DELTA, DELTA, DELTA]


def test_a_delta_that_does_not_decode_is_no_baseline(make, snapshots, code):
    baseline = make(16)
    publish(baseline, code, snapshots[:2])
    encoded = code(baseline, snapshots[2])
    tensors = (dataclasses.replace(encoded.manifest.tensors[0], digest="0" * 64),)
    forged = dataclasses.replace(encoded.manifest, tensors=tensors, state_digest=state_digest(tensors))
    with pytest.raises(DamagedError, match="'weight' has digest"):
        baseline.stored(dataclasses.replace(encoded, manifest=forged))
    assert baseline.version == 0
    assert code(baseline, snapshots[3]).manifest.encoding is FULL
