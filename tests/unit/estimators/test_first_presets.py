"""Hand-computed numbers of the presets that the main job offers."""

import math

import pytest
import torch

from hetero_rl.errors import ConfigError
from hetero_rl.estimators import (
    Needs,
    RecordedBatch,
    estimator_class,
    list_estimators,
    make_estimator,
    surrogate_loss,
)


def one_token_sequences(weights, rewards, group_ids=None):
    """Sequences of one token whose ratio pi/mu is given."""
    count = len(weights)
    recorded = RecordedBatch(
        behavior_log_probs=torch.full((count,), -1.0, dtype=torch.float64),
        lengths=torch.ones(count, dtype=torch.int64),
        group_ids=torch.zeros(count, dtype=torch.int64) if group_ids is None else torch.tensor(group_ids),
        rewards=torch.tensor(rewards, dtype=torch.float64),
    )
    return recorded, torch.tensor(weights, dtype=torch.float64).log() - 1.0


def coefficients_of(name, recorded, log_probs, **options):
    estimator = make_estimator(name, options)
    return estimator.coefficients(estimator.prepare(recorded), log_probs).values


@pytest.mark.parametrize(
    ("weight", "good", "bad"),
    [(0.5, 1.1204, 0.3398), (1.0, 1.0, 1.0), (2.0, 0.1991, 1.0827), (3.0, 0.0223, 0.4945)],
)
def test_vespo_kernel_has_the_published_values(weight, good, bad):
    recorded, log_probs = one_token_sequences([weight, weight], [1.0, 0.0])
    torch.testing.assert_close(
        coefficients_of("vespo", recorded, log_probs),
        torch.tensor([good, bad], dtype=torch.float64),
        atol=5e-5,
        rtol=0,
    )


def test_vespo_weighs_the_product_over_the_sequence_and_not_its_mean():
    recorded = RecordedBatch(
        behavior_log_probs=torch.full((4,), -1.0, dtype=torch.float64),
        lengths=torch.tensor([3, 1]),
        group_ids=torch.tensor([0, 0]),
        rewards=torch.tensor([1.0, 0.0], dtype=torch.float64),
    )
    log_probs = recorded.behavior_log_probs + math.log(0.5) / 3
    values = coefficients_of("vespo", recorded, log_probs)
    assert values[:3].tolist() == pytest.approx([0.25 * math.exp(1.5)] * 3)


def test_vespo_never_exceeds_its_peak_for_any_log_ratio_in_float32():
    log_w = torch.linspace(-1e4, 1e4, 4001)
    for rewards in (torch.ones(4001), -torch.ones(4001)):
        recorded = RecordedBatch(
            behavior_log_probs=torch.zeros(4001),
            lengths=torch.ones(4001, dtype=torch.int64),
            group_ids=torch.arange(4001),
            rewards=rewards,
        )
        values = coefficients_of("vespo", recorded, log_w, advantage="none")
        assert values.isfinite().all()
        assert values.min() >= 0
        assert values.max() <= 1.2419


def test_vespo_gradient_is_phi_times_advantage_over_the_token_count(make_recorded):
    recorded, log_probs = make_recorded()
    estimator = make_estimator("vespo")
    prepared = estimator.prepare(recorded)
    coefficients = estimator.coefficients(prepared, log_probs)
    leaf = log_probs.clone().requires_grad_()
    surrogate_loss(prepared, coefficients, leaf).backward()
    advantages = prepared.advantages[recorded.sequence_ids]
    torch.testing.assert_close(leaf.grad, -coefficients.values * advantages / len(log_probs))


def test_gepo_mean_weight_on_policy_is_the_effective_sample_size_over_the_group_size():
    log_q = torch.tensor([-0.1, -0.5, -0.9, -2.0], dtype=torch.float64)
    recorded = RecordedBatch(
        behavior_log_probs=log_q,
        lengths=torch.ones(4, dtype=torch.int64),
        group_ids=torch.zeros(4, dtype=torch.int64),
        rewards=torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64),
    )
    q = log_q.exp()
    values = coefficients_of("gepo", recorded, log_q, clip=False)
    assert float(values.mean()) == pytest.approx(float(q.sum() ** 2 / (q**2).sum() / 4))


def test_gepo_with_one_member_is_the_geometric_mean_ratio(make_recorded):
    recorded, log_probs = make_recorded(groups=5, group_size=1)
    gepo = coefficients_of("gepo", recorded, log_probs, clip=False, advantage="none")
    gspo = coefficients_of("gspo", recorded, log_probs, epsilon_low=9, epsilon_high=9, advantage="none")
    torch.testing.assert_close(gepo, gspo)


def test_grpo_clips_only_where_the_surrogate_is_flat():
    recorded, log_probs = one_token_sequences([1.3, 1.3, 0.7, 0.7], [1.0, 0.0, 1.0, 0.0])
    values = coefficients_of("grpo", recorded, log_probs)
    assert values.tolist() == pytest.approx([0.0, 1.3, 0.7, 0.0])


@pytest.mark.parametrize("name", ["reinforce", "grpo", "gspo", "vespo", "gepo"])
def test_the_gradient_of_a_step_does_not_depend_on_how_it_is_cut(name, make_recorded):
    recorded, log_probs = make_recorded()
    estimator = make_estimator(name)
    prepared = estimator.prepare(recorded)
    leaf = log_probs.clone().requires_grad_()
    surrogate_loss(prepared, estimator.coefficients(prepared, log_probs), leaf).backward()
    pieces = log_probs.split(recorded.lengths.tolist())
    cut = torch.zeros_like(log_probs).split(recorded.lengths.tolist())
    for indices in torch.randperm(12, generator=torch.Generator().manual_seed(1)).split(5):
        batch = prepared.select(indices)
        part = torch.cat([pieces[i] for i in indices]).requires_grad_()
        surrogate_loss(batch, estimator.coefficients(batch, part), part).backward()
        for index, gradient in zip(indices, part.grad.split(recorded.lengths[indices].tolist()), strict=True):
            cut[index].copy_(gradient)
    torch.testing.assert_close(torch.cat(cut), leaf.grad)


def test_only_gepo_of_the_first_presets_reads_its_group():
    needs = {name: make_estimator(name).needs for name in ("reinforce", "grpo", "gspo", "vespo", "gepo")}
    assert [name for name, need in needs.items() if need is not Needs.OWN_SEQUENCE] == ["gepo"]
    assert needs["gepo"] is Needs.RECORDED_GROUP


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(ConfigError, match=r"'vespa'.*Did you mean 'vespo'"):
        make_estimator("vespa")


def test_an_unknown_option_is_refused_with_the_nearest_one():
    with pytest.raises(ConfigError, match=r"c1_positiv is unknown.*Did you mean 'c1_positive'"):
        make_estimator("vespo", {"c1_positiv": 2})


def test_every_listed_preset_has_a_formula_and_a_reference():
    for name in list_estimators():
        assert estimator_class(name).formula
        assert estimator_class(name).reference
