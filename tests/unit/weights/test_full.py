"""Full copies: what is written is what is loaded, and damage is named."""

import dataclasses

import pytest
import torch

from hetero_rl.errors import ConfigError, DamagedError
from hetero_rl.weights.digests import digest_of_bytes, state_digest
from hetero_rl.weights.full import encode_full, stage_full, unpack_full
from hetero_rl.weights.tensors import raw_bytes
from hetero_rl.wire.messages import DataType, WeightEncoding


@pytest.fixture
def state():
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(11, 3, generator=generator)
    return {
        "embed.weight": embedding,
        "scale": torch.tensor(float("nan")),
        "bias": torch.empty(0),
        "positions": torch.arange(5),
        "norm.weight": torch.randn(7, generator=generator).to(torch.float64),
        "head.weight": embedding,
    }


def bits(tensor):
    return tensor.dtype, tuple(tensor.shape), bytes(raw_bytes(tensor.contiguous()))


def published(state, tmp_path, **options):
    encoded = encode_full(state, tmp_path / "blobs", version=3, step=2, **options)
    return encoded.manifest, [blob.path for blob in encoded.blobs]


def test_a_full_copy_is_staged_bit_for_bit_and_tied_tensors_once(state, tmp_path):
    staged = stage_full(*published(state, tmp_path, serving_dtype=torch.bfloat16))
    loaded = dict(staged.tensors())
    assert list(loaded) == ["embed.weight", "scale", "bias", "positions", "norm.weight"]
    for name, tensor in loaded.items():
        wanted = state[name].to(torch.bfloat16) if state[name].is_floating_point() else state[name]
        assert bits(tensor) == bits(wanted)
    assert staged.manifest.tensors[0].tied_names == ("head.weight",)


def test_without_a_serving_dtype_every_tensor_keeps_its_own(state, tmp_path):
    loaded = dict(stage_full(*published(state, tmp_path)).tensors())
    assert {name: tensor.dtype for name, tensor in loaded.items()} == {
        "embed.weight": torch.float32,
        "scale": torch.float32,
        "bias": torch.float32,
        "positions": torch.int64,
        "norm.weight": torch.float64,
    }


def test_the_manifest_says_version_step_types_and_digests(state, tmp_path):
    manifest, _ = published(state, tmp_path, serving_dtype=torch.float16)
    entry = manifest.tensors[0]
    assert (manifest.version, manifest.step, manifest.encoding) == (3, 2, WeightEncoding.FULL_RAW)
    assert (entry.data_type, entry.shape, entry.size) == (DataType.FLOAT16, (11, 3), 66)
    assert entry.digest == digest_of_bytes(raw_bytes(state["embed.weight"].to(torch.float16)))
    assert manifest.state_digest == state_digest(manifest.tensors)


def test_equal_tensors_that_do_not_share_storage_are_not_tied(tmp_path):
    manifest, _ = published({"a": torch.zeros(4), "b": torch.zeros(4)}, tmp_path)
    assert [entry.tied_names for entry in manifest.tensors] == [(), ()]


def test_a_transposed_view_of_the_same_storage_is_a_tensor_of_its_own(tmp_path):
    square = torch.arange(4.0).reshape(2, 2)
    manifest, paths = published({"a": square, "b": square.T}, tmp_path)
    loaded = dict(stage_full(manifest, paths).tensors())
    assert loaded["b"].tolist() == [[0.0, 2.0], [1.0, 3.0]]


def test_blobs_are_closed_before_they_outgrow_the_limit_and_a_larger_tensor_gets_its_own(tmp_path):
    state = {"a": torch.zeros(3), "b": torch.ones(2), "c": torch.ones(9), "d": torch.ones(1)}
    manifest, paths = published(state, tmp_path, blob_bytes=20)
    assert [blob.size for blob in manifest.blobs] == [20, 36, 4]
    assert [entry.blob_index for entry in manifest.tensors] == [0, 0, 1, 2]
    assert [name for name, _ in stage_full(manifest, paths).tensors()] == list("abcd")


def test_a_state_without_any_element_has_no_blobs(tmp_path):
    manifest, paths = published({"a": torch.empty(0, 4)}, tmp_path)
    assert (manifest.blobs, paths) == ((), [])
    [(_, tensor)] = stage_full(manifest, paths).tensors()
    assert tensor.shape == (0, 4)


