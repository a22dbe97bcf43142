"""What the contract suite does not reach of the transformers engine: starting, refusing, dying."""

import asyncio
import dataclasses
import itertools

import pytest
import torch
from transformers import MistralConfig, Qwen3Config, Qwen3ForCausalLM, Qwen3NextConfig

from hetero_rl.errors import BackendError, ConfigError, EngineError
from hetero_rl.wire.columns import float32_view, int32_column
from hetero_rl.wire.messages import GenerateWork, Purpose, SamplingParameters, ScoreWork
from hetero_rl.worker.engine import EngineSettings
from hetero_rl.worker.engines.transformers import TransformersEngine
from hetero_rl.worker.engines.transformers.forward import chunks_of_tokens

SIZES = {
    "vocab_size": 16,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}


@pytest.fixture
def model_dir(tmp_path):
    (tmp_path / "vocab.txt").write_text("a")
    return tmp_path


def engine_for(model_dir, **changes) -> TransformersEngine:
    settings = {"dtype": "float32", "max_concurrent_sequences": 4, "threads": 1} | changes
    return TransformersEngine(EngineSettings(model_dir=model_dir, **settings))


def work(prompt=(3, 4), **sampling) -> GenerateWork:
    return GenerateWork(
        group_id="g",
        purpose=Purpose.TRAIN,
        prompt_token_ids=int32_column(prompt),
        sample_indices=(0, 1),
        sampling=SamplingParameters(**({"max_new_tokens": 5, "stop_token_ids": ()} | sampling)),
    )


@pytest.mark.asyncio
async def test_weights_in_the_directory_serve_as_version_0(model_dir):
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES))
    model.save_pretrained(model_dir)
    engine = engine_for(model_dir)
    await engine.start()
    completions = await engine.generate(work())
    assert {span.weight_version for completion in completions for span in completion.spans} == {0}
    column = await engine.score(
        ScoreWork(score_id="s", lengths=(3,), token_ids=int32_column([3, 4, 5]), weight_version=0)
    )
    with torch.no_grad():
        log_probs = model(torch.tensor([[3, 4, 5]])).logits.log_softmax(dim=-1)
    expected = [log_probs[0, 0, 4].item(), log_probs[0, 1, 5].item()]
    assert list(float32_view(column)) == pytest.approx(expected, abs=1e-5)
    await engine.close()


@pytest.mark.asyncio
async def test_without_weights_nothing_is_generated_before_a_load(model_dir):
    Qwen3Config(**SIZES).save_pretrained(model_dir)
    engine = engine_for(model_dir)
    await engine.start()
    with pytest.raises(BackendError, match="load_weights"):
        await engine.generate(work())
    await engine.close()


@pytest.mark.asyncio
async def test_scoring_under_another_version_than_asked_for_is_refused(model_dir):
    Qwen3ForCausalLM(Qwen3Config(**SIZES)).save_pretrained(model_dir)
    engine = engine_for(model_dir)
    await engine.start()
    with pytest.raises(BackendError, match="version 4, version 0 is loaded"):
        await engine.score(
            ScoreWork(score_id="s", lengths=(2,), token_ids=int32_column([3, 4]), weight_version=4)
        )
    await engine.close()


@pytest.mark.asyncio
async def test_a_completion_ends_where_the_model_ends(model_dir):
    Qwen3ForCausalLM(Qwen3Config(**SIZES)).save_pretrained(model_dir)
    engine = engine_for(model_dir)
    await engine.start()
    completions = await engine.generate(work(prompt=[3] * 60, max_new_tokens=50))
    assert [len(completion.token_ids) for completion in completions] == [4, 4]
    with pytest.raises(ValueError, match="64 with the completion"):
        await engine.generate(work(prompt=[3] * 64))
    await engine.close()


