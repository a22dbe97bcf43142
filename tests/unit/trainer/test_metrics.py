import dataclasses
import math

import pytest
import torch

from hetero_rl.estimators import Coefficients, make_estimator
from hetero_rl.trainer.archive import split_log_ratio
from hetero_rl.trainer.batch import build_batch
from hetero_rl.trainer.metrics import (
    batch_metrics,
    result_metrics,
    sequence_means,
    sequence_outcomes,
)
from hetero_rl.trainer.step import StepResult, record
from hetero_rl.wire.messages import Disposition, FinishReason


@pytest.fixture
def batch(make_group):
    near = make_group(0, [5], [[1, 2], [3]], log_probs=[[-1.0, -2.0], [-0.5]])
    far = make_group(
        1,
        [6],
        [[4], [5]],
        log_probs=[[-1.5], [-1.0]],
        version=2,
        version_steps={2: 1},
        backend="ascend",
        reasons=[FinishReason.STOP, FinishReason.ABORTED],
    )
    return build_batch(2, [near, far], [[1.0, 0.0], [0.5, 1.0]], max_lag=2, vocabulary_size=12)


@pytest.fixture
def result(batch):
    # log pi - log mu: (0.1, -0.3), 0.2, -0.5.
    return StepResult(
        loss=0.25,
        gradient_norm=2.0,
        learning_rate=0.1,
        log_probs=torch.tensor([-0.9, -2.3, -0.3, -2.0]),
        prepared=make_estimator("reinforce").prepare(record(batch, group_size=2, max_new_tokens=4)),
        coefficients=Coefficients(
            weights=torch.tensor([0.5, 1.5, 0.0, 2.0]),
            lengths=torch.tensor([2, 1, 1]),
            log_importance_ratio=torch.tensor([-0.2, 0.2, -0.5]),
            unusable_tokens=torch.tensor([0, 0, 0]),
            clamped=torch.tensor([False, True, False]),
        ),
        padded_tokens=9,
        seconds=0.5,
    )


def test_numbers_of_a_batch(batch):
    values = batch_metrics(batch)

    assert values["reward/mean"] == pytest.approx(0.5)
    assert values["reward/std"] == pytest.approx(math.sqrt((0.25 + 0.25 + 0) / 3))
    assert values["lag/mean"] == pytest.approx((1 + 1 + 0) / 3)
    assert values["lag/max"] == 1
    assert values["completion_tokens/mean"] == pytest.approx(4 / 3)
    assert values["share/dropped"] == pytest.approx(1 / 4)
    assert (values["dropped/stale"], values["dropped/incomplete"]) == (0, 1)


def test_numbers_of_a_step(batch, result):
    values = result_metrics(batch, result)
    tokens = {name: value for name, value in values.items() if name.startswith("trained_tokens/")}
    assert sum(tokens.values()) == 4
    ratios = [0.1, -0.3, 0.2, -0.5]

    assert values["log_importance_ratio/mean"] == pytest.approx((-0.2 + 0.2 - 0.5) / 3)
    assert values["kl/k1"] == pytest.approx(0.5 / 4, abs=1e-6)
    assert values["kl/k3"] == pytest.approx(sum(math.exp(r) - 1 - r for r in ratios) / 4, abs=1e-6)
    assert values["log_prob_gap/mean"] == pytest.approx(1.1 / 4, abs=1e-6)
    assert values["log_prob_gap/max"] == pytest.approx(0.5, abs=1e-6)
    assert values["log_prob_gap/mean/cpu"] == pytest.approx(0.2, abs=1e-6)
    assert values["log_prob_gap/mean/ascend"] == pytest.approx(0.5, abs=1e-6)
    assert values["coefficient/mean"] == pytest.approx(1.0)
    # Coefficients of the sequences are 1, 0 and 2: (1 + 0 + 2)^2 / (3 * (1 + 0 + 4)).
    assert values["ess"] == pytest.approx(9 / 15)
    weights = [math.exp(w) for w in (-0.2, 0.2, -0.5)]
    assert values["ess/raw"] == pytest.approx(sum(weights) ** 2 / (3 * sum(w * w for w in weights)), rel=1e-6)
    assert values["share/clamped"] == pytest.approx(1 / 3)
    assert values["share/masked"] == pytest.approx(1 / 3)
    # Prompts of 1 token and completions of 2, 1 and 1, in half a second.
    assert values["tokens_per_second/trained"] == pytest.approx(7 / 0.5)
    assert values["computed_tokens/share"] == pytest.approx(9 / 7)
    assert values["diagnostics/log_w/min"] == pytest.approx(-0.5)
    assert "chip/mean" not in values


