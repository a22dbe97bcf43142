import dataclasses
import threading

import pytest
import torch
from safetensors.torch import load_file

from hetero_rl.config.tree import LoraConfig, OptimizerConfig
from hetero_rl.errors import ConfigError, DamagedError
from hetero_rl.estimators import make_estimator
from hetero_rl.trainer import adapters as module
from hetero_rl.trainer.adapters import add_adapters, without_adapters
from hetero_rl.trainer.baseline import encode_anchor
from hetero_rl.trainer.batch import build_batch
from hetero_rl.trainer.checkpoint import list_checkpoints
from hetero_rl.trainer.export import export_adapters
from hetero_rl.trainer.policy import load_policy
from hetero_rl.trainer.session import train
from hetero_rl.trainer.sharding import policy_tensors
from hetero_rl.trainer.sinks import MemorySink
from hetero_rl.trainer.snapshots import SnapshotScorer, take_snapshot
from hetero_rl.trainer.state import capture_tensors, restore_tensors
from hetero_rl.trainer.step import Learner, record
from hetero_rl.trainer.tensor_files import write_tensors
from hetero_rl.weights.adapter_rules import is_adapter_name
from hetero_rl.weights.full import stage_full
from hetero_rl.weights.low_rank import merged_tensors, take_apart

pytest.importorskip("peft", reason="the extra `lora` is not installed")
SETTINGS = LoraConfig(rank=2, alpha=6.0)
IDS = torch.tensor([[2, 3, 4, 5]])


@pytest.fixture
def adapted(policy):
    return add_adapters(policy, SETTINGS, seed=3)


@pytest.fixture
def batch(make_group):
    groups = [make_group(0, [5, 6, 7], [[7, 2], [2, 9, 4]]), make_group(1, [4], [[3, 8, 9, 1], [1, 1]])]
    return build_batch(1, groups, [[1.0, 0.0], [0.25, 0.75]], max_lag=0, vocabulary_size=12)


def make_learner(policy):
    config = OptimizerConfig(learning_rate=0.05)
    return Learner(policy, make_estimator("vespo", {}), config, tokens_per_micro_batch=64)


def step(learner, batch):
    return learner.step(batch, record(batch, group_size=2, max_new_tokens=8))


def fresh(model_dir):
    policy = load_policy(model_dir, device=torch.device("cpu"), compute_dtype=torch.float32)
    return add_adapters(policy, SETTINGS, seed=3)


def test_new_adapters_change_nothing_and_are_all_that_is_trained(model_dir, adapted):
    plain = load_policy(model_dir, device=torch.device("cpu"), compute_dtype=torch.float32)

    assert torch.equal(adapted.model(input_ids=IDS).logits, plain.model(input_ids=IDS).logits)
    names = {name for name, parameter in adapted.named_parameters().items() if parameter.requires_grad}
    # 7 linear layers in each of 2 decoder layers, A and B of each.
    assert len(names) == 28
    assert all("lora_" in name for name in names)


def test_a_step_moves_adapters_only_and_merging_gives_the_same_log_probs(model_dir, adapted, batch):
    before = {name: tensor.clone() for name, tensor in adapted.model.state_dict().items()}
    learner = make_learner(adapted)
    for _ in range(3):
        result = step(learner, batch)

    moved = {
        name for name, tensor in adapted.model.state_dict().items() if not torch.equal(tensor, before[name])
    }
    assert moved
    assert all("lora_" in name for name in moved)
    assert result.gradient_norm > 0
    merged = load_policy(model_dir, device=torch.device("cpu"), compute_dtype=torch.float32)
    names = {named.name: named.tensor for named in policy_tensors(adapted)}
    assert names.keys() <= merged.model.state_dict().keys()
    merged.model.load_state_dict(names, strict=False)
    torch.testing.assert_close(
        merged.model(input_ids=IDS).logits, adapted.model(input_ids=IDS).logits, atol=1e-5, rtol=0
    )


def test_a_merged_matrix_is_w_plus_alpha_over_r_b_a(adapted):
    layer = adapted.model.model.layers[0].self_attn.q_proj
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    with torch.no_grad():
        up.copy_(torch.arange(up.numel()).view_as(up) / 10)

    merged = {named.name: named.tensor for named in policy_tensors(adapted)}

    expected = layer.base_layer.weight + 3.0 * up @ down
    torch.testing.assert_close(merged["model.layers.0.self_attn.q_proj.weight"], expected.detach())
    assert torch.equal(
        merged["model.layers.1.self_attn.q_proj.weight"],
        adapted.model.model.layers[1].self_attn.q_proj.base_layer.weight,
    )