@pytest.mark.asyncio
async def test_sliding_window_attention_decodes_beyond_its_window(model_dir):
    MistralConfig(**SIZES, sliding_window=4).save_pretrained(model_dir)
    engine = engine_for(model_dir)
    await engine.start()
    state = {name: parameter.clone() for name, parameter in engine._weights._by_name.items()}
    await engine.load_weights(state.items(), 1)
    completions = await engine.generate(work(max_new_tokens=20))
    sequences = [[3, 4, *completion.token_ids] for completion in completions]
    column = await engine.score(
        ScoreWork(
            score_id="s",
            lengths=(22, 22),
            token_ids=int32_column(itertools.chain(*sequences)),
            weight_version=1,
        )
    )
    values = float32_view(column).tolist()
    for row, completion in enumerate(completions):
        assert list(completion.log_probs) == pytest.approx(values[21 * row + 1 : 21 * row + 21], abs=1e-4)
    await engine.close()


@pytest.mark.asyncio
async def test_a_model_with_other_layers_is_refused_by_name(model_dir):
    Qwen3NextConfig(**SIZES, num_experts=2, num_experts_per_tok=1).save_pretrained(model_dir)
    with pytest.raises(EngineError, match="linear_attention"):
        await engine_for(model_dir).start()


@pytest.mark.asyncio
async def test_a_directory_without_a_model_is_refused_by_name(model_dir):
    with pytest.raises(EngineError, match=r"config\.json"):
        await engine_for(model_dir).start()


def test_an_unknown_dtype_is_refused():
    with pytest.raises(ConfigError, match="int8"):
        engine_for("anywhere", dtype="int8")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.asyncio
async def test_half_precision_serves(model_dir, dtype):
    Qwen3ForCausalLM(Qwen3Config(**SIZES)).save_pretrained(model_dir)
    engine = engine_for(model_dir, dtype=dtype)
    await engine.start()
    assert len(await engine.generate(work())) == 2
    assert engine.numerics().data_type == dtype
    await engine.close()


@pytest.mark.asyncio
async def test_a_step_that_fails_ends_the_engine_and_everybody_hears_of_it(model_dir):
    Qwen3ForCausalLM(Qwen3Config(**SIZES)).save_pretrained(model_dir)
    engine = engine_for(model_dir)
    await engine.start()

    def fail():
        raise RuntimeError("out of memory")

    engine._scheduler._rows.step = fail
    both = [asyncio.create_task(engine.generate(work())) for _ in range(2)]
    for outcome in await asyncio.gather(*both, return_exceptions=True):
        assert isinstance(outcome, EngineError)
        assert "out of memory" in str(outcome)
    with pytest.raises(EngineError, match="out of memory"):
        await engine.generate(work())
    assert engine.unfinished_sequences == 0
    await engine.close()


@pytest.mark.asyncio
async def test_a_closed_engine_says_so(model_dir):
    Qwen3ForCausalLM(Qwen3Config(**SIZES)).save_pretrained(model_dir)
    engine = engine_for(model_dir)
    await engine.start()
    running = asyncio.create_task(engine.generate(work(max_new_tokens=60)))
    await asyncio.sleep(0)
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await running


def test_passes_are_cut_by_padded_size():
    assert chunks_of_tokens([3, 3, 3], 6) == [(0, 2), (2, 3)]
    assert chunks_of_tokens([1, 1, 10, 1], 10) == [(0, 2), (2, 3), (3, 4)]
    assert chunks_of_tokens([50], 10) == [(0, 1)]
    assert chunks_of_tokens([], 10) == []


@pytest.mark.asyncio
async def test_weights_that_came_early_serve_after_the_load_and_not_before(model_dir):
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES))
    model.save_pretrained(model_dir)
    asked = ScoreWork(score_id="s", lengths=(3,), token_ids=int32_column([3, 4, 5]), weight_version=0)
    new = {name: tensor + 0.1 for name, tensor in model.state_dict().items()}
    engine = engine_for(model_dir)
    await engine.start()
    before = await engine.score(asked)
    engine.early_weights.begin(3)
    for name, tensor in new.items():
        engine.early_weights.take(name, tensor)
    assert await engine.score(asked) == before
    await engine.load_weights(new.items(), 3)
    after = await engine.score(dataclasses.replace(asked, weight_version=3))
    await engine.load_weights(new.items(), 4)  # without anything that came early
    again = await engine.score(dataclasses.replace(asked, weight_version=4))
    await engine.close()
    assert after == again != before
