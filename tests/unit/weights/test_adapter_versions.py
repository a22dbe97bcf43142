"""Versions that hold a frozen base and adapters: what the manifest must say, what is coded, and what is made of it."""

import dataclasses

import pytest
import torch

from hetero_rl.errors import DamagedError, InvalidMessageError
from hetero_rl.weights.adapter_rules import down_name, is_adapter_name, up_name
from hetero_rl.weights.digests import digest_of_bytes, state_digest
from hetero_rl.weights.full import encode_full, stage_full
from hetero_rl.weights.low_rank import merged_tensors, take_apart
from hetero_rl.weights.manifest import check_follows, check_manifest
from hetero_rl.weights.tensors import raw_bytes
from hetero_rl.wire.messages import AdapterDescription, WeightEncoding

MODULE = "layers.0.q_proj"
BF16 = torch.bfloat16
LORA = AdapterDescription(rank=1, alpha=2.0, target_modules=("q_proj",), base_digest="")


def state(up=(0.0, 0.0), *, base=1.0):
    """W [2, 3], A [1, 3] and B [2, 1] of one module, and a matrix that has no adapter."""
    return {
        "embed": torch.full((4, 3), base, dtype=BF16),
        f"{MODULE}.weight": torch.tensor([[1.0, 0.0, 2.0], [0.0, 4.0, 0.0]], dtype=BF16),
        down_name(MODULE): torch.tensor([[1.0, 0.0, 0.5]], dtype=BF16),
        up_name(MODULE): torch.tensor([[value] for value in up], dtype=BF16),
    }


def full(directory, tensors=None, *, version=1, adapter=LORA, **options):
    return encode_full(
        tensors or state(), directory, version=version, step=version - 1, adapter=adapter, **options
    )


def remade(manifest, **changes):
    """With changes, and the digest that the changed tensors have."""
    changed = dataclasses.replace(manifest, **changes)
    return dataclasses.replace(changed, state_digest=state_digest(changed.tensors))


def of_shape(manifest, name, shape):
    """The tensor of a name in another shape of as many elements."""
    return tuple(dataclasses.replace(t, shape=shape) if t.name == name else t for t in manifest.tensors)


@pytest.fixture
def manifest(tmp_path):
    return full(tmp_path / "full").manifest


def test_the_manifest_says_what_the_adapters_are_and_what_their_base_is(manifest):
    own = [entry for entry in manifest.tensors if not is_adapter_name(entry.name)]

    assert [entry.name for entry in own] == ["embed", f"{MODULE}.weight"]
    assert manifest.adapter == dataclasses.replace(LORA, base_digest=state_digest(own))
    assert manifest.adapter.scale == 2.0
    check_manifest(manifest)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adapter": None}, "says nothing of adapters: a hub or relay on the way is older"),
        ({"rank": 2}, r"shapes \[\(1, 3\), \(2, 1\)\] on a weight of \(2, 3\); a rank of 2"),
        ({"rank": 0}, "adapters of rank 0"),
        ({"alpha": float("nan")}, "alpha nan"),
        ({"alpha": -1.0}, r"alpha -1\.0"),
        ({"target_modules": ("k_proj",)}, r"says that \['k_proj'\] have adapters, \['q_proj'\] have"),
        ({"base_digest": "no"}, "names no digest of its base"),
        ({"base_digest": "0" * 64}, "its base has digest 0000"),
    ],
)
def test_a_description_that_is_not_that_of_the_tensors_is_refused(manifest, changes, message):
    if "adapter" not in changes:
        changes = {"adapter": dataclasses.replace(manifest.adapter, **changes)}
    with pytest.raises(DamagedError, match=message):
        check_manifest(dataclasses.replace(manifest, **changes))


@pytest.mark.parametrize(
    ("name", "shape"), [(down_name(MODULE), (3, 1)), (up_name(MODULE), (1, 2)), (f"{MODULE}.weight", (3, 2))]
)
def test_parts_that_do_not_fit_each_other_are_refused(manifest, name, shape):
    with pytest.raises(DamagedError, match=f"the adapter of '{MODULE}' has shapes"):
        check_manifest(remade(manifest, tensors=of_shape(manifest, name, shape)))


def test_half_an_adapter_and_one_without_its_matrix_are_refused(manifest):
    for missing in (up_name(MODULE), f"{MODULE}.weight"):
        tensors = tuple(entry for entry in manifest.tensors if entry.name != missing)
        with pytest.raises(DamagedError, match="the adapter of"):
            check_manifest(remade(manifest, tensors=tensors))


def test_a_version_that_is_said_to_have_adapters_must_have_some(manifest):
    tensors = tuple(entry for entry in manifest.tensors if not is_adapter_name(entry.name))
    with pytest.raises(DamagedError, match=r"\['q_proj'\] have adapters, \[\] have"):
        check_manifest(remade(manifest, tensors=tensors))


def test_the_blobs_of_the_base_are_the_same_in_every_full_copy(tmp_path):
    first = full(tmp_path / "a").manifest
    later = full(tmp_path / "b", state((1.0, -1.0)), version=9).manifest

    assert len(first.blobs) == len(later.blobs) == 2
    assert first.blobs[0] == later.blobs[0]
    assert first.blobs[1] != later.blobs[1]


