import dataclasses
import json
import math

import pytest
import torch
from safetensors.torch import load_file

from hetero_rl.config.tree import OptimizerConfig
from hetero_rl.errors import NonFiniteError
from hetero_rl.estimators import make_estimator
from hetero_rl.trainer.batch import build_batch
from hetero_rl.trainer.incidents import save_incident
from hetero_rl.trainer.step import Learner, action_log_probs, learning_rate_at, record
from hetero_rl.wire.messages import FinishReason


@pytest.fixture
def batch(make_group):
    groups = [make_group(0, [5, 6, 7], [[7, 2], [2, 9, 4]]), make_group(1, [4], [[3, 8, 9, 1], [1, 1]])]
    return build_batch(1, groups, [[1.0, 0.0], [0.25, 0.75]], max_lag=0, vocabulary_size=12)


def learner(policy, name="reinforce", options=None, *, budget=64, share=True, **settings):
    config = OptimizerConfig(**{"learning_rate": 1e-2, **settings})
    estimator = make_estimator(name, options)
    return Learner(policy, estimator, config, tokens_per_micro_batch=budget, share_prompts=share)


def recorded(batch, **columns):
    return record(batch, group_size=2, max_new_tokens=8, **columns)


def log_probs_of(policy, batch, sequence):
    """By the plain formula, with gradients."""
    prompt, completion = batch.prompt_of(sequence), batch.completion_of(sequence)
    logits = policy.model(input_ids=torch.cat([prompt, completion])[None]).logits[0]
    return logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(-1, completion[:, None])[:, 0]


def weights(policy):
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()]).clone()


def test_the_gradient_of_reinforce_is_that_of_its_formula(policy, batch):
    # Advantages r - mean: 0.5, -0.5, -0.25, 0.25; every one of the 11 tokens counts 1/11.
    factors = [0.5 / 11, -0.5 / 11, -0.25 / 11, 0.25 / 11]
    loss = -sum(factor * log_probs_of(policy, batch, i).sum() for i, factor in enumerate(factors))
    loss.backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])

    result = learner(policy, max_gradient_norm=1e9).step(batch, recorded(batch))

    found = torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert result.loss == pytest.approx(loss.item(), abs=1e-6)
    assert result.gradient_norm == pytest.approx(expected.norm().item(), rel=1e-5)