def test_one_backend_has_no_line_of_its_own(batch, result):
    values = result_metrics(dataclasses.replace(batch, backends=("cpu",) * 3), result)

    assert [name for name in values if name.endswith("/cpu")] == ["trained_tokens/cpu"]


def test_means_of_sequences():
    assert sequence_means(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([2, 1])).tolist() == [2.0, 5.0]


def test_every_sequence_has_an_outcome(batch, result):
    outcomes = sequence_outcomes(batch, result)

    assert [(entry.group_id[-1], entry.sample_index, entry.disposition) for entry in outcomes] == [
        ("0", 0, Disposition.TRAINED),
        ("0", 1, Disposition.MASKED),
        ("1", 0, Disposition.TRAINED),
        ("1", 1, Disposition.DROPPED_INCOMPLETE),
    ]
    first = outcomes[0]
    assert (first.reward, first.advantage, first.lag, first.coefficient) == (1.0, 0.5, 1, 1.0)
    assert first.mean_absolute_gap == pytest.approx(0.2, abs=1e-6)
    assert first.max_absolute_gap == pytest.approx(0.3, abs=1e-6)
    assert first.staleness_log_ratio is None
    assert outcomes[3].reward == 1.0


def test_a_step_without_a_result_reports_what_was_dropped(batch):
    outcomes = sequence_outcomes(batch, None)

    assert [entry.disposition for entry in outcomes] == [Disposition.DROPPED_INCOMPLETE]


@pytest.fixture
def split_result(batch, result):
    """The result with the parts of log W added, from pi_old of the action tokens."""

    def split(old_log_probs):
        behavior = batch.behavior_log_probs[batch.action_mask]
        staleness, chip = split_log_ratio(result.log_probs, old_log_probs, behavior, batch.action_lengths)
        coefficients = dataclasses.replace(
            result.coefficients, staleness_log_ratio=staleness, chip_log_ratio=chip
        )
        return dataclasses.replace(result, coefficients=coefficients)

    return split


def test_log_w_is_split_into_staleness_and_chip(batch, split_result):
    # pi_old: known for the first and the last sequence.
    result = split_result(torch.tensor([-0.95, -2.1, math.nan, -1.4]))

    values = result_metrics(batch, result)
    outcomes = sequence_outcomes(batch, result)

    assert outcomes[0].staleness_log_ratio == pytest.approx(0.05 - 0.2, abs=1e-6)
    assert outcomes[0].chip_log_ratio == pytest.approx(0.05 - 0.1, abs=1e-6)
    assert outcomes[1].staleness_log_ratio is None
    assert outcomes[2].chip_log_ratio == pytest.approx(0.1, abs=1e-6)
    assert values["chip/mean"] == pytest.approx((-0.05 + 0.1) / 2, abs=1e-6)
    assert values["staleness/mean"] == pytest.approx((-0.15 - 0.6) / 2, abs=1e-6)
    assert values["diagnostics/log_w/chip/cpu"] == pytest.approx(-0.05, abs=1e-6)
    assert values["diagnostics/log_w/chip/ascend"] == pytest.approx(0.1, abs=1e-6)
    assert values["share/split"] == pytest.approx(2 / 3)


def test_a_split_of_which_nothing_is_known_is_not_reported(batch, split_result):
    values = result_metrics(batch, split_result(torch.full((4,), math.nan)))

    assert "chip/mean" not in values
    assert not [name for name in values if name.startswith("diagnostics/log_w/chip")]


def test_each_backend_has_diagnostics_of_its_own_sequences(batch, result):
    values = result_metrics(batch, result)

    # log pi - log mu: (0.1, -0.3) and 0.2 on "cpu", -0.5 on "ascend".
    assert values["diagnostics/kl/cpu"] == pytest.approx(0.0, abs=1e-6)
    assert values["diagnostics/kl/ascend"] == pytest.approx(0.5, abs=1e-6)
    assert values["diagnostics/log_w/max/cpu"] == pytest.approx(0.2)
    # Groups are counted over the whole batch.
    assert "diagnostics/groups" in values
    assert "diagnostics/groups/cpu" not in values
