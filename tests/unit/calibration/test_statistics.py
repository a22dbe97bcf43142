import numpy as np
import pytest

from hetero_rl.calibration.columns import PairColumns
from hetero_rl.calibration.statistics import (
    by_entropy,
    by_position,
    by_probability,
    by_token,
    gap_summary,
)


def pair(reference, measured, lengths=None, token_ids=None, positions=None, entropy=None):
    reference, measured = np.asarray(reference, float), np.asarray(measured, float)
    count = len(reference)
    return PairColumns(
        lengths=np.asarray(lengths or [count]),
        reference=reference,
        measured=measured,
        token_ids=np.asarray(token_ids if token_ids is not None else range(count)),
        positions=np.asarray(positions if positions is not None else range(count)),
        entropy=entropy,
    )


def test_the_summary_of_four_gaps_is_that_by_hand():
    # gaps 0.1, -0.1, 0.3, -0.5: trainer minus backend
    summary = gap_summary(pair([-1.0, -1.0, -1.0, -1.0], [-1.1, -0.9, -1.3, -0.5]))
    assert summary.tokens == 4
    assert summary.mean == pytest.approx(-0.05)
    assert summary.mean_absolute == pytest.approx(0.25)
    assert summary.sd == pytest.approx(np.sqrt((0.15**2 + 0.05**2 + 0.35**2 + 0.45**2) / 4))
    assert summary.maximum == pytest.approx(0.5)
    assert summary.quantiles[0] == pytest.approx(0.2)
    assert summary.k1 == pytest.approx(0.05)
    # exp(x) - 1 - x: 0.00517, 0.00484, 0.04986, 0.10653
    assert summary.k3 == pytest.approx(0.0416, abs=1e-4)


def test_pearson_is_of_the_probabilities():
    assert gap_summary(pair(np.log([0.1, 0.2, 0.4]), np.log([0.05, 0.1, 0.2]))).pearson == pytest.approx(1.0)
    assert gap_summary(pair(np.log([0.1, 0.3]), np.log([0.3, 0.1]))).pearson == pytest.approx(-1.0)
    assert np.isnan(gap_summary(pair([-1.0, -1.0], [-1.0, -2.0])).pearson)


def test_tokens_without_a_finite_gap_are_counted_and_left_out():
    summary = gap_summary(pair([-1.0, -1.0, -1.0], [-1.2, -np.inf, np.nan], lengths=[1, 2]))
    assert (summary.tokens, summary.sequences, summary.not_finite) == (1, 1, 2)
    with pytest.raises(ValueError, match="no token"):
        gap_summary(pair([-1.0], [-np.inf]))


def test_positions_are_binned_by_powers_of_two():
    bins = by_position(pair([-1.0] * 5, [-1.0, -1.1, -1.2, -1.4, -1.8], positions=[0, 1, 2, 3, 512]))
    assert [(one.low, one.high, one.tokens) for one in bins] == [
        (0, 1, 1),
        (1, 2, 1),
        (2, 4, 2),
        (512, 1024, 1),
    ]
    assert bins[2].mean == pytest.approx(0.3)
    assert bins[3].maximum == pytest.approx(0.8)


def test_probabilities_are_binned_and_one_belongs_to_the_last():
    bins = by_probability(pair(np.log([1.0, 0.995, 0.3, 1e-6]), np.log([1.0, 0.995, 0.3, 1e-6])))
    assert [(one.low, one.tokens) for one in bins] == [(0.0, 1), (0.1, 1), (0.99, 2)]


def test_entropy_is_binned_only_where_it_is_known():
    columns = pair([-1.0, -1.0], [-1.0, -1.5], entropy=np.array([0.05, 3.0]))
    assert [(one.low, one.mean) for one in by_entropy(columns)] == [(0.01, 0.0), (2.0, 0.5)]
    assert by_entropy(pair([-1.0], [-1.0])) == ()


def test_the_worst_tokens_come_first_and_rare_ones_not_at_all():
    ids = [7, 7, 7, 9, 9, 9, 5]
    worst = by_token(pair([-1.0] * 7, [-1.1, -0.9, -1.1, -1.5, -1.5, -1.5, -9.0], token_ids=ids))
    assert [one.token_id for one in worst] == [9, 7]
    assert worst[0].mean == pytest.approx(0.5)
    assert worst[1].mean_absolute == pytest.approx(0.1)


@pytest.mark.parametrize("change", [{"lengths": [3]}, {"lengths": [0, 2]}, {"positions": [1]}])
def test_columns_that_do_not_fit_are_refused(change):
    with pytest.raises(ValueError, match="required"):
        pair([-1.0, -1.0], [-1.0, -1.0], **change)


def test_a_selection_keeps_whole_columns_in_order():
    columns = pair([-1.0, -2.0, -3.0, -4.0], [0, 0, 0, 0], lengths=[1, 2, 1])
    chosen = columns.select(np.array([False, True, False, True]))
    assert chosen.lengths.tolist() == [1, 1]
    assert chosen.reference.tolist() == [-2.0, -4.0]
    assert columns.offsets.tolist() == [0, 0, 1, 0]
