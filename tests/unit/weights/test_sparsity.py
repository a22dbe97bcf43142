"""Counts of what a delta changed come from where it changed something."""

import json

import numpy as np
import pytest

pytest.importorskip("numba", reason="the codec extra is not installed")

from hetero_rl.weights.digests import digest_of_bytes
from hetero_rl.weights.rewind import ChangeLog
from hetero_rl.weights.sparsity import append_line, count_both, sparsity_line
from hetero_rl.wire.messages import DataType, TensorEntry, WeightEncoding, WeightManifest


def manifest(version):
    entry = TensorEntry(
        name="w",
        data_type=DataType.BFLOAT16,
        shape=(10,),
        digest=digest_of_bytes(b"w"),
        blob_index=0,
        offset=0,
        size=1,
    )
    return WeightManifest(
        version=version, step=version - 1, encoding=WeightEncoding.ULP_DELTA, base_version=version - 1,
        tensors=(entry,), blobs=(), state_digest="",
    )  # fmt: skip


def log_of(path, positions):
    log = ChangeLog(manifest(1), path)
    log.add("w", np.array(positions, np.int64), np.zeros(10, np.uint16), 10)
    return log


def test_the_overlap_counts_positions_in_both():
    assert count_both(10, np.array([1, 3, 9]), np.array([3, 4, 9])) == 2
    assert count_both(10, np.array([], int), np.array([3])) == 0


def test_a_line_counts_elements_changes_and_what_repeats(tmp_path):
    first, second = log_of(tmp_path / "a", [1, 3, 9]), log_of(tmp_path / "b", [3, 4])
    assert sparsity_line(manifest(2), first, None)["tensors"] == {"w": (10, 3, None, None)}
    assert sparsity_line(manifest(3), second, first)["tensors"] == {"w": (10, 2, 3, 1)}


def test_lines_are_appended(tmp_path):
    path = tmp_path / "run" / "weights.jsonl"
    for version in (2, 3):
        append_line(path, sparsity_line(manifest(version), log_of(tmp_path / "log", [0]), None))
    assert [json.loads(line)["version"] for line in path.read_text().splitlines()] == [2, 3]
