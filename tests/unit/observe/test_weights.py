"""What a manifest says of the cost of a version."""

import dataclasses
import io

import pytest
from rich.console import Console

from hetero_rl.hub.stores.records import VersionRow
from hetero_rl.observe.weights import read_codings, version_record, weights_view
from hetero_rl.weights.adapter_rules import down_name, up_name
from hetero_rl.wire.messages import (
    AdapterDescription,
    BlobReference,
    DataType,
    TensorEntry,
    WeightEncoding,
    WeightManifest,
    WeightSync,
)

ROW = VersionRow(3, 2, "", abandoned=False, pruned=True)


def tensor(name, elements, changed, size):
    return TensorEntry(
        name=name,
        data_type=DataType.BFLOAT16,
        shape=(elements,),
        digest="",
        blob_index=0,
        offset=0,
        size=size,
        changed_elements=changed,
    )


DELTA = WeightManifest(
    version=3,
    step=2,
    encoding=WeightEncoding.ULP_DELTA,
    base_version=2,
    tensors=(tensor("a", 900, 40, 50), tensor("b", 100, 0, 0)),
    blobs=(BlobReference("", 50),),
    state_digest="",
)


def test_a_delta_has_density_and_bits_per_change():
    record = version_record(ROW, DELTA)
    assert (record.elements, record.changed_elements) == (1000, 40)
    assert record.density == pytest.approx(0.04)
    assert record.bits_per_change == pytest.approx(10.0)  # 400 bits for 40 changes
    assert record.share_of_full == pytest.approx(0.025)  # 50 of 2000 bytes
    assert not record.kept


def test_what_nobody_counted_is_unknown():
    uncounted = dataclasses.replace(DELTA, tensors=(tensor("a", 900, 40, 50), tensor("b", 100, None, 0)))
    record = version_record(ROW, uncounted)
    assert (record.changed_elements, record.density, record.bits_per_change) == (None, None, None)


def test_a_delta_without_a_change_has_no_bits_per_change():
    record = version_record(ROW, dataclasses.replace(DELTA, tensors=(tensor("a", 900, 0, 0),), blobs=()))
    assert (record.density, record.bits_per_change, record.share_of_full) == (0.0, None, 0.0)


def test_of_adapters_only_their_own_elements_count_and_the_base_is_told_apart():
    down, up = (
        dataclasses.replace(tensor(name, 100, 20, 25), blob_index=1)
        for name in (down_name("m"), up_name("m"))
    )
    adapter = AdapterDescription(rank=4, alpha=8.0, target_modules=("m",), base_digest="")
    blobs = (BlobReference("", 1800), BlobReference("", 50))
    both = dataclasses.replace(
        DELTA, tensors=(tensor("a", 900, 0, 1800), down, up), blobs=blobs, adapter=adapter
    )
    record = version_record(ROW, both)
    alone = version_record(ROW, dataclasses.replace(both, tensors=(tensor("a", 900, 0, 0), down, up)))
    assert (record.elements, record.changed_elements, record.density) == (200, 40, 0.2)
    assert (record.adapter_rank, record.base_bytes, alone.base_bytes) == (4, 1800, 0)
    console = Console(width=200, file=io.StringIO())
    console.print(weights_view([record, alone, version_record(ROW, DELTA)]))
    text = console.file.getvalue()
    assert "base, adapters of rank 4" in text
    assert text.count("adapters of rank 4") == 2
    assert text.count("all weights") == 1


def test_the_table_has_a_line_for_each_version_and_a_sum():
    console = Console(width=120, record=True, file=None)
    with console.capture() as captured:
        console.print(weights_view([version_record(ROW, DELTA)] * 2))
    text = captured.get()
    assert text.count("ULP_DELTA") == 2
    assert "4.00 %" in text
    assert "2 versions, 100 bytes for each worker; full copies: 4,000 (2.50 %)" in text


def sync(version, fetch):
    return WeightSync(
        weight_version=version, from_version=2, manifests=1, fetched_bytes=50, fetch_seconds=fetch,
        decode_seconds=0.5, verify_seconds=0.25, pause_seconds=0.125, total_seconds=4.0,
    )  # fmt: skip


def test_seconds_are_the_medians_of_the_workers_that_came_to_the_version():
    record = version_record(ROW, DELTA, [sync(3, 1.0), sync(3, 3.0), sync(3, 2.0), sync(2, 9.0)])
    assert (record.syncs, record.fetch_seconds, record.pause_seconds) == (3, 2.0, 0.125)
    console = Console(width=200, file=io.StringIO())
    console.print(weights_view([record]))
    assert "2.000 s" in console.file.getvalue()


def test_without_a_report_there_are_no_seconds():
    assert version_record(ROW, DELTA, [sync(2, 9.0)]).decode_seconds is None


def test_bytes_are_compared_with_both_floors():
    coding = {"seconds": 0.5, "floor_a_bytes": 25.0, "floor_b_bytes": 20.0}
    record = version_record(ROW, DELTA, coding=coding)
    assert (record.encode_seconds, record.as_json()["over_floor_a"], record.as_json()["over_floor_b"]) == (
        0.5,
        2.0,
        2.5,
    )
    console = Console(width=200, file=io.StringIO())
    console.print(weights_view([record, version_record(ROW, DELTA)]))
    (line,) = [line for line in console.file.getvalue().splitlines() if "0.500 s" in line]
    assert line.split() == ["3", "0.500", "s", "2.00", "2.50", "0", "-", "-", "-", "-"]


def test_a_run_without_a_record_of_coding_has_none(tmp_path):
    assert read_codings(tmp_path / "weights.jsonl") == {}


def test_a_line_that_is_being_written_is_left_for_the_next_look(tmp_path):
    path = tmp_path / "weights.jsonl"
    path.write_text('{"version": 2, "coding": {"seconds": 1.0}}\n{"version": 3}\n{"version": 4, "cod')
    assert read_codings(path) == {2: {"seconds": 1.0}}