@pytest.mark.parametrize("name", ["reinforce", "grpo", "gspo", "vespo", "gepo"])
def test_a_step_does_not_depend_on_how_the_batch_was_cut(model_dir, batch, name):
    from hetero_rl.trainer.policy import load_policy

    results, states = [], []
    for budget, share in ((64, False), (12, False), (6, False), (64, True), (7, True)):
        policy = load_policy(model_dir, device=torch.device("cpu"), compute_dtype=torch.float32)
        subject = learner(policy, name, budget=budget, share=share, epsilon=1e-3)
        results.append(subject.step(batch, recorded(batch)))
        states.append(weights(policy))

    assert len(subject.plan(batch)) > 2
    for result, state in zip(results[1:], states[1:], strict=True):
        assert result.loss == pytest.approx(results[0].loss, abs=1e-6)
        assert result.gradient_norm == pytest.approx(results[0].gradient_norm, rel=1e-4, abs=1e-6)
        torch.testing.assert_close(result.log_probs, results[0].log_probs, atol=1e-5, rtol=0)
        torch.testing.assert_close(
            result.coefficients.values, results[0].coefficients.values, atol=1e-5, rtol=1e-4
        )
        torch.testing.assert_close(state, states[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["grpo", "vespo"])
def test_a_model_whose_head_is_not_known_gives_the_same_step(model_dir, batch, name):
    from hetero_rl.trainer.policy import load_policy

    results, states = [], []
    for known in (True, False):
        policy = load_policy(model_dir, device=torch.device("cpu"), compute_dtype=torch.float32)
        policy = policy if known else dataclasses.replace(policy, head=None)
        subject = learner(policy, name, budget=12, epsilon=1e-3)
        results.append(subject.step(batch, recorded(batch)))
        states.append(weights(policy))

    assert results[1].loss == pytest.approx(results[0].loss, abs=1e-6)
    assert results[1].gradient_norm == pytest.approx(results[0].gradient_norm, rel=1e-5)
    torch.testing.assert_close(states[1], states[0], atol=1e-6, rtol=0)


def test_the_same_inputs_give_bit_equal_results(model_dir, batch):
    from hetero_rl.trainer.policy import load_policy

    outcomes = []
    for _ in range(2):
        policy = load_policy(model_dir, device=torch.device("cpu"), compute_dtype=torch.float32)
        result = learner(policy, "vespo", budget=12).step(batch, recorded(batch))
        outcomes.append((result.loss, weights(policy)))

    assert outcomes[0][0] == outcomes[1][0]
    assert torch.equal(outcomes[0][1], outcomes[1][1])


def test_a_step_raises_the_log_probability_of_what_was_rewarded(policy, batch):
    subject = learner(policy, weight_decay=0.0)
    before = action_log_probs(policy, batch, ((0,),), 1.0).sum().item()

    subject.step(batch, recorded(batch))

    assert action_log_probs(policy, batch, ((0,),), 1.0).sum().item() > before


def test_masked_tokens_are_not_part_of_the_batch_that_the_estimator_sees(policy, make_group):
    from hetero_rl.wire.columns import UInt8Bytes

    group = make_group(0, [5], [[1, 2, 3], [4, 5]])
    group = dataclasses.replace(
        group,
        batches=(dataclasses.replace(group.batches[0], action_mask=UInt8Bytes(bytes([1, 0, 1, 1, 1]))),),
    )
    masked = build_batch(1, [group], [[1.0, 0.0]], max_lag=0, vocabulary_size=12)

    result = learner(policy).step(masked, recorded(masked))

    assert masked.action_lengths.tolist() == [2, 2]
    assert result.log_probs.shape == (4,)
    everything = build_batch(
        1, [make_group(0, [5], [[1, 2, 3], [4, 5]])], [[1.0, 0.0]], max_lag=0, vocabulary_size=12
    )
    assert everything.action_lengths.tolist() == [3, 2]


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_number_that_is_not_finite_stops_before_anything_is_applied(policy, batch, poison):
    subject = learner(policy)
    with torch.no_grad():
        policy.parameters()[0][3, 0] = poison
    before = weights(policy)

    with pytest.raises(NonFiniteError, match="step 1"):
        subject.step(batch, recorded(batch))

    assert torch.equal(weights(policy).nan_to_num(7), before.nan_to_num(7))
    assert not subject.optimizer.state


def test_a_gradient_that_is_not_finite_stops_before_anything_is_applied(policy, batch):
    subject = learner(policy)
    policy.parameters()[0].register_hook(lambda gradient: gradient * math.inf)
    before = weights(policy)

    with pytest.raises(NonFiniteError, match="gradient norm"):
        subject.step(batch, recorded(batch))

    assert torch.equal(weights(policy), before)
    assert not subject.optimizer.state


def test_the_batch_of_a_stopped_step_can_be_read_back(tmp_path, batch):
    directory = save_incident(tmp_path, batch, cause="loss is nan", weight_version=7)

    assert directory == tmp_path / "incidents" / "step_00000001"
    facts = json.loads((directory / "incident.json").read_text())
    assert facts["cause"] == "loss is nan"
    assert facts["weight_version"] == 7
    assert facts["group_ids"] == ["train-00000000", "train-00000001"]
    columns = load_file(directory / "batch.safetensors")
    assert torch.equal(columns["token_ids"], batch.token_ids)
    assert torch.equal(columns["behavior_log_probs"], batch.behavior_log_probs)


def test_gradients_are_clipped_to_the_largest_norm(policy, batch):
    result = learner(policy, max_gradient_norm=1e-3).step(batch, recorded(batch))

    clipped = torch.cat([parameter.grad.flatten() for parameter in policy.parameters()]).norm().item()
    assert result.gradient_norm > 1e-3
    assert clipped == pytest.approx(1e-3, rel=1e-3)


def test_learning_rate_warms_up_linearly_and_stays():
    config = OptimizerConfig(learning_rate=0.4, warmup_steps=4)

    rates = [learning_rate_at(step, config) for step in (1, 2, 3, 4, 5, 100)]

    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    assert learning_rate_at(1, OptimizerConfig(learning_rate=0.4)) == pytest.approx(0.4)


def test_an_estimator_may_scale_the_learning_rate_of_a_step(policy, batch):
    result = learner(policy, "vcpo", {"advantage": "none"}).step(batch, recorded(batch))

    log_w = result.coefficients.log_importance_ratio.double()
    share = float(log_w.exp().sum() ** 2 / log_w.exp().square().sum() / len(log_w))
    assert result.learning_rate == pytest.approx(1e-2 * math.sqrt(share), rel=1e-5)
    assert result.learning_rate < 1e-2


def test_half_precision_gradients_are_those_of_float32_within_its_rounding(model_dir, batch):
    from hetero_rl.trainer.policy import load_policy

    norms = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        policy = load_policy(model_dir, device=torch.device("cpu"), compute_dtype=dtype)
        norms.append(learner(policy).step(batch, recorded(batch)).gradient_norm)

    assert norms[1] == pytest.approx(norms[0], rel=0.05)
    assert norms[2] == pytest.approx(norms[0], rel=0.02)


def test_a_shared_prompt_is_computed_once(policy, batch):
    shared = learner(policy, share=True).step(batch, recorded(batch))
    apart = learner(policy, share=False).step(batch, recorded(batch))
    padded = learner(dataclasses.replace(policy, packed=False)).step(batch, recorded(batch))

    # Prompts of 3 and 1; of completions of 2, 3, 4 and 2 tokens all but the last: 1, 2, 3 and 1.
    assert shared.padded_tokens == 3 + 1 + 2 + 1 + 3 + 1
    assert apart.padded_tokens == 4 + 5 + 4 + 2
    assert padded.padded_tokens == 4 * 5


def test_an_estimator_that_needs_the_current_policy_gets_one_extra_pass(policy, batch, monkeypatch):
    calls = []
    trunk = policy.model.base_model
    forward = trunk.forward
    monkeypatch.setattr(
        trunk,
        "forward",
        lambda **inputs: (calls.append(torch.is_grad_enabled()), forward(**inputs))[1],
    )

    learner(policy, "grpo").step(batch, recorded(batch))
    learner(policy, "grpo", {"denominator": "after_mask"}).step(batch, recorded(batch))

    assert calls == [True, False, True]


def test_sequences_cut_short_by_the_engine_do_not_reach_the_estimator(policy, make_group):
    group = make_group(
        0,
        [5],
        [[1], [2], [3]],
        reasons=[FinishReason.STOP, FinishReason.ABORTED, FinishReason.LENGTH],
    )
    batch = build_batch(1, [group], [[1.0, 1.0, 0.0]], max_lag=0, vocabulary_size=12)

    result = learner(policy).step(batch, record(batch, group_size=3, max_new_tokens=8))

    assert result.prepared.advantages.tolist() == [0.5, -0.5]
    assert result.prepared.facts["incomplete_groups"] == 1


def test_an_entropy_bonus_adds_the_gradient_of_the_mean_entropy(policy, batch):
    from hetero_rl.trainer.objective import LossTerms

    factors = [0.5 / 11, -0.5 / 11, -0.25 / 11, 0.25 / 11]
    loss = -sum(factor * log_probs_of(policy, batch, i).sum() for i, factor in enumerate(factors))
    entropies = []
    for i in range(4):
        prompt, completion = batch.prompt_of(i), batch.completion_of(i)
        logits = policy.model(input_ids=torch.cat([prompt, completion])[None]).logits[0]
        p = logits[len(prompt) - 1 : -1].softmax(-1)
        entropies.append(-(p * p.log()).sum(-1))
    entropy = torch.cat(entropies)
    (loss - 0.3 * entropy.mean()).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])
    subject = Learner(
        policy,
        make_estimator("reinforce", None),
        OptimizerConfig(learning_rate=1e-2, max_gradient_norm=1e9),
        tokens_per_micro_batch=12,
        terms=LossTerms(entropy_bonus=0.3),
    )

    result = subject.step(batch, recorded(batch))

    found = torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(result.entropies, entropy.detach(), atol=1e-5, rtol=0)