def test_an_unaligned_tensor_is_read_back_right(tmp_path):
    state = {"odd": torch.ones(3, dtype=torch.uint8), "long": torch.tensor([2**40, -1])}
    loaded = dict(stage_full(*published(state, tmp_path)).tensors())
    assert loaded["long"].tolist() == [2**40, -1]


def test_a_loaded_tensor_may_be_written_to_without_changing_the_blob(state, tmp_path):
    manifest, paths = published(state, tmp_path)
    before = [path.read_bytes() for path in paths]
    for _, tensor in stage_full(manifest, paths).tensors():
        tensor.zero_()
    assert [path.read_bytes() for path in paths] == before


def test_a_type_that_the_protocol_does_not_know_is_refused_by_name_and_leaves_no_partial_blob(tmp_path):
    state = {"w": torch.ones(2), "mask": torch.ones(2, dtype=torch.bool)}
    with pytest.raises(ConfigError, match="'mask'"):
        published(state, tmp_path)
    assert list((tmp_path / "blobs").iterdir()) == []


def test_a_flipped_bit_in_a_blob_is_found(state, tmp_path):
    manifest, paths = published(state, tmp_path)
    data = bytearray(paths[0].read_bytes())
    data[5] ^= 1
    paths[0].write_bytes(data)
    with pytest.raises(DamagedError, match="digest"):
        stage_full(manifest, paths)


def test_a_truncated_blob_is_found(state, tmp_path):
    manifest, paths = published(state, tmp_path)
    paths[0].write_bytes(paths[0].read_bytes()[:-1])
    with pytest.raises(DamagedError, match="bytes of"):
        stage_full(manifest, paths)


def test_a_missing_blob_is_named(state, tmp_path):
    manifest, paths = published(state, tmp_path)
    paths[0].unlink()
    with pytest.raises(DamagedError, match=manifest.blobs[0].digest):
        stage_full(manifest, paths)


def test_a_tensor_whose_digest_is_wrong_is_named(state, tmp_path):
    manifest, paths = published(state, tmp_path)
    wrong = dataclasses.replace(manifest.tensors[3], digest="0" * 64)
    tensors = (*manifest.tensors[:3], wrong, *manifest.tensors[4:])
    forged = dataclasses.replace(manifest, tensors=tensors, state_digest=state_digest(tensors))
    with pytest.raises(DamagedError, match="'positions'"):
        stage_full(forged, paths)


PLANES = {"encoding": WeightEncoding.FULL_PLANES}


@pytest.mark.parametrize("serving_dtype", [torch.bfloat16, torch.float16, torch.float32, None])
def test_byte_planes_are_unpacked_bit_for_bit(state, tmp_path, serving_dtype):
    manifest, paths = published(state, tmp_path, serving_dtype=serving_dtype, **PLANES)
    unpacked = unpack_full(manifest, paths, tmp_path / "raw")
    expected = stage_full(*published(state, tmp_path, serving_dtype=serving_dtype))
    assert {name: bits(tensor) for name, tensor in unpacked.tensors()} == {
        name: bits(tensor) for name, tensor in expected.tensors()
    }
    assert unpacked.manifest.state_digest == expected.manifest.state_digest
    stage_full(unpacked.manifest, unpacked.paths)


def test_byte_planes_of_a_trained_layer_take_about_seven_tenths(tmp_path):
    weights = torch.randn(100_000, generator=torch.Generator().manual_seed(1)) * 0.02
    manifest, _ = published({"w": weights}, tmp_path, serving_dtype=torch.bfloat16, **PLANES)
    assert manifest.tensors[0].size < 0.7 * 200_000


def test_planes_and_raw_copies_are_not_taken_for_each_other(state, tmp_path):
    with pytest.raises(DamagedError, match="is FULL_PLANES"):
        stage_full(*published(state, tmp_path, **PLANES))
    with pytest.raises(DamagedError, match="is FULL_RAW"):
        unpack_full(*published(state, tmp_path), tmp_path / "raw")


def test_a_tensor_of_planes_whose_digest_is_wrong_is_named(state, tmp_path):
    manifest, paths = published(state, tmp_path, **PLANES)
    wrong = dataclasses.replace(manifest.tensors[0], digest="0" * 64)
    tensors = (wrong, *manifest.tensors[1:])
    forged = dataclasses.replace(manifest, tensors=tensors, state_digest=state_digest(tensors))
    with pytest.raises(DamagedError, match=r"'embed\.weight'"):
        unpack_full(forged, paths, tmp_path / "raw")
    assert list((tmp_path / "raw").iterdir()) == []
