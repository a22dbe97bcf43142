"""A manifest that contradicts itself, or does not follow what is held, is refused and says why."""

import dataclasses

import pytest

from hetero_rl.errors import DamagedError
from hetero_rl.weights.digests import digest_of_bytes, state_digest
from hetero_rl.weights.manifest import check_follows, check_manifest
from hetero_rl.wire.messages import BlobReference, DataType, TensorEntry, WeightEncoding, WeightManifest

OLD, NEW = digest_of_bytes(b"old"), digest_of_bytes(b"new")


def entry(**changes):
    fields = {
        "name": "w",
        "data_type": DataType.BFLOAT16,
        "shape": (2, 3),
        "digest": OLD,
        "blob_index": 0,
        "offset": 4,
        "size": 12,
    }
    return TensorEntry(**fields | changes)


def manifest(*tensors, **changes):
    fields = {
        "version": 1,
        "step": 0,
        "encoding": WeightEncoding.FULL_RAW,
        "tensors": tensors,
        "blobs": (BlobReference(OLD, 16),),
        "state_digest": state_digest(tensors),
    }
    return WeightManifest(**fields | changes)


def delta(*tensors, **changes):
    fields = {"version": 2, "encoding": WeightEncoding.ULP_DELTA, "base_version": 1}
    return manifest(*tensors, **fields | changes)


def step(**changes):
    return entry(**{"digest": NEW, "base_digest": OLD, "size": 3} | changes)


def test_a_sound_full_copy_and_a_sound_delta_pass():
    check_manifest(manifest(entry()))
    check_manifest(delta(step()))
    check_manifest(delta(step(changed_elements=6)))
    check_follows(delta(step()), manifest(entry()))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (manifest(entry(), version=0), "version 0"),
        (manifest(entry(), base_version=1), "names a base version"),
        (delta(step(), base_version=2), "not an earlier one"),
        (delta(step(), base_version=0), "not an earlier one"),
        (manifest(entry(), entry()), "'w' is empty or occurs twice"),
        (manifest(entry(tied_names=("w",))), "'w' is empty or occurs twice"),
        (manifest(entry(name="")), "'' is empty"),
        (manifest(entry(shape=(-2, -3))), "out of bounds"),
        (manifest(entry(shape=(2**30, 2**30))), "out of bounds"),
        (manifest(entry(shape=(1,) * 9)), "out of bounds"),
        (manifest(entry(digest="abc")), "lacks a digest"),
        (manifest(entry(base_digest=OLD)), "base digest in a full copy"),
        (delta(step(base_digest="")), "lacks a digest"),
        (manifest(entry(offset=5)), "outside its blob"),
        (manifest(entry(offset=-1)), "negative"),
        (manifest(entry(blob_index=1)), "outside its blob"),
        (manifest(entry(size=10)), "has 10 bytes, not 12"),
        (manifest(entry(), blobs=(BlobReference("x", 16),)), "not a blob reference"),
        (manifest(entry(), state_digest=OLD), "state digest"),
        (manifest(entry(changed_elements=1)), "counts 1 changed elements"),
        (delta(step(changed_elements=7)), r"\(2, 3\) counts 7 changed elements"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(broken, message):
    with pytest.raises(DamagedError, match=message):
        check_manifest(broken)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ((step(name="v"),), "lacks tensor 'w'"),
        ((step(), step(name="v")), "'v' of the delta"),
        ((step(shape=(3, 2)),), r"BFLOAT16\[3, 2\] in the delta, BFLOAT16\[2, 3\]"),
        ((step(data_type=DataType.FLOAT16),), "FLOAT16"),
        ((step(tied_names=("head",)),), "tied to"),
        ((step(base_digest=NEW),), "the delta is against"),
    ],
)
def test_a_delta_that_does_not_follow_the_held_version_names_the_tensor(tensors, message):
    with pytest.raises(DamagedError, match=message):
        check_follows(delta(*tensors), manifest(entry()))


def test_a_delta_is_applied_exactly_once():
    held = dataclasses.replace(manifest(entry()), version=2)
    with pytest.raises(DamagedError, match="not against the held version 2"):
        check_follows(delta(step()), held)


def test_the_state_digest_tells_apart_what_runs_together():
    one = state_digest([entry(name="a"), entry(name="bc")])
    other = state_digest([entry(name="ab"), entry(name="c")])
    assert one != other
