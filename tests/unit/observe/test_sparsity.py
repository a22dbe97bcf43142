"""The sparsity record is read as it was written, and adds up by layer and kind of matrix."""

import io
import json

import pytest
from rich.console import Console

from hetero_rl.errors import StorageError
from hetero_rl.observe.sparsity import by_kind, by_layer, read_sparsity, sparsity_page, sparsity_view
from hetero_rl.reports.page import render_page

TENSORS = {
    "model.embed_tokens.weight": [100, 10, None, None],
    "model.layers.0.self_attn.q_proj.weight": [40, 4, None, None],
    "model.layers.11.self_attn.q_proj.weight": [40, 0, None, None],
}
LATER = {
    "model.embed_tokens.weight": [100, 20, 10, 5],
    "model.layers.0.self_attn.q_proj.weight": [40, 0, 4, 0],
    "model.layers.11.self_attn.q_proj.weight": [40, 4, 0, 0],
}


@pytest.fixture
def record(tmp_path):
    path = tmp_path / "weights.jsonl"
    lines = [
        {"version": 2, "step": 1, "base_version": 1, "tensors": TENSORS},
        {"version": 3, "step": 2, "base_version": 2, "tensors": LATER},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_shares_and_overlap_of_a_version(record):
    first, second = (version.total for version in read_sparsity(record))
    assert (first.elements, first.changed, first.repeated) == (180, 14, None)
    assert second.density == pytest.approx(24 / 180)
    assert second.repeated == pytest.approx(5 / 24)
    assert second.chance == pytest.approx(14 / 180)
    assert second.jaccard == pytest.approx(5 / (24 + 14 - 5))


def test_layers_are_in_the_order_of_their_numbers_and_the_rest_comes_last(record):
    layers = by_layer(read_sparsity(record))
    assert list(layers) == ["0", "11", "other"]
    assert (layers["0"].elements, layers["0"].changed) == (80, 4)


def test_kinds_gather_the_same_matrix_of_all_layers(record):
    kinds = by_kind(read_sparsity(record))
    assert {name: counts.changed for name, counts in kinds.items()} == {"embed_tokens": 30, "q_proj": 8}


def test_a_last_line_that_was_cut_short_is_left_out_and_a_damaged_one_is_named(record):
    whole = record.read_text()
    record.write_text(whole + '{"version": 4, "st')
    assert len(read_sparsity(record)) == 2
    record.write_text("nonsense\n" + whole)
    with pytest.raises(StorageError, match="line 1 of"):
        read_sparsity(record)


def test_a_run_without_a_record_is_refused_by_name(tmp_path):
    with pytest.raises(StorageError, match=r"weights\.jsonl cannot be read"):
        read_sparsity(tmp_path / "weights.jsonl")


def test_the_view_and_the_page_name_versions_layers_and_kinds(record):
    console = Console(width=120, file=io.StringIO())
    console.print(sparsity_view(read_sparsity(record)))
    text = console.file.getvalue()
    page = render_page(sparsity_page("quickstart", read_sparsity(record)))
    assert all(word in text for word in ("3 (step 2)", "13.33 %", "20.83 %", "q_proj", "other"))
    assert all(word in page for word in ("quickstart", "q_proj", "<svg"))
