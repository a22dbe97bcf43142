"""Invariants that every preset keeps, by property tests."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_rl.estimators import (
    Needs,
    RecordedBatch,
    estimator_class,
    list_estimators,
    make_estimator,
    surrogate_loss,
    view,
)
from hetero_rl.estimators.stages import kernel, level, loops, masks

PRESETS = list_estimators()
NOT_ONE_ON_POLICY = {
    "luffy": "an expert's token has gamma p / (p + gamma)^2",
    "gepo": "the mean over a group is ESS/G",
}
FIXED_EXAMPLES = settings(max_examples=8, deadline=None, derandomize=True)


def preset(name, **options):
    return make_estimator(name, {**estimator_class(name).example_options, **options})


def prepare(estimator, recorded, log_probs):
    needed = log_probs if estimator.needs is Needs.CURRENT_POLICY else None
    return estimator.prepare(recorded, needed)


def gradient(estimator, recorded, log_probs):
    """The gradient of the whole batch by the surrogate loss."""
    prepared = prepare(estimator, recorded, log_probs)
    leaf = log_probs.clone().requires_grad_()
    surrogate_loss(prepared, estimator.coefficients(prepared, log_probs), leaf).backward()
    return leaf.grad


@st.composite
def batches(draw, scale=0.3, dtype=torch.float64):
    groups = draw(st.integers(1, 4))
    group_size = draw(st.integers(2, 5))
    sequences = groups * group_size
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    lengths = torch.tensor(draw(st.lists(st.integers(1, 9), min_size=sequences, max_size=sequences)))
    tokens = int(lengths.sum())
    behavior = -4 * torch.rand(tokens, generator=generator, dtype=dtype)
    old = behavior + 0.3 * scale * torch.randn(tokens, generator=generator, dtype=dtype)
    current = old + scale * torch.randn(tokens, generator=generator, dtype=dtype)
    recorded = RecordedBatch(
        behavior_log_probs=behavior,
        old_log_probs=old,
        token_lags=torch.randint(0, 4, (tokens,), generator=generator),
        lengths=lengths,
        group_ids=torch.arange(sequences) // group_size,
        rewards=torch.rand(sequences, generator=generator, dtype=dtype),
        max_new_tokens=9,
    )
    return recorded, current.clamp(max=0)


@pytest.mark.parametrize("name", PRESETS)
@FIXED_EXAMPLES
@given(data=batches())
def test_on_policy_every_coefficient_is_one(name, data):
    recorded, _ = data
    same = dataclasses.replace(recorded, old_log_probs=recorded.behavior_log_probs)
    estimator = preset(name)
    prepared = prepare(estimator, same, same.behavior_log_probs)
    values = estimator.coefficients(prepared, same.behavior_log_probs).values
    if name in NOT_ONE_ON_POLICY:
        assert not torch.allclose(values, torch.ones_like(values))
    else:
        torch.testing.assert_close(values, torch.ones_like(values))


@pytest.mark.parametrize("name", PRESETS)
@FIXED_EXAMPLES
@given(data=batches(), seed=st.integers(0, 1000), pieces=st.integers(1, 7))
def test_the_gradient_does_not_depend_on_how_the_batch_is_cut(name, data, seed, pieces):
    recorded, log_probs = data
    estimator = preset(name)
    prepared = prepare(estimator, recorded, log_probs)
    lengths = recorded.lengths.tolist()
    columns = log_probs.split(lengths)
    found = [torch.empty(0)] * len(lengths)
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed))
    for indices in order.split(pieces):
        batch = prepared.select(indices)
        part = torch.cat([columns[i] for i in indices]).requires_grad_()
        surrogate_loss(batch, estimator.coefficients(batch, part), part).backward()
        for index, piece in zip(indices, part.grad.split([lengths[i] for i in indices]), strict=True):
            found[index] = piece
    torch.testing.assert_close(
        torch.cat(found), gradient(estimator, recorded, log_probs), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("name", PRESETS)
@FIXED_EXAMPLES
@given(data=batches(), seed=st.integers(0, 1000))
def test_the_order_of_sequences_and_the_names_of_groups_do_not_matter(name, data, seed):
    recorded, log_probs = data
    estimator = preset(name)
    order = torch.randperm(recorded.lengths.shape[0], generator=torch.Generator().manual_seed(seed))
    columns = log_probs.split(recorded.lengths.tolist())
    shuffled = dataclasses.replace(recorded.select(order), group_ids=7 - 3 * recorded.group_ids[order])
    expected = gradient(estimator, recorded, log_probs).split(recorded.lengths.tolist())
    found = gradient(estimator, shuffled, torch.cat([columns[i] for i in order]))
    torch.testing.assert_close(found, torch.cat([expected[i] for i in order]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@FIXED_EXAMPLES
@given(data=batches(scale=1e4), bad=st.lists(st.integers(0, 8), max_size=3))
def test_hostile_log_ratios_never_give_a_number_that_is_not_finite(name, dtype, data, bad):
    recorded, log_probs = data
    log_probs = log_probs.to(dtype)
    for value, position in zip((-torch.inf, torch.nan, 1e4), bad, strict=False):
        log_probs[position % log_probs.shape[0]] = value
    recorded = dataclasses.replace(
        recorded,
        behavior_log_probs=recorded.behavior_log_probs.to(dtype),
        old_log_probs=recorded.old_log_probs.to(dtype),
        rewards=recorded.rewards.to(dtype),
    )
    estimator = preset(name)
    prepared = prepare(estimator, recorded, log_probs)
    coefficients = estimator.coefficients(prepared, log_probs)
    assert coefficients.values.isfinite().all()
    assert coefficients.values.min() >= 0
    assert coefficients.log_importance_ratio.isfinite().all()
    leaf = log_probs.clone().requires_grad_()
    surrogate_loss(prepared, coefficients, leaf).backward()
    assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("name", PRESETS)
def test_a_token_without_a_finite_ratio_leaves_the_loss_and_adds_nothing(name, make_recorded):
    recorded, log_probs = make_recorded(max_new_tokens=12)
    recorded = dataclasses.replace(
        recorded,
        old_log_probs=recorded.behavior_log_probs,
        token_lags=torch.ones_like(log_probs).to(torch.int64),
    )
    first = int(recorded.lengths[0])
    assert first > 1
    broken = log_probs.clone()
    broken[0] = -torch.inf
    estimator = preset(name)
    prepared = prepare(estimator, recorded, broken)
    coefficients = estimator.coefficients(prepared, broken)
    assert not coefficients.keep[0]
    assert coefficients.unusable_tokens.tolist() == [1] + [0] * 11
    expected = float((log_probs - recorded.behavior_log_probs)[1:first].sum())
    assert float(coefficients.log_importance_ratio[0]) == pytest.approx(expected)


@pytest.mark.parametrize("name", PRESETS)
def test_a_long_batch_is_walked_in_pieces_with_the_same_result(name, make_recorded, monkeypatch):
    recorded, log_probs = make_recorded(groups=6, max_new_tokens=12, shift=0.3)
    recorded = dataclasses.replace(
        recorded,
        old_log_probs=recorded.behavior_log_probs + 0.01,
        token_lags=torch.ones_like(log_probs).to(torch.int64),
    )
    estimator = preset(name)
    prepared = prepare(estimator, recorded, log_probs)
    whole = estimator.coefficients(prepared, log_probs)
    monkeypatch.setattr(view, "TOKENS_PER_VIEW", 16)
    pieces = estimator.coefficients(prepared, log_probs)
    for field in dataclasses.fields(whole):
        torch.testing.assert_close(getattr(pieces, field.name), getattr(whole, field.name))


@pytest.mark.parametrize("name", PRESETS)
def test_a_packed_row_and_padded_rows_give_one_gradient(name, make_recorded):
    recorded, log_probs = make_recorded(max_new_tokens=12)
    recorded = dataclasses.replace(
        recorded,
        old_log_probs=recorded.behavior_log_probs + 0.01,
        token_lags=torch.ones_like(log_probs).to(torch.int64),
    )
    estimator = preset(name)
    packed = gradient(estimator, recorded, log_probs)
    padded = torch.full((12, 20), -7.0, dtype=torch.float64)
    mask = torch.arange(20) < recorded.lengths[:, None]
    padded[mask] = log_probs
    padded.requires_grad_()
    prepared = prepare(estimator, recorded, log_probs)
    flat = padded[mask]
    surrogate_loss(prepared, estimator.coefficients(prepared, flat), flat).backward()
    torch.testing.assert_close(padded.grad[mask], packed)
    assert padded.grad[~mask].count_nonzero() == 0


@pytest.mark.parametrize("name", PRESETS)
def test_masked_tokens_can_leave_the_denominator(name, make_recorded):
    recorded, log_probs = make_recorded(max_new_tokens=12, shift=0.5)
    recorded = dataclasses.replace(
        recorded,
        old_log_probs=recorded.behavior_log_probs + 0.01,
        token_lags=torch.ones_like(log_probs).to(torch.int64),
    )
    estimator = preset(name, denominator="after_mask", aggregation="token_mean")
    assert estimator.needs is Needs.CURRENT_POLICY
    prepared = estimator.prepare(recorded, log_probs)
    kept = int(estimator.coefficients(prepared, log_probs).keep.sum())
    weights = prepared.aggregation_weights
    assert float(weights.max()) == pytest.approx(1 / max(kept, 1) if kept else 0.0)


@pytest.mark.parametrize("name", PRESETS)
def test_the_passage_of_gradients_is_only_through_the_log_probabilities(name, make_recorded):
    recorded, log_probs = make_recorded(max_new_tokens=12)
    recorded = dataclasses.replace(
        recorded,
        old_log_probs=recorded.behavior_log_probs + 0.01,
        token_lags=torch.ones_like(log_probs).to(torch.int64),
    )
    estimator = preset(name)
    prepared = prepare(estimator, recorded, log_probs)
    coefficients = estimator.coefficients(prepared, log_probs.requires_grad_())
    assert not coefficients.values.requires_grad
    expected = -coefficients.values * (prepared.advantages * prepared.sequence_weights)[recorded.sequence_ids]
    surrogate_loss(prepared, coefficients, log_probs).backward()
    torch.testing.assert_close(log_probs.grad, expected)


@pytest.mark.parametrize("name", PRESETS)
def test_nothing_that_was_given_is_changed_and_a_second_call_agrees(name, make_recorded):
    recorded, log_probs = make_recorded(max_new_tokens=12, shift=0.3)
    recorded = dataclasses.replace(
        recorded,
        old_log_probs=recorded.behavior_log_probs + 0.01,
        token_lags=torch.ones_like(log_probs).to(torch.int64),
    )
    given = [
        recorded.behavior_log_probs,
        recorded.old_log_probs,
        recorded.rewards,
        recorded.lengths,
        log_probs,
    ]
    before = [column.clone() for column in given]
    estimator = preset(name)
    prepared = prepare(estimator, recorded, log_probs)
    first = estimator.coefficients(prepared, log_probs)
    second = estimator.coefficients(prepared, log_probs)
    for column, copy in zip(given, before, strict=True):
        assert torch.equal(column, copy)
    assert torch.equal(first.values, second.values)
    assert torch.equal(first.log_importance_ratio, second.log_importance_ratio)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(("rewards", "columns"), [("float32", "float64"), ("float64", "float32")])
def test_rewards_and_log_probabilities_may_differ_in_precision(name, rewards, columns, make_recorded):
    recorded, log_probs = make_recorded(max_new_tokens=12, shift=0.3, dtype=getattr(torch, columns))
    recorded = dataclasses.replace(
        recorded,
        rewards=recorded.rewards.to(getattr(torch, rewards)),
        old_log_probs=recorded.behavior_log_probs + 0.01,
        token_lags=torch.ones_like(log_probs).to(torch.int64),
    )
    assert gradient(preset(name), recorded, log_probs).dtype == getattr(torch, columns)


VARIANTS = [
    *((name, {}) for name in PRESETS),
    ("grpo", {"clip_ratio_c": 1.2}),
    ("grpo", {"anchor": "old"}),
    ("divergence_mask", {"divergence": "kl"}),
    ("mis_po", {"parts": "split", "sequence_low": 0.8, "sequence_high": 1.2}),
    ("tis", {"parts": "split", "level": "geometric"}),
    ("trm", {"metric": "k2"}),
    ("vtrace", {"rho_bar": 2.0}),
]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_what_is_compiled_says_the_same_as_torch(name, options, make_recorded, monkeypatch):
    recorded, log_probs = make_recorded(max_new_tokens=12, shift=0.3)
    recorded = dataclasses.replace(
        recorded,
        old_log_probs=recorded.behavior_log_probs + 0.01,
        token_lags=torch.ones_like(log_probs).to(torch.int64),
    )
    log_probs[3] += 25.0  # out of bounds
    compiled = coefficients_of(preset(name, **options), recorded, log_probs)
    assert loops.compiled_loops(log_probs) is not None
    for module in (kernel, level, masks):
        monkeypatch.setattr(module, "compiled_loops", lambda _: None)
    plain = coefficients_of(preset(name, **options), recorded, log_probs)
    torch.testing.assert_close(compiled.values, plain.values)
    torch.testing.assert_close(compiled.log_importance_ratio, plain.log_importance_ratio)
    assert torch.equal(compiled.clamped, plain.clamped)


def coefficients_of(estimator, recorded, log_probs):
    return estimator.coefficients(prepare(estimator, recorded, log_probs), log_probs)
