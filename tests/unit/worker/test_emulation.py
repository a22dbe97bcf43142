"""Data types of other chips, imitated: the rounding by hand, and what an emulated engine says of itself."""

import math

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from hetero_rl.errors import ConfigError
from hetero_rl.wire.columns import float32_view, int32_column
from hetero_rl.wire.messages import ScoreWork
from hetero_rl.worker.emulations import EMULATIONS, find_emulation, labelled_backend
from hetero_rl.worker.engine import EngineSettings
from hetero_rl.worker.engines.transformers import TransformersEngine
from hetero_rl.worker.engines.transformers.emulation import (
    emulate_activations,
    round_mantissa,
    round_weights,
    saturated,
)

SEQUENCE = [3, 4, 5, 6, 7, 8]


def tiny_model(seed=0, *, tied=True) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=16,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=32,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
    )
    return Qwen3ForCausalLM(config).eval()


@pytest.fixture
def model_dir(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("a")
    return tmp_path


async def started(model_dir, emulate, dtype="float32") -> TransformersEngine:
    settings = EngineSettings(
        model_dir=model_dir, dtype=dtype, max_concurrent_sequences=4, threads=1, emulate=emulate
    )
    engine = TransformersEngine(settings)
    await engine.start()
    return engine


async def scores(engine) -> list[float]:
    work = ScoreWork(
        score_id="s",
        lengths=(len(SEQUENCE),),
        token_ids=int32_column(SEQUENCE),
        weight_version=engine.loaded_version,
    )
    return list(float32_view(await engine.score(work)))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0, 1.0),
        (1 + 2**-11, 1.0),  # half way: to the even neighbour below
        (1 + 3 * 2**-11, 1 + 2**-9),  # half way: to the even neighbour above
        (1 + 2**-11 + 2**-20, 1 + 2**-10),
        (-(1 + 2**-11 + 2**-20), -(1 + 2**-10)),
        (2 - 2**-23, 2.0),  # carries into the exponent
        (math.inf, math.inf),
        (-math.inf, -math.inf),
    ],
)
def test_ten_bits_of_mantissa_are_kept_ties_to_even(value, expected):
    assert round_mantissa(torch.tensor([value]), 10).item() == expected


def test_what_is_no_number_stays_so_when_rounded():
    assert round_mantissa(torch.tensor([math.nan]), 10).isnan().all()


def test_overflow_ends_at_the_largest_half_and_what_is_no_number_becomes_zero():
    values = torch.tensor([math.inf, -math.inf, math.nan, 2.0], dtype=torch.float16)

    assert saturated(values).tolist() == [65504.0, -65504.0, 0.0, 2.0]


def test_a_layer_that_overflows_saturates_instead_of_spoiling_what_follows():
    layer = torch.nn.Linear(2, 1, bias=False).half()
    layer.weight.data.fill_(40000.0)
    model = torch.nn.Sequential(layer)
    inputs = torch.tensor([[1.0, 1.0]], dtype=torch.float16)
    assert model(inputs).isinf().all()

    emulate_activations(model, EMULATIONS["ascend-910a"])

    assert model(inputs).item() == 65504.0


def test_weights_become_multiples_of_their_rows_scale():
    model = tiny_model()
    weight = model.model.layers[0].mlp.up_proj.weight
    weight.data[0] = torch.linspace(-1.27, 0.5, 16)
    head = model.lm_head.weight.clone()

    round_weights(model, EMULATIONS["int8-weights"])

    steps = weight[0] / 0.01  # the largest magnitude, 1.27, is 127 steps
    assert steps.tolist() == pytest.approx([round(value) for value in steps.tolist()], abs=1e-4)
    assert steps[0].item() == pytest.approx(-127, abs=1e-4)
    assert torch.equal(model.lm_head.weight, head)


def test_rounding_twice_changes_nothing_more():
    model = tiny_model()
    round_weights(model, EMULATIONS["int8-weights"])
    once = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    round_weights(model, EMULATIONS["int8-weights"])

    assert all(torch.allclose(tensor, once[name], rtol=1e-6) for name, tensor in model.state_dict().items())


@pytest.mark.asyncio
@pytest.mark.parametrize("name", sorted(EMULATIONS))
async def test_an_emulated_engine_differs_a_little_and_says_that_it_is_emulated(model_dir, name):
    plain = await started(model_dir, "")
    emulated = await started(model_dir, name)

    differences = [abs(a - b) for a, b in zip(await scores(plain), await scores(emulated), strict=True)]
    assert 0 < max(differences) < 0.1
    assert emulated.numerics().emulated
    assert emulated.numerics().knobs["emulate"] == name
    assert emulated.numerics().device_vendor == "cpu"
    assert emulated.numerics().device_name == plain.numerics().device_name
    assert emulated.numerics().numerics_id != plain.numerics().numerics_id
    for engine in (plain, emulated):
        await engine.close()


@pytest.mark.asyncio
async def test_loading_a_then_b_then_a_is_exact_under_rounded_weights(model_dir):
    engine = await started(model_dir, "int8-weights")
    states = [dict(tiny_model(seed).named_parameters()) for seed in (1, 2)]
    await engine.load_weights(states[0].items(), 1)
    first = await scores(engine)
    await engine.load_weights(states[1].items(), 2)
    assert await scores(engine) != first
    await engine.load_weights(states[0].items(), 3)

    assert await scores(engine) == first
    await engine.close()


def test_the_data_type_of_the_chip_wins_over_the_workers_own():
    assert {name: emulation.dtype for name, emulation in EMULATIONS.items()} == {
        "fp16": "float16",
        "bf16": "bfloat16",
        "tf32": "float32",
        "int8-weights": "",
        "ascend-910a": "float16",
    }


def test_an_unknown_emulation_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="'910a': is unknown; there are: ascend-910a, bf16, fp16"):
        find_emulation("910a")


def test_an_emulated_backend_never_goes_by_the_plain_name():
    assert labelled_backend("cpu", "ascend-910a") == "cpu-emulating-ascend-910a"
    assert labelled_backend("cpu", None) == "cpu"


def test_options_that_the_engine_does_not_have_are_refused(model_dir):
    settings = EngineSettings(
        model_dir=model_dir, dtype="float32", max_concurrent_sequences=1, options={"enforce_eager": True}
    )

    with pytest.raises(ConfigError, match="enforce_eager"):
        TransformersEngine(settings)
