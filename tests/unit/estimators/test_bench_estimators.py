"""The benchmark of the weight stage measures what it says, on a small batch."""

import pytest

from hetero_rl.bench.estimators import make_sample, run
from hetero_rl.bench.memory import can_measure, peak_growth


@pytest.mark.slow
def test_the_worst_of_the_presets_is_the_figure_with_the_target():
    figures = {figure.name: figure for figure in run(quick=True).figures}
    ratios = [figures[f"stage_over_read/{name}"].value for name in ("vespo", "snis")]
    assert figures["worst_stage_over_read"].value == max(ratios)
    assert figures["worst_stage_over_read"].target == 3.0
    if can_measure():
        memory = [figures[f"memory_over_inputs/{name}"].value for name in ("vespo", "snis")]
        assert figures["worst_memory_over_inputs"].value == max(memory)
        assert figures["worst_memory_over_inputs"].target == 2.0


def test_the_sample_has_the_stated_mean_length_and_mismatch():
    sample = make_sample(512, 1024, split=False)
    assert abs(float(sample.recorded.lengths.double().mean()) - 1024) < 64
    log_ratios = sample.log_probs - sample.recorded.behavior_log_probs
    assert abs(float(log_ratios.std()) - 0.05) < 0.005


@pytest.mark.skipif(not can_measure(), reason="needs Linux to measure peak memory")
def test_the_peak_of_a_work_is_about_what_it_allocates():
    size = 256 * 2**20  # large beside what threads of other tests may free meanwhile
    assert 0.9 * size <= peak_growth(lambda: b"x" * size) < 1.5 * size