def test_merging_adds_scale_b_a_to_the_base_and_leaves_the_rest_and_the_version_alone(tmp_path):
    encoded = full(tmp_path, state((0.5, -1.0)))
    staged = stage_full(encoded.manifest, [blob.path for blob in encoded.blobs])
    for _ in range(2):  # again from the base: nothing adds up
        base, adapters = take_apart(staged, encoded.manifest.adapter)
        merged = dict(merged_tensors(base, adapters))

        assert list(merged) == ["embed", f"{MODULE}.weight"]
        # Added is 2 times the outer product of 0.5, -1 and 1, 0, 0.5.
        assert merged[f"{MODULE}.weight"].tolist() == [[2.0, 0.0, 2.5], [-2.0, 4.0, -1.0]]
        assert merged[f"{MODULE}.weight"].dtype is BF16
        assert merged["embed"].tolist() == state()["embed"].tolist()


def test_merging_rounds_once_and_only_where_it_is_asked_to(tmp_path):
    encoded = full(tmp_path, state((2.0**-9, 0.0)))  # 1 + 2^-8 is no bfloat16
    staged = stage_full(encoded.manifest, [blob.path for blob in encoded.blobs])

    def first(dtype):
        return dict(merged_tensors(*take_apart(staged, encoded.manifest.adapter), dtype))[f"{MODULE}.weight"]

    assert first(None)[0, 0].item() == 1.0
    assert first(torch.float32)[0, 0].item() == 1.0 + 2.0**-8


def test_an_adapter_without_a_matrix_to_be_added_to_is_named(tmp_path):
    encoded = full(tmp_path)
    staged = stage_full(encoded.manifest, [blob.path for blob in encoded.blobs])
    _, adapters = take_apart(staged, encoded.manifest.adapter)

    with pytest.raises(InvalidMessageError, match=f"adapters of '{MODULE}.weight' have no such weight"):
        list(merged_tensors([], adapters))


class TestDeltas:
    @pytest.fixture
    def held(self, tmp_path):
        pytest.importorskip("numba", reason="the codec extra is not installed")
        from hetero_rl.weights.held import HeldWeights

        encoded = full(tmp_path / "full")
        return HeldWeights.from_staged(stage_full(encoded.manifest, [blob.path for blob in encoded.blobs]))

    @pytest.fixture
    def encode(self, held, tmp_path):
        from hetero_rl.weights.changes import encode_delta

        def encoded(tensors, version=2):
            return encode_delta(held, tensors, tmp_path / f"delta-{version}", version=version, step=version)

        return encoded

    def test_a_delta_carries_the_adapters_alone(self, held, encode):
        delta = encode(state((0.5, -1.0)))

        sizes = {entry.name: entry.size for entry in delta.manifest.tensors}
        assert [name for name, size in sizes.items() if size] == [up_name(MODULE)]
        assert delta.manifest.adapter == held.manifest.adapter
        held.apply_delta(delta.manifest, [blob.path for blob in delta.blobs])
        assert held.manifest.adapter == delta.manifest.adapter
        assert dict(held.tensors())[up_name(MODULE)].tolist() == [[0.5], [-1.0]]

    def test_a_frozen_base_is_not_even_compared(self, held, encode):
        delta = encode(state((0.5, 0.0), base=7.0))

        assert delta.changed["embed"] == 0

    def test_a_merged_delta_keeps_what_the_adapters_are(self, held, tmp_path, encode):
        from hetero_rl.weights.changes import merge_deltas
        from hetero_rl.weights.held import HeldWeights

        first = full(tmp_path / "again")
        old = HeldWeights.from_staged(stage_full(first.manifest, [blob.path for blob in first.blobs]))
        for version, up in ((2, (0.5, 0.0)), (3, (0.5, 1.0))):
            delta = encode(state(up), version)
            held.apply_delta(delta.manifest, [blob.path for blob in delta.blobs])

        merged = merge_deltas(old, held, tmp_path / "merged")

        old.apply_delta(merged.manifest, [blob.path for blob in merged.blobs])
        assert (old.manifest.version, old.manifest.adapter) == (3, held.manifest.adapter)
        assert digest_of_bytes(raw_bytes(dict(old.tensors())[up_name(MODULE)])) == digest_of_bytes(
            raw_bytes(state((0.5, 1.0))[up_name(MODULE)])
        )

    def test_a_delta_to_other_adapters_or_from_plain_weights_does_not_follow(self, held, encode):
        delta = encode(state((0.5, 0.0))).manifest
        for other in (None, dataclasses.replace(held.manifest.adapter, alpha=4.0)):
            with pytest.raises(DamagedError, match="leads to adapters"):
                check_follows(dataclasses.replace(delta, adapter=other), held.manifest)

    def test_a_base_that_moves_is_no_delta(self, held, encode):
        delta = encode(state((0.5, 0.0))).manifest
        moved = tuple(
            dataclasses.replace(entry, digest="1" * 64) if entry.name == "embed" else entry
            for entry in delta.tensors
        )
        with pytest.raises(DamagedError, match="its base has digest"):
            check_manifest(remade(delta, tensors=moved))


def test_planes_keep_base_and_adapters_apart_too(tmp_path):
    encoded = full(tmp_path, encoding=WeightEncoding.FULL_PLANES)

    own = {entry.blob_index for entry in encoded.manifest.tensors if is_adapter_name(entry.name)}
    assert own == {1}
