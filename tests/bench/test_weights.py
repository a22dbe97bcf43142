"""The baselines that weight deltas are compared with, by hand, and a quick run of the benchmark."""

import numpy as np
import pytest

pytest.importorskip("numba", reason="the codec extra is not installed")
pytest.importorskip("zstandard", reason="the bench extra is not installed")

import zstandard

from hetero_rl.bench.weight_floors import floor_given_exponent, gap_xor_zstd
from hetero_rl.bench.weight_updates import Update, synthetic_update
from hetero_rl.bench.weights import decode_update, encode_update, run


def update_of(old, new):
    return Update("u", ((np.array(old, np.uint16), np.array(new, np.uint16)),))


def test_the_floor_is_the_entropy_of_positions_and_steps_within_each_exponent():
    # Exponent 0x7F: 1 of 4 changes, 4 * H2(1/4) = 3.245 bits, a single step. Exponent 0x80: 2 of 2 change, by +1 and
    # +2: no bits for positions, 2 for the steps.
    old = [0x3F80, 0x3F80, 0x3F81, 0x3F90, 0x4000, 0x4000]
    new = [0x3F81, 0x3F80, 0x3F81, 0x3F90, 0x4001, 0x4002]
    assert 8 * floor_given_exponent(update_of(old, new)) == pytest.approx(5.245, abs=1e-3)


def test_the_published_codec_continues_gaps_that_do_not_fit():
    old = np.zeros(70_000, np.uint16)
    new = old.copy()
    new[[2, 69_999]] = [1, 3]
    coded = np.array([2, 65535, 69_996 - 65_536, 1, 0, 3], np.uint16).tobytes()
    assert gap_xor_zstd(update_of(old, new)) == len(zstandard.ZstdCompressor(level=1).compress(coded))


@pytest.mark.parametrize(("scale", "density"), [(5e-8, 0.003), (1e-6, 0.033), (4e-5, 0.5)])
def test_synthetic_updates_have_the_densities_they_are_named_for(scale, density):
    assert synthetic_update(200_000, scale).density == pytest.approx(density, rel=0.3)


def test_an_update_is_decoded_to_its_new_bits():
    update = synthetic_update(5000, 1e-6)
    held = [update.pairs[0][0].copy()]
    decode_update(encode_update(update), held)
    assert np.array_equal(held[0], update.pairs[0][1])


@pytest.mark.timeout(960)
def test_a_quick_run_reports_every_figure(monkeypatch):
    # What starts a hub takes longer than all the rest.
    monkeypatch.setattr("hetero_rl.bench.weights.link_figures", lambda update, *, quick: [])
    monkeypatch.setattr("hetero_rl.bench.weights.bulk_figures", lambda *, quick: [])
    figures = {figure.name: figure for figure in run(quick=True).figures}
    assert {name: figure.target for name, figure in figures.items()} == {
        "payload_over_floor_b": 1.15,
        "payload_over_gap_xor_zstd": 0.7,
        "bits_per_change": None,
        "density": None,
        "synthetic_payload_over_gap_xor_zstd": 1.0,
        "encode_over_memcpy": 0.05,
        "decode_apply_over_memcpy": 0.1,
    }
