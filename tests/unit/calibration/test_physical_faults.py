"""Faults that need a model: real engines over a tiny model, with one thing wrong, measured like any backend."""

import pytest
import torch

from hetero_rl.calibration.analysis import analyse
from hetero_rl.calibration.engine_subject import EngineSubject
from hetero_rl.calibration.measure import measure
from hetero_rl.calibration.plan import Plan, TextSequence
from hetero_rl.calibration.reference import Reference, perturbed
from hetero_rl.calibration.thresholds import Thresholds
from hetero_rl.reports.findings import first_line
from hetero_rl.trainer.policy import load_policy
from hetero_rl.trainer.snapshots import take_snapshot
from hetero_rl.worker.engine import EngineSettings
from hetero_rl.worker.engines.transformers.engine import TransformersEngine

PLAN = Plan(prompts=6, group_size=4, max_new_tokens=40, checked=6, alone=2, text_tokens=48)
VOCABULARY = 96


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    directory = tmp_path_factory.mktemp("tiny")
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.35,  # peaked and flat positions, as text has them
        eos_token_id=VOCABULARY - 1,
        bos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        Qwen3ForCausalLM(config).save_pretrained(directory)
    (directory / "tokenizer.json").write_text('{"model": {"type": "WordLevel", "vocab": {}}}')
    return directory


@pytest.fixture(scope="module")
def reference(model_dir):
    policy = load_policy(model_dir, device=torch.device("cpu"), compute_dtype=torch.float32)
    a = take_snapshot(policy, 0, torch.float32)
    return Reference(policy, {"A": a, "B": perturbed(policy, a, 0.1, seed=3)})


def tokens(seed, count):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, VOCABULARY - 1, (count,), generator=generator).tolist())


@pytest.fixture(scope="module")
def diagnosed(model_dir, reference):
    """Codes that a calibration of an engine finds."""

    def run(engine_class=TransformersEngine, dtype="float32", plan=PLAN):
        settings = EngineSettings(model_dir=model_dir, dtype=dtype, max_concurrent_sequences=32, threads=1)
        subject = EngineSubject("chip", "cpu", engine_class(settings), (VOCABULARY - 1,))
        prompts = [tokens(10 + number, 4 + number) for number in range(plan.prompts)]
        texts = [TextSequence(tokens(number, 40), 1, "text", 1.0) for number in range(6)]
        try:
            measured = measure(plan, [subject], prompts, texts, reference)
        finally:
            subject.close()
        return analyse(measured, reference, estimator="vespo", longest=40, thresholds=Thresholds())[0]

    return run


class Faulty(TransformersEngine):
    """Loads a second version that is not quite the second version."""

    first = None

    def stale(self, name):
        return False

    async def load_weights(self, tensors, version):
        given = list(tensors)
        if self.first is None:
            self.first = {name: tensor.clone() for name, tensor in given}
        kept = [
            (name, self.first[name] if version == 2 and self.stale(name) else tensor)
            for name, tensor in given
        ]
        await super().load_weights(kept, version)


class OneStaleTensor(Faulty):
    def stale(self, name):
        return name == "model.layers.1.mlp.down_proj.weight"


class NothingLoaded(Faulty):
    def stale(self, name):
        return True


class StaleHead(Faulty):
    """An engine that keeps a packed copy of its output head, made at the first load."""

    async def load_weights(self, tensors, version):
        await super().load_weights(tensors, version)
        model = self._forward._model
        if version == 1:
            head = model.lm_head.weight.detach().clone()
            model.lm_head.weight = torch.nn.Parameter(head, requires_grad=False)


class KeptPrefixes(Faulty):
    """An engine whose prefix cache outlives updates: what it prefilled once it never prefills again."""

    def _build(self):
        forward = super()._build()
        plain, cache = forward.prefill, {}

        def cached(sequences):
            keys = [tuple(sequence) for sequence in sequences]
            missing = [key for key in keys if key not in cache]
            for key in missing:
                cache[key] = plain([list(key)])
            longest = max(map(len, keys))
            layers = len(cache[keys[0]])
            padded = [
                [
                    tuple(torch.nn.functional.pad(part, (0, 0, 0, longest - part.shape[2])) for part in layer)
                    for layer in cache[key]
                ]
                for key in keys
            ]
            return [
                tuple(torch.cat([one[layer][part] for one in padded]) for part in (0, 1))
                for layer in range(layers)
            ]

        forward.prefill = cached
        return forward


def codes(pair):
    return [finding.code for finding in pair.findings]


def test_an_honest_engine_has_no_finding(diagnosed):
    pair = diagnosed()
    assert codes(pair) == []
    assert pair.summary.mean_absolute < 1e-5
    assert pair.behaviour.returned.maximum == 0
    assert pair.behaviour.repeat.maximum == 0


def test_one_stale_tensor_is_named(diagnosed):
    pair = diagnosed(OneStaleTensor)
    assert codes(pair) == ["stale_tensor"]
    line = first_line(pair.findings, "nothing")
    assert line.startswith(
        "unusable: chip against trainer: one tensor is stale: model.layers.1.mlp.down_proj.weight"
    )


def test_weights_that_never_arrive_are_named(diagnosed):
    assert codes(diagnosed(NothingLoaded)) == ["stale_weights"]


def test_a_tied_head_left_behind_is_named(diagnosed):
    assert codes(diagnosed(StaleHead))[0] == "tied_head_stale"


def test_a_prefix_cache_kept_over_an_update_is_named(diagnosed):
    assert codes(diagnosed(KeptPrefixes)) == ["prefix_cache_kept"]