def test_a_divergence_from_a_reference_adds_the_gradient_of_its_estimate(model_dir, policy, batch):
    from hetero_rl.trainer.objective import LossTerms
    from hetero_rl.trainer.policy import load_policy

    reference = load_policy(model_dir, device=torch.device("cpu"), compute_dtype=torch.float32)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.2)
    # Rewards are equal, so nothing but the divergence has a gradient: its k3 estimate, mean over 11 tokens.
    equal = dataclasses.replace(batch, rewards=torch.ones(4))
    own = torch.cat([log_probs_of(policy, batch, i) for i in range(4)])
    theirs = torch.cat([log_probs_of(reference, batch, i) for i in range(4)]).detach()
    (0.7 * ((theirs - own).exp() - (theirs - own) - 1).mean()).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])
    subject = Learner(
        policy,
        make_estimator("reinforce", None),
        OptimizerConfig(learning_rate=1e-2, max_gradient_norm=1e9),
        tokens_per_micro_batch=64,
        terms=LossTerms(reference_kl=0.7),
        reference=reference,
    )

    result = subject.step(equal, recorded(equal))

    found = torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(result.reference_log_probs, theirs, atol=1e-5, rtol=0)


def test_float16_gradients_that_overflow_are_computed_again_with_a_smaller_scale(model_dir, batch):
    from hetero_rl.trainer.policy import load_policy

    policy = load_policy(model_dir, device=torch.device("cpu"), compute_dtype=torch.float16)
    calls = []

    def overflow(gradient):
        calls.append(1)
        return gradient * math.inf if len(calls) == 1 else gradient

    policy.parameters()[-1].register_hook(overflow)

    result = learner(policy).step(batch, recorded(batch))

    assert len(calls) == 2
    assert math.isfinite(result.gradient_norm)


