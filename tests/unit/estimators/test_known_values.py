"""Hand-computed numbers: masks, windows, prefixes, groups and limits, where each method differs from the others."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from hetero_rl.errors import ConfigError
from hetero_rl.estimators import Needs, RecordedBatch, list_estimators, make_estimator
from hetero_rl.estimators.stages.advantages import advantages
from hetero_rl.estimators.stages.edge import LogRatio, Part, Weight, multiply
from hetero_rl.estimators.stages.groups import Groups
from hetero_rl.estimators.stages.kernel import q_path
from hetero_rl.estimators.stages.level import prefix_product


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def batch(ratios, *, rewards=None, behavior=0.1, **fields):
    """Sequences of given token ratios; the probability of each token under mu is `behavior`."""
    lengths = torch.tensor([len(sequence) for sequence in ratios])
    flat = double(*[value for sequence in ratios for value in sequence])
    recorded = RecordedBatch(
        behavior_log_probs=torch.full_like(flat, math.log(behavior)),
        lengths=lengths,
        group_ids=torch.zeros(len(ratios), dtype=torch.int64),
        rewards=double(*(rewards or [1.0] * len(ratios))),
        **fields,
    )
    return recorded, recorded.behavior_log_probs + flat.log()


def coefficients(name, recorded, log_probs, **options):
    estimator = make_estimator(name, {"advantage": "none", **options})
    needed = log_probs if estimator.needs is Needs.CURRENT_POLICY else None
    return estimator.coefficients(estimator.prepare(recorded, needed), log_probs)


def values(name, recorded, log_probs, **options):
    return coefficients(name, recorded, log_probs, **options).values.tolist()


def test_cispo_holds_ratios_and_keeps_every_token():
    assert values("cispo", *batch([[0.1, 1.0, 9.0]])) == pytest.approx([0.1, 1.0, 5.0])


def test_topr_takes_good_sequences_in_full_and_truncates_bad_ones():
    data = batch([[2.0, 2.0], [2.0, 2.0], [0.5, 0.5]], rewards=[1.0, -1.0, -1.0])
    assert values("topr", *data) == pytest.approx([1, 1, 1, 1, 0.25, 0.25])


def test_icepop_drops_tokens_outside_the_window_and_tis_truncates_them():
    data = batch([[0.4, 0.6, 4.0, 6.0]])
    assert values("icepop", *data) == pytest.approx([0, 0.6, 4.0, 0])
    assert values("tis", *data) == pytest.approx([0.4, 0.6, 2.0, 2.0])


def test_the_three_levels_of_tis_differ():
    data = batch([[4.0, 4.0]])
    assert values("tis", *data, level="sequence", threshold=10) == pytest.approx([10, 10])
    assert values("tis", *data, level="geometric", threshold=10) == pytest.approx([4, 4])


def test_sequence_windows_act_on_the_geometric_mean():
    data = batch([[1.6, 1 / 1.6], [1.1, 1.1]])
    assert values("seq_mask_tis", *data) == pytest.approx([1.6, 1 / 1.6, 0, 0])
    assert values("mis_po", *data) == pytest.approx([1, 1, 0, 0])


def test_opsm_drops_only_bad_sequences_that_the_policy_has_left():
    data = batch([[0.9, 0.9], [0.9, 0.9], [1.1, 1.1]], rewards=[1.0, -1.0, -1.0])
    assert values("opsm", *data, delta=0.1) == pytest.approx([0.9, 0.9, 0, 0, 1.1, 1.1])


def test_dppo_masks_large_moves_of_probability_in_the_direction_of_the_advantage():
    data = batch([[2.0], [2.0], [0.1], [0.1]], rewards=[1.0, -1.0, 1.0, -1.0], behavior=0.4)
    # pi - mu is 0.4 or -0.36: over 0.2 either way.
    assert values("dppo_tv", *data) == pytest.approx([0, 2.0, 0.1, 0])
    # Binary KL of 0.4 against 0.8 is 0.38, of 0.4 against 0.04 it is 0.64.
    assert values("dppo_kl", *data) == pytest.approx([0, 2.0, 0.1, 0])
    assert values("dppo_kl", *data, delta=0.5) == pytest.approx([2.0, 2.0, 0.1, 0])


def test_dppo_keeps_a_rare_token_whose_ratio_a_clip_would_drop():
    data = batch([[3.0]], behavior=1e-4)
    assert values("ppo", *data) == [0.0]
    assert values("dppo_tv", *data) == pytest.approx([3.0])


@pytest.mark.parametrize(
    ("divergence", "value"),
    [
        ("total_variation", 0.3),
        ("kl", 0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2)),
        ("chi_square", 0.09 / 0.16),
    ],
)
def test_the_divergence_mask_keeps_up_to_its_bound(divergence, value):
    data = batch([[1.6]], behavior=0.5)
    assert values("divergence_mask", *data, divergence=divergence, delta=value * 1.001) == [1.0]
    assert values("divergence_mask", *data, divergence=divergence, delta=value * 0.999) == [0.0]


def test_the_divergence_mask_of_a_sequence_is_decided_by_its_mean():
    data = batch([[1.6, 1.0], [1.6, 1.6]], behavior=0.5)
    assert values("divergence_mask", *data, delta=0.2, level="sequence") == [1, 1, 0, 0]


def test_trust_region_masking_follows_the_worst_token():
    data = batch([[1.0, 3.0], [1.2, 1.2]])
    assert values("trm", *data, delta=0.5) == pytest.approx([0, 0, 1.2, 1.2])


def test_m2po_drops_the_largest_until_the_second_moment_is_below_its_bound():
    log_ratios = [0.1, -0.2, 0.3, 0.6]
    data = batch([[math.exp(value) for value in log_ratios]])
    # Mean squares of the smallest one, two, three and four: 0.01, 0.025, 0.047, 0.125.
    kept = values("m2po", *data)
    assert kept == pytest.approx([math.exp(0.1), math.exp(-0.2), 0, 0])


def test_vtrace_multiplies_truncated_ratios_along_the_sequence():
    data = batch([[0.5, 2.0, 0.5], [2.0, 0.5]])
    assert values("vtrace", *data) == pytest.approx([0.5, 0.5, 0.25, 1.0, 0.5])
    assert values("vtrace", *data, rho_bar=2.0) == pytest.approx([0.5, 1.0, 0.25, 2.0, 0.5])


def test_ctpo_widens_its_clip_with_the_square_root_of_the_prefix():
    step = math.exp(0.04)
    data = batch([[step, step, step]], rewards=[1.0])
    # log c_t is 0.04, 0.08, 0.12; the bound is 0.05, 0.0707, 0.0866.
    assert values("ctpo", *data) == pytest.approx([step, 0, 0])


def test_prefix_products_start_over_at_every_sequence_in_float32():
    log_ratio = LogRatio(torch.tensor([20.0] * 2000 + [0.125, -0.25]), Part.TOTAL)
    prefix = prefix_product(log_ratio, torch.tensor([2000, 2]), torch.empty(2002)).values
    assert prefix[-2:].tolist() == [0.125, -0.125]


def test_snis_weights_of_a_group_sum_to_its_members():
    data = batch([[1.0], [2.0], [4.0], [1.0, 1.0]])
    found = coefficients("snis", *data).sequence_means
    assert found.tolist() == pytest.approx([0.5, 1.0, 2.0, 0.5])
    assert float(found.sum()) == pytest.approx(4.0)


def test_snis_leaves_out_a_member_without_any_ratio_and_the_others_sum_to_their_number():
    recorded, log_probs = batch([[1.0], [2.0], [4.0]])
    log_probs[0] = -torch.inf
    found = coefficients("snis", recorded, log_probs).sequence_means
    assert found.tolist() == pytest.approx([0.0, 2 / 3, 4 / 3])


def test_vcpo_shrinks_the_learning_rate_with_the_effective_sample_size():
    estimator = make_estimator("vcpo")
    assert estimator.learning_rate_scale(torch.zeros(8)) == pytest.approx(1.0)
    log_w = torch.tensor([0.0, math.log(3.0)])
    assert estimator.learning_rate_scale(log_w) == pytest.approx(math.sqrt(16 / (2 * 10)), rel=1e-6)
    assert make_estimator("vespo").learning_rate_scale(log_w) == 1.0


@pytest.mark.parametrize("weight", [0.01, 0.5, 1.0, 3.0, 50.0])
def test_q_paths_have_the_known_limits(weight):
    log_w = LogRatio(double(math.log(weight)), Part.TOTAL)

    def at(beta, q):
        return float(q_path(log_w, beta, q).values)

    assert at(0.3, 1.0) == pytest.approx(weight**0.3)  # geometric path
    assert at(0.3, 0.0) == pytest.approx(0.7 + 0.3 * weight)  # mixture
    assert at(1.0, 1.7) == pytest.approx(weight)
    assert at(0.0, 1.7) == pytest.approx(1.0)
    assert at(0.3, 1 + 2e-4) == pytest.approx(at(0.3, 1.0), rel=1e-2)  # continuous at q = 1
    assert at(0.3, 1 - 2e-4) == pytest.approx(at(0.3, 1 - 0.9e-4), rel=1e-3)
    assert at(0.3, 2.0) <= 1 / 0.7 + 1e-12  # bounded above for q > 1
    assert at(0.3, 0.5) >= 0.7**2 - 1e-12  # bounded below for q < 1


def test_minirl_weighs_by_the_sampler_and_masks_by_the_drift():
    recorded, log_probs = batch([[6.0, 1.1]])
    recorded = dataclasses.replace(recorded, old_log_probs=log_probs - double(0.1, 0.5))
    assert values("minirl", recorded, log_probs, anchor="old") == pytest.approx([5.0, 0.0])


def test_luffy_shapes_expert_rows_clips_own_rows_and_compares_with_own_rewards():
    recorded, log_probs = batch([[1.3], [1.1], [2.0]], rewards=[1.0, 0.0, 1.0], behavior=0.05)
    recorded = dataclasses.replace(recorded, expert=torch.tensor([False, False, True]))
    estimator = make_estimator("luffy", {"advantage": "group_mean"})
    prepared = estimator.prepare(recorded)
    assert prepared.advantages.tolist() == pytest.approx([0.5, -0.5, 0.5])
    found = estimator.coefficients(prepared, log_probs).values.tolist()
    assert found == pytest.approx([0.0, 1.1, 0.1 * 0.1 / 0.2**2])


def test_gepo_variants_differ_as_their_formulas_say():
    recorded, _ = batch([[1.0], [1.0]])
    q = double(0.2, 0.4)
    recorded = dataclasses.replace(recorded, behavior_log_probs=q.log())
    loose = {"clip": False}
    expected = float((q**2).sum() / q.sum())
    assert values("gepo", recorded, q.log(), **loose) == pytest.approx((q / expected).tolist())
    assert values("gepo", recorded, q.log(), expectation="group_mean", **loose) == pytest.approx(
        (q / 0.3).tolist()
    )
    alone = values("gepo", recorded, q.log(), expectation="micro_batch", micro_batch_size=1, **loose)
    assert alone == pytest.approx([1.0, 1.0])


def test_gepo_by_raw_sums_lets_one_member_take_the_group():
    lengths = torch.tensor([50, 60])
    log_q = torch.full((110,), -0.5, dtype=torch.float64)
    recorded = RecordedBatch(
        behavior_log_probs=log_q,
        lengths=lengths,
        group_ids=torch.zeros(2, dtype=torch.int64),
        rewards=double(1.0, 1.0),
    )
    loose = {"clip": False}
    raw = coefficients("gepo", recorded, log_q, length_normalise=False, **loose).sequence_means
    assert raw.tolist() == pytest.approx([1.0, math.exp(-5)], rel=1e-2)
    assert coefficients("gepo", recorded, log_q, **loose).sequence_means.tolist() == pytest.approx([1.0, 1.0])


def test_the_ablations_of_vespo():
    data = batch([[2.0, 2.0], [2.0, 2.0]], rewards=[1.0, -1.0])

    def phi(w, c1, c2):
        return w**c1 * math.exp(c2 * (1 - w))

    by_length = coefficients("vespo", *data, length_normalise="length").sequence_means
    assert by_length.tolist() == pytest.approx([phi(2, 2, 3), phi(2, 3, 2)])
    root = 4 ** (1 / math.sqrt(2))
    by_root = coefficients("vespo", *data, length_normalise="sqrt_length").sequence_means
    assert by_root.tolist() == pytest.approx([phi(root, 2, 3), phi(root, 3, 2)])
    symmetric = coefficients("vespo", *data, symmetric="negative").sequence_means
    assert symmetric.tolist() == pytest.approx([phi(4, 3, 2), phi(4, 3, 2)])


def test_no_part_of_the_ratio_can_be_counted_twice():
    total = Weight(double(2.0), Part.TOTAL)
    with pytest.raises(ValueError, match="account for STALENESS"):
        multiply(total, Weight(double(1.1), Part.STALENESS))
    product = multiply(Weight(double(2.0), Part.CHIP), Weight(double(3.0), Part.STALENESS))
    assert product.part is Part.TOTAL
    assert float(product.values) == 6.0


@pytest.mark.parametrize("name", ["tis", "icepop", "decoupled_ppo"])
def test_without_bounds_the_two_parts_multiply_to_the_whole_ratio(name, make_recorded):
    recorded, log_probs = make_recorded(shift=0.02)
    recorded = dataclasses.replace(recorded, old_log_probs=recorded.behavior_log_probs + 0.05)
    options = {} if name == "decoupled_ppo" else {"parts": "split"}
    found = coefficients(name, recorded, log_probs, **options)
    torch.testing.assert_close(found.values, (log_probs - recorded.behavior_log_probs).exp())
    torch.testing.assert_close(found.staleness_log_ratio + found.chip_log_ratio, found.log_importance_ratio)


def test_the_loglinear_proximal_policy_needs_no_recomputation_and_splits_by_lag():
    recorded, log_probs = batch([[1.1, 1.1, 1.1]], token_lags=torch.tensor([0, 1, 4]))
    # The drift is the whole log-ratio at lag 0 and 1, and a quarter of it at lag 4; the clip at 1.05 sees only that.
    found = values("decoupled_ppo", recorded, log_probs, proximal="loglinear", epsilon_high=0.05)
    assert found == pytest.approx([0, 0, 1.1])


def test_a_group_that_lost_a_member_is_counted_and_compared_with_those_present():
    recorded = RecordedBatch(
        behavior_log_probs=torch.full((5,), -1.0),
        lengths=torch.ones(5, dtype=torch.int64),
        group_ids=torch.tensor([0, 0, 0, 0, 1]),
        rewards=torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0]),
        group_size=4,
    )
    for name in ("grpo", "rloo", "gepo", "vespo"):
        prepared = make_estimator(name).prepare(recorded)
        assert prepared.facts["incomplete_groups"] == 1.0
        assert prepared.advantages[4] == 0.0


def test_advantages_of_equal_rewards_are_exactly_zero():
    rewards = torch.full((8,), 0.1)
    groups = Groups.of(torch.zeros(8, dtype=torch.int64))
    for kind in ("group_mean", "group_mean_std", "leave_one_out"):
        assert advantages(rewards, groups, kind, 1e-6).abs().max() < 1e-9


def test_group_methods_refuse_groups_of_one(make_recorded):
    recorded, _ = make_recorded(groups=4, group_size=1)
    for name in ("grpo", "rloo", "vespo", "gepo"):
        with pytest.raises(ValueError, match="group_size is 1"):
            make_estimator(name).prepare(recorded)
    with pytest.raises(ConfigError, match="compares at least 2 completions"):
        make_estimator("snis", {"advantage": "none"}).check_run(group_size=1, old_log_probs=False)


@pytest.mark.parametrize(
    ("name", "option"),
    [("opsm", "delta"), ("trm", "delta"), ("divergence_mask", "delta"), ("q_path", "beta"), ("q_path", "q")],
)
def test_a_constant_that_no_paper_gives_has_to_be_chosen(name, option):
    with pytest.raises(ConfigError, match=f"{option} is missing"):
        make_estimator(name)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vespo", {"c1_positive": -1}, "c1_positive is -1"),
        ("q_path", {"beta": 2, "q": 0}, "beta is 2"),
        ("gepo", {"expectation": "grupo"}, "expectation is 'grupo'"),
        ("tis", {"treshold": 2}, "Did you mean 'threshold'"),
    ],
)
def test_a_wrong_constant_is_named_with_its_value(name, options, message):
    with pytest.raises(ConfigError, match=message):
        make_estimator(name, options)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("behavior_log_probs", None, "behavior_log_probs is None"),
        ("group_ids", None, "group_ids is None"),
        ("group_ids", torch.zeros(2, dtype=torch.int64), r"group_ids has shape \(2,\)"),
        ("lengths", torch.tensor([2, 0, 1]), r"lengths\[1\] is 0"),
        ("lengths", torch.tensor([2, 2, 1]), "lengths add up to 5; behavior_log_probs holds 3"),
        ("rewards", torch.tensor([0.0, torch.nan, 1.0]), r"rewards\[1\] is nan"),
        ("rewards", torch.tensor([0, 1, 1]), "rewards has dtype torch.int64"),
        ("old_log_probs", torch.zeros(4), r"old_log_probs has shape \(4,\)"),
        ("token_lags", torch.zeros(3), "token_lags has dtype torch.float32"),
        ("expert", torch.zeros(3), "expert is torch.float32"),
        ("group_size", 0, "group_size is 0"),
        ("max_new_tokens", 0, "max_new_tokens is 0"),
    ],
)
def test_a_bad_batch_is_refused_by_the_name_and_value_of_what_is_wrong(field, value, message):
    columns = {
        "behavior_log_probs": torch.zeros(3),
        "lengths": torch.ones(3, dtype=torch.int64),
        "group_ids": torch.zeros(3, dtype=torch.int64),
        "rewards": torch.zeros(3),
    }
    with pytest.raises(ValueError, match=message):
        RecordedBatch(**(columns | {field: value}))


def test_what_a_method_needs_and_does_not_get_is_named(make_recorded):
    recorded, log_probs = make_recorded()
    with pytest.raises(ValueError, match="current_log_probs is None; 'snis'"):
        make_estimator("snis").prepare(recorded)
    with pytest.raises(ValueError, match="old_log_probs is missing; 'decoupled_ppo'"):
        make_estimator("decoupled_ppo").prepare(recorded)
    with pytest.raises(ValueError, match="old_log_probs is missing; 'ppo'"):
        make_estimator("ppo", {"anchor": "old"}).prepare(recorded)
    with pytest.raises(ValueError, match="max_new_tokens is None"):
        make_estimator("dr_grpo").prepare(recorded)
    luffy = make_estimator("luffy")
    with pytest.raises(ValueError, match="expert is None"):
        luffy.coefficients(luffy.prepare(recorded), log_probs)
    vespo = make_estimator("vespo")
    with pytest.raises(ValueError, match=r"log_probs has shape \(3,\)"):
        vespo.coefficients(vespo.prepare(recorded), log_probs[:3])
    gepo = make_estimator("gepo")
    with pytest.raises(ValueError, match="sequence_constants is None"):
        gepo.coefficients(vespo.prepare(recorded), log_probs)


def test_clamp_hits_are_reported_for_the_level_that_is_exponentiated():
    recorded, log_probs = batch([[math.exp(12.0), math.exp(12.0)], [1.0, 1.0]])
    assert coefficients("vespo", recorded, log_probs).clamped.tolist() == [True, False]
    assert coefficients("ppo", recorded, log_probs).clamped.tolist() == [False, False]
    assert coefficients("gspo", recorded, log_probs).clamped.tolist() == [False, False]


def test_the_documentation_names_every_preset():
    text = (Path(__file__).parents[3] / "docs" / "estimators.md").read_text(encoding="utf-8")
    assert [name for name in list_estimators() if f"| `{name}` |" not in text] == []
