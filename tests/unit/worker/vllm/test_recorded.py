"""The adapter on recorded interfaces, beyond what every engine must do."""

import asyncio
import importlib.util
import json
from pathlib import Path

import pytest
import torch

from hetero_rl.errors import EngineError
from hetero_rl.wire.columns import int32_column
from hetero_rl.wire.messages import GenerateWork, Purpose, SamplingParameters
from hetero_rl.worker.engine import EngineSettings
from hetero_rl.worker.engines.vllm import VllmEngine
from hetero_rl.worker.engines.vllm.library import load_library

CONTRACT = Path(__file__).parents[3] / "contract"
RELEASES = ("0.23.0", "0.32.0", "0.33.0")


@pytest.fixture(scope="module")
def fake_vllm():
    specification = importlib.util.spec_from_file_location("fake_vllm", CONTRACT / "fake_vllm.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def model_dir(tmp_path):
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 16,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "vocab.txt").write_text("a")
    return tmp_path


def settings(model_dir):
    return EngineSettings(model_dir=model_dir, dtype="float32", max_concurrent_sequences=4)


def work():
    return GenerateWork(
        group_id="g",
        purpose=Purpose.TRAIN,
        prompt_token_ids=int32_column([3, 5]),
        sample_indices=(0, 1),
        sampling=SamplingParameters(max_new_tokens=50, stop_token_ids=()),
    )


def weights():
    shapes = {
        "model.embed_tokens.weight": (16, 16),
        "model.layers.0.self_attn.q_proj.weight": (16, 16),
        "model.layers.0.self_attn.k_proj.weight": (16, 16),
        "model.layers.0.self_attn.v_proj.weight": (16, 16),
        "model.layers.0.self_attn.o_proj.weight": (16, 16),
        "model.layers.0.mlp.gate_proj.weight": (16, 16),
        "model.layers.0.mlp.up_proj.weight": (16, 16),
        "model.layers.0.mlp.down_proj.weight": (16, 16),
        "model.layers.0.input_layernorm.weight": (16,),
        "model.layers.0.post_attention_layernorm.weight": (16,),
        "model.norm.weight": (16,),
    }
    return [(name, torch.ones(shape)) for name, shape in shapes.items()]


@pytest.mark.parametrize(
    ("release", "labels", "refuses", "interval"),
    [
        ("0.23.0", False, False, "engine"),
        ("0.32.0", True, True, "request"),
        ("0.33.0", True, True, "request"),
    ],
)
def test_what_a_release_has_is_found_by_looking(fake_vllm, release, labels, refuses, interval):
    features = load_library(fake_vllm.FakeVllm(release).import_module).features

    assert (features.version_labels, features.refuses_while_paused) == (labels, refuses)
    assert features.stream_interval == interval


@pytest.mark.parametrize("missing", ["pause_generation", "collective_rpc"])
def test_a_release_that_lacks_a_call_is_refused_with_its_name(fake_vllm, missing):
    fake = fake_vllm.FakeVllm("0.33.0")
    engine = fake.modules["vllm.v1.engine.async_llm"]
    engine.AsyncLLM = type(
        "AsyncLLM",
        (),
        {name: vars(engine.AsyncLLM)[name] for name in vars(engine.AsyncLLM) if name != missing},
    )

    with pytest.raises(EngineError, match=missing):
        load_library(fake.import_module)


def test_a_vllm_that_cannot_be_imported_is_told_apart_from_a_missing_one(fake_vllm):
    fake = fake_vllm.FakeVllm("0.33.0")
    del fake.modules["vllm.outputs"]

    with pytest.raises(EngineError, match="cannot be imported"):
        load_library(fake.import_module)


@pytest.mark.asyncio
@pytest.mark.parametrize("release", RELEASES)
async def test_an_engine_that_dies_on_the_way_ends_its_requests_as_dead(fake_vllm, model_dir, release):
    fake = fake_vllm.FakeVllm(release)
    engine = VllmEngine(settings(model_dir), lambda: load_library(fake.import_module))
    await engine.start()
    await engine.load_weights(weights(), 1)
    running = asyncio.create_task(engine.generate(work()))
    while not engine.generated_tokens:  # ruff: ignore[async-busy-wait] - the interface has a counter, no event
        await asyncio.sleep(0.001)

    fake.started[0].die()

    with pytest.raises(EngineError, match="died"):
        await running
    with pytest.raises(EngineError):
        await engine.load_weights(weights(), 2)
    assert engine.unfinished_sequences == 0
    await engine.close()


@pytest.mark.asyncio
async def test_closing_ends_running_work_with_an_error_and_no_silence(fake_vllm, model_dir):
    fake = fake_vllm.FakeVllm("0.33.0")
    engine = VllmEngine(settings(model_dir), lambda: load_library(fake.import_module))
    await engine.start()
    await engine.load_weights(weights(), 1)
    running = asyncio.create_task(engine.generate(work()))
    await asyncio.sleep(0)

    await engine.close()

    with pytest.raises(EngineError, match="closed"):
        await running


@pytest.mark.asyncio
async def test_an_engine_that_ignores_the_mode_is_measured_as_raw(fake_vllm, model_dir):
    modes = {}
    for release in ("0.23.0", "0.33.0"):
        fake = fake_vllm.FakeVllm(release)
        engine = VllmEngine(settings(model_dir), lambda fake=fake: load_library(fake.import_module))
        await engine.start()
        modes[release] = engine.numerics().log_probs_mode
        await engine.close()

    assert modes == {"0.23.0": "raw", "0.33.0": "processed"}