def test_what_is_published_has_the_models_own_names_and_scores_as_the_policy_does(adapted, batch):
    learner = make_learner(adapted)
    step(learner, batch)

    snapshot = take_snapshot(adapted, 1, torch.float32)
    scores = SnapshotScorer(adapted).score(snapshot, [IDS[0].tolist()])

    assert not [name for name in snapshot.tensors if "lora" in name or "base_layer" in name]
    assert snapshot.tensors["lm_head.weight"] is snapshot.tensors["model.embed_tokens.weight"]
    distribution = adapted.model(input_ids=IDS).logits.log_softmax(-1)
    expected = distribution[0, :-1].gather(-1, IDS[0, 1:, None])[:, 0]
    assert scores == pytest.approx(expected.tolist(), abs=1e-5)


def test_the_frozen_model_is_there_without_a_second_copy(model_dir, adapted, batch):
    plain = load_policy(model_dir, device=torch.device("cpu"), compute_dtype=torch.float32)
    learner = make_learner(adapted)
    step(learner, batch)
    reference = without_adapters(adapted)

    from hetero_rl.trainer.step import action_log_probs

    rows = ((0, 1), (2, 3))
    found = action_log_probs(reference, batch, rows, 1.0)

    assert torch.equal(found, action_log_probs(plain, batch, rows, 1.0))
    assert not torch.equal(found, action_log_probs(adapted, batch, rows, 1.0))


def test_a_checkpoint_of_adapters_continues_bit_for_bit(model_dir, batch, tmp_path):
    learner = make_learner(fresh(model_dir))
    for _ in range(2):
        step(learner, batch)
    for name, content in capture_tensors(learner.policy, learner.optimizer).items():
        write_tensors(tmp_path / name, content)
    expected = [step(learner, batch).loss for _ in range(3)]

    again = make_learner(fresh(model_dir))
    restore_tensors(tmp_path, again.policy, again.optimizer)

    assert [step(again, batch).loss for _ in range(3)] == expected


def test_a_checkpoint_with_adapters_needs_them_and_one_without_refuses_them(model_dir, policy, tmp_path):
    learner = make_learner(fresh(model_dir))
    for name, content in capture_tensors(learner.policy, learner.optimizer).items():
        write_tensors(tmp_path / name, content)
    whole = make_learner(policy)

    with pytest.raises(ConfigError, match=r"holds adapters.*trainer\.lora\.rank"):
        restore_tensors(tmp_path, whole.policy, whole.optimizer)
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"holds no adapters.*trainer\.lora\.rank"):
        restore_tensors(tmp_path, learner.policy, learner.optimizer)


def test_adapters_of_another_rank_are_refused(model_dir, policy, tmp_path):
    learner = make_learner(fresh(model_dir))
    for name, content in capture_tensors(learner.policy, learner.optimizer).items():
        write_tensors(tmp_path / name, content)
    other = make_learner(add_adapters(policy, LoraConfig(rank=4), seed=0))

    with pytest.raises(DamagedError, match=r"lora_A\.weight is \(2, 32\), not \(4, 32\)"):
        restore_tensors(tmp_path, other.policy, other.optimizer)


@pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated"
)  # peft asks transformers for it
def test_peft_loads_the_exported_adapters(model_dir, batch, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    learner = make_learner(fresh(model_dir))
    step(learner, batch)
    checkpoint = tmp_path / "step"
    checkpoint.mkdir()
    for name, content in capture_tensors(learner.policy, learner.optimizer).items():
        write_tensors(checkpoint / name, content)

    size = export_adapters(checkpoint, tmp_path / "out", SETTINGS, str(model_dir))

    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    loaded = PeftModel.from_pretrained(base, tmp_path / "out").eval()
    assert size == (tmp_path / "out" / "adapter_model.safetensors").stat().st_size
    torch.testing.assert_close(
        loaded(input_ids=IDS).logits, learner.policy.model(input_ids=IDS).logits, atol=1e-5, rtol=0
    )


def test_export_of_adapters_from_a_checkpoint_without_them_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no adapters"):
        export_adapters(tmp_path, tmp_path / "out", SETTINGS, "m")


def test_a_target_that_is_no_linear_layer_is_named_with_those_that_are(policy):
    with pytest.raises(ConfigError, match=r"\['lm_head'\].*there are \['down_proj', .*'v_proj'\]"):
        add_adapters(policy, LoraConfig(rank=2, targets=("q_proj", "lm_head")), seed=0)


def test_chosen_targets_get_adapters_and_others_do_not(policy):
    adapted = add_adapters(policy, LoraConfig(rank=2, targets=("q_proj", "v_proj")), seed=0)

    assert len(adapted.parameters()) == 2 * 2 * 2


def test_without_peft_the_extra_is_named(policy, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"hetero-rl\[lora\]"):
        add_adapters(policy, SETTINGS, seed=0)


@pytest.fixture
def apart(policy):
    """A policy whose adapters are published beside the frozen model."""
    return add_adapters(policy, SETTINGS.model_copy(update={"publish": "adapter"}), seed=3)


def test_what_is_published_apart_is_the_frozen_model_and_the_adapters_and_scores_as_the_policy_does(
    apart, batch
):
    before = take_snapshot(apart, 0, torch.float32)
    learner = make_learner(apart)
    step(learner, batch)

    snapshot = take_snapshot(apart, 1, torch.float32, before)
    scores = SnapshotScorer(apart).score(snapshot, [IDS[0].tolist()])

    own = {name for name in snapshot.tensors if not is_adapter_name(name)}
    assert own == {named.name for named in policy_tensors(apart)} | {"lm_head.weight"}
    assert snapshot.tensors.keys() - own == apart.adapters.tensors(apart.model.state_dict()).keys()
    assert all(snapshot.tensors[name] is before.tensors[name] for name in own)
    assert snapshot.adapter.target_modules == (
        "down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj",
    )  # fmt: skip
    assert (snapshot.adapter.rank, snapshot.adapter.scale) == (2, 3.0)
    distribution = apart.model(input_ids=IDS).logits.log_softmax(-1)
    expected = distribution[0, :-1].gather(-1, IDS[0, 1:, None])[:, 0]
    assert scores == pytest.approx(expected.tolist(), abs=1e-6)
    assert SnapshotScorer(apart).score(before, [IDS[0].tolist()]) != scores


def test_a_version_apart_merges_into_what_is_published_merged(apart, batch, tmp_path):
    learner = make_learner(apart)
    for _ in range(2):
        step(learner, batch)
    snapshot = take_snapshot(apart, 1, torch.float32)
    encoded = encode_anchor(snapshot, tmp_path, version=2, card=None)
    staged = stage_full(encoded.manifest, [blob.path for blob in encoded.blobs])

    merged = dict(merged_tensors(*take_apart(staged, encoded.manifest.adapter)))

    expected = {named.name: named.tensor for named in policy_tensors(apart)}
    assert list(merged) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(merged[name], tensor, atol=1e-6, rtol=0)


@pytest.mark.usefixtures("letters")
def test_a_hub_that_does_not_know_such_versions_is_found_out_before_anything_is_published(
    make_config, make_hub, monkeypatch
):
    config = make_config(trainer={"lora": {"rank": 2, "publish": "adapter"}})
    hub = make_hub()
    grant = hub.open_run
    monkeypatch.setattr(
        hub, "open_run", lambda request: dataclasses.replace(grant(request), adapter_weights=False)
    )
    with pytest.raises(ConfigError, match="the hub is older than such versions"):
        train(config, hub, [MemorySink()], resume=False, stop=threading.Event())
    assert not hub.manifests


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("publish", ["merged", "adapter"])
def test_a_run_with_adapters_and_a_reference_is_resumed_bit_for_bit(make_config, make_hub, tmp_path, publish):
    def config(name):
        return make_config(
            run={"steps": 4, "dir": tmp_path / name},
            evaluation={"every": 0},
            checkpoint={"every": 2},
            trainer={
                "groups_per_step": 2,
                "group_size": 4,
                "reference_kl": 0.1,
                "lora": {"rank": 2, "publish": publish},
            },
        )

    def run(config, hub, *, resume=False):
        sink = MemorySink()
        train(config, hub, [sink], resume=resume, stop=threading.Event())
        return {record.step: record.values.get("loss") for record in sink.records}

    straight = run(config("straight"), make_hub())
    hub = make_hub()
    hub.faults["commit_step 3"] = RuntimeError("the power failed")
    with pytest.raises(RuntimeError, match="the power failed"):
        run(config("resumed"), hub)
    resumed = run(config("resumed"), hub, resume=True)

    assert {item.adapter is not None for item in hub.manifests} == {publish == "adapter"}
    if publish == "adapter":  # each a full copy, here: the base is the same blob in all of them
        assert len({item.blobs[0].digest for item in hub.manifests}) == 1
        assert len({item.blobs[1].digest for item in hub.manifests}) > 1
    assert resumed[3] == straight[3]
    assert resumed[4] == straight[4]
    newest = list_checkpoints(tmp_path / "resumed" / "checkpoints")[0][1]
    same = list_checkpoints(tmp_path / "straight" / "checkpoints")[0][1]
    for name in ("model.safetensors", module.ADAPTER_FILE):
        own, other = load_file(newest / name), load_file(same / name)
        assert own.keys() == other.keys()
        assert all(torch.equal(tensor, other[key]) for key, tensor in own.items())


@pytest.mark.usefixtures("letters")
def test_adapters_are_not_continued_on_another_model(make_config, make_hub, monkeypatch):
    config = make_config(
        evaluation={"every": 0}, trainer={"groups_per_step": 2, "group_size": 2, "lora": {"rank": 2}}
    )
    train(config, make_hub(), [MemorySink()], resume=False, stop=threading.Event())
    monkeypatch.setattr(module, "_digest", lambda _: "0" * 64)

    with pytest.raises(ConfigError, match=r"another model than that of model\.path"):
        train(config, make_hub(), [MemorySink()], resume=True, stop=threading.Event())
