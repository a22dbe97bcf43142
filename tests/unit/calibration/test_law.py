import dataclasses
import math

import numpy as np
import pytest

from hetero_rl.calibration.columns import PairColumns
from hetero_rl.calibration.held_out import FLOORS, held_out
from hetero_rl.calibration.law import fit_law, measured_crossing, prefix_sums
from hetero_rl.calibration.usable_length import LONGEST, expected_at, usable_length, usable_lengths


def chip(sequences=200, tokens=600, sd=0.04, common=0.0, seed=0):
    """Sequences sampled by a chip whose token errors are N(0, sd): E[W] = 1 asks for a mean of -sd^2 / 2."""
    random = np.random.default_rng(seed)
    gap = random.normal(-(sd**2) / 2, sd, (sequences, tokens)) + random.normal(0, common, (sequences, 1))
    reference = -random.exponential(size=sequences * tokens)
    return PairColumns(
        lengths=np.full(sequences, tokens),
        reference=reference,
        measured=reference - gap.ravel(),
        token_ids=np.zeros(sequences * tokens, dtype=np.int64),
        positions=np.tile(np.arange(tokens), sequences),
    )


class TestTheLaw:
    def test_prefix_sums_are_those_by_hand(self):
        columns = PairColumns(
            lengths=np.array([3, 1]),
            reference=np.array([-1.0, -1.0, -1.0, -2.0]),
            measured=np.array([-1.1, -0.8, -1.4, -2.5]),
            token_ids=np.zeros(4, dtype=np.int64),
            positions=np.arange(4),
        )
        sums = prefix_sums(columns, np.array([1, 2, 3]))
        assert sums[0] == pytest.approx([0.1, -0.1, 0.3])
        assert sums[1][0] == pytest.approx(0.5)
        assert np.isnan(sums[1][1:]).all()

    def test_variance_per_token_is_found_within_its_bounds(self):
        inside = 0
        for seed in range(10):
            law = fit_law(chip(seed=seed))
            assert law.diffusion.value == pytest.approx(0.04**2, rel=0.25)
            assert law.common.value == 0.0
            inside += law.diffusion.low <= 0.04**2 <= law.diffusion.high
        assert inside >= 7  # bounds of 90 %

    def test_the_drift_is_half_the_variance(self):
        law = fit_law(chip(sequences=800, tokens=200))
        assert law.drift.low <= -(0.04**2) / 2 <= law.drift.high

    def test_what_a_sequence_shares_grows_with_the_square_of_length(self):
        law = fit_law(chip(common=0.004))
        assert law.common.value == pytest.approx(0.004**2, rel=0.4)
        assert law.variance(600) == pytest.approx(600 * 0.04**2 + 600**2 * 0.004**2, rel=0.2)

    def test_three_sequences_are_too_few(self):
        assert fit_law(chip(sequences=3, tokens=10)) is None

    def test_without_any_gap_no_length_is_too_long(self):
        law = fit_law(chip(sd=0.0))
        assert {length.tokens for length in usable_lengths(law, 0.5)} == {LONGEST}


class TestUsableLength:
    @pytest.mark.parametrize("variance", [0.1, 0.5, 1.0])
    def test_raw_importance_sampling_keeps_the_share_of_a_log_normal(self, variance):
        assert expected_at("seq_is", 1, variance, 1).effective_share == pytest.approx(
            math.exp(-variance), rel=0.03
        )

    def test_vespo_is_as_its_table_says(self):
        """KL of 0.5 nats, a variance of 1: mean coefficients 0.70 and 0.51, shares 0.75 and 0.58."""
        good, bad = expected_at("vespo", 1, 1.0, 1), expected_at("vespo", -1, 1.0, 1)
        assert good.mean_coefficient == pytest.approx(0.70, abs=0.01)
        assert bad.mean_coefficient == pytest.approx(0.51, abs=0.01)
        assert good.effective_share == pytest.approx(0.75, abs=0.01)
        assert bad.effective_share == pytest.approx(0.58, abs=0.01)

    def test_a_narrow_geometric_clip_silences_half_at_any_length(self):
        law = fit_law(chip())
        assert usable_length(law, "gspo", -1, 0.5).tokens == 0

    @pytest.mark.parametrize("common", [0.0, 0.003])
    def test_the_prediction_from_short_sequences_is_where_the_measured_share_crosses(self, common):
        columns = chip(sequences=2000, tokens=700, common=common, seed=5)
        # What is predicted from the first 150 tokens of 400 sequences ...
        some = columns.select(columns.sequence_ids < 400)
        law = fit_law(some, longest=150)
        predicted = usable_length(law, "seq_is", 1, 0.5)
        # ... and what 1600 others show.
        others = columns.select(columns.sequence_ids >= 400)
        crossed = measured_crossing(others, 0.5)
        assert predicted.tokens == pytest.approx(crossed, rel=0.25)
        assert predicted.low <= predicted.tokens <= predicted.high

    def test_a_share_that_stays_above_the_floor_never_crosses(self):
        assert measured_crossing(chip(tokens=50, sd=0.01), 0.5) is None

    def test_longer_sequences_never_help(self):
        shares = [expected_at("vespo", 1, variance, 1).effective_share for variance in (0.01, 0.1, 1, 4, 16)]
        assert shares == sorted(shares, reverse=True)


class TestPredictionsHeldAgainstOtherSequences:
    @pytest.mark.parametrize("common", [0.0, 0.003])
    def test_they_come_true_on_a_simulated_chip(self, common):
        found = held_out(chip(sequences=600, tokens=700, common=common, seed=3))
        assert [one.floor for one in found] == list(FLOORS)
        assert all(abs(one.error) < 0.25 for one in found)
        assert {(one.sequences, one.fitted_tokens) for one in found} == {(600, 350)}
        assert [one.measured for one in found] == sorted(one.measured for one in found)

    def test_a_chip_that_gets_noisier_with_length_is_caught(self):
        columns = chip(sequences=600, tokens=700, sd=0.03)
        late = np.where(columns.offsets > 350, 4.0, 1.0)
        columns = dataclasses.replace(columns, measured=columns.reference - columns.gap * late)
        found = {one.floor: one for one in held_out(columns)}
        assert found[0.5].error > 0.25

    def test_floors_that_are_not_crossed_are_left_out(self):
        assert held_out(chip(tokens=50, sd=0.01)) == ()

    def test_few_sequences_show_nothing(self):
        assert held_out(chip(sequences=31)) == ()