def test_checkpointed_activations_give_the_same_step(model_dir, batch):
    from hetero_rl.trainer.policy import load_policy
    from hetero_rl.trainer.sharding import checkpoint_activations, decoder_layers

    states = []
    for checkpointed in (False, True):
        policy = load_policy(model_dir, device=torch.device("cpu"), compute_dtype=torch.float32)
        if checkpointed:
            checkpoint_activations(policy.model)
        learner(policy, "vespo", epsilon=1e-3).step(batch, recorded(batch))
        states.append(weights(policy))

    assert len(decoder_layers(policy.model)) == 2
    torch.testing.assert_close(states[1], states[0], atol=1e-6, rtol=0)


def test_moments_are_in_the_hosts_memory_between_steps(policy, batch):
    subject = Learner(
        policy,
        make_estimator("reinforce", None),
        OptimizerConfig(learning_rate=1e-2),
        tokens_per_micro_batch=64,
        offload_optimizer=True,
    )

    for _ in range(2):
        subject.step(batch, recorded(batch))

    state = next(iter(subject.optimizer.state.values()))
    assert state["step"].item() == 2
    assert state["exp_avg"].device.type == "cpu"


def test_a_step_that_does_not_fit_into_memory_names_the_knob_and_changes_nothing(policy, batch, monkeypatch):
    from hetero_rl.errors import MemoryLimitError

    subject = learner(policy, budget=7)
    before = weights(policy)
    forward = subject._module.forward
    calls = []

    def fit_once(*args, **options):
        calls.append(args)
        if len(calls) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return forward(*args, **options)

    monkeypatch.setattr(subject._module, "forward", fit_once)

    with pytest.raises(
        MemoryLimitError, match=r"step 1 .*trainer\.tokens_per_micro_batch \(it is 7\).*2\.00 GiB"
    ):
        subject.step(batch, recorded(batch))
    assert torch.equal(weights(policy), before)
    assert not subject.optimizer.state
