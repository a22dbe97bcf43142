"""The figures of the wire are computed from real encodings; their targets are for a quiet machine, but for the size."""

import dataclasses
import math

import pytest

from hetero_rl.bench import ingest, repeated, wire
from hetero_rl.bench.samples import STOP_TOKEN, VOCABULARY_SIZE, sample_batch
from hetero_rl.wire.column_codec import ColumnEncoding
from hetero_rl.wire.columns import float32_view, int32_column, int32_view


@pytest.fixture(scope="module")
def batch():
    return sample_batch(samples=16, tokens_each=512, seed=1)


@pytest.fixture(scope="module")
def small():
    return sample_batch(samples=3, tokens_each=8, seed=1)


def test_a_token_of_a_submission_takes_at_most_5_2_bytes_compressed(batch):
    assert wire.bytes_per_token(batch) <= 5.2


def test_uncompressed_it_takes_8_bytes_and_little_else(batch):
    assert 8.0 < wire.bytes_per_token(batch, ColumnEncoding.RAW) < 8.1


def test_an_encoding_that_loses_something_has_no_size(small, monkeypatch):
    monkeypatch.setattr(
        wire, "decode", lambda packed: dataclasses.replace(small, token_ids=int32_column([1]))
    )
    with pytest.raises(AssertionError, match="does not give back"):
        wire.bytes_per_token(small)


def test_made_up_completions_look_like_sampled_ones(batch):
    ids, log_probs = int32_view(batch.token_ids), list(float32_view(batch.log_probs))
    assert min(ids) > STOP_TOKEN
    assert max(ids) < VOCABULARY_SIZE
    assert len(set(ids)) > len(ids) / 4
    assert all(math.isfinite(value) and value <= 0 for value in log_probs)
    # Every log-probability is a number of its own: none is packed as a repetition of another.
    assert len(set(log_probs)) > 0.95 * len(log_probs)
    assert min(log_probs) < -3
    assert max(log_probs) > -0.001


def test_the_same_seed_makes_the_same_completions(small):
    assert sample_batch(samples=3, tokens_each=8, seed=1) == small
    assert sample_batch(samples=3, tokens_each=8, seed=2) != small


def test_every_repeated_field_variant_carries_the_same_data(small):
    forms = {form.name: form for form in repeated.id_formats()}
    for name, encode in repeated.from_columns(small).items():
        form = forms[name.partition(" ")[0]]
        assert repeated.to_columns(form, encode()) == (small.token_ids, small.log_probs)
    ids, numbers = [list(int32_view(small.token_ids))], [list(float32_view(small.log_probs))]
    for name, encode in repeated.from_lists(small, ids, numbers).items():
        assert repeated.to_columns(forms[name], encode()) == (small.token_ids, small.log_probs)


def test_every_figure_of_the_encoding_is_measured(small, monkeypatch):
    monkeypatch.setattr(wire, "_REPEATS", 1)
    figures = {figure.name: figure for figure in wire.encoding_figures(small, pairs=5)}
    assert set(figures) == {
        "encode_over_repeated_fields",
        "encode_planes_over_repeated_fields",
        "encode_lists_over_repeated_fields",
        "decode_over_repeated_fields",
        "decode_planes_over_repeated_fields",
    }
    assert figures["encode_over_repeated_fields"].target == 5.0
    assert all(figure.value > 0 for figure in figures.values())


def test_the_size_figures_say_what_they_are_compared_with(small):
    ordered, shuffled = wire.size_figures(
        small, sample_batch(samples=3, tokens_each=8, seed=1, shuffled_ids=True)
    )
    assert (ordered.name, ordered.target, ordered.relation) == ("bytes_per_token", 5.2, "<=")
    assert "repeated fields" in ordered.baseline
    assert shuffled.target is None


@pytest.mark.slow
def test_ingest_runs_through_a_real_hub_process_and_leaves_nothing_behind(tmp_path):
    figure, *others = ingest.ingest_figures(quick=True, directory=tmp_path)
    assert (figure.name, figure.target, figure.relation) == ("ingest_over_sqlite", 0.5, ">=")
    assert [other.name for other in others] == [
        "ingest_cpu_over_sqlite",
        "ingest_hub_cpu",
        "ingest_over_sqlite_in_batches",
        "ingest_one_by_one_over_sqlite",
        "ingest_one_by_one_cpu_over_sqlite",
        "ingest_one_by_one_hub_cpu",
    ]
    assert 0 < figure.low <= figure.value <= figure.high
    assert list(tmp_path.iterdir()) == []
