"""Models to certify with."""

import pytest
import torch

from hetero_rl.certify.checks import CheckFailedError
from hetero_rl.certify.models import directory_subject, probe_card, reference_log_probs, tiny_subject
from hetero_rl.certify.subject import TOLERANCES
from hetero_rl.worker.engine import EngineSettings
from hetero_rl.worker.engines.transformers import TransformersEngine


def settings(directory, **changes):
    fields = {"dtype": "float32", "max_concurrent_sequences": 16, "threads": 1} | changes
    return EngineSettings(model_dir=directory, **fields)


@pytest.mark.parametrize(
    ("dtype", "emulate", "like"),
    [
        ("float32", "", "float32"),
        ("bfloat16", "", "bfloat16"),
        ("float32", "ascend-910a", "float16"),
        ("float32", "tf32", "float16"),
        ("float32", "int8-weights", "float32"),
    ],
)
def test_what_rounding_explains_follows_the_data_type_that_is_computed_in(tmp_path, dtype, emulate, like):
    subject = tiny_subject(TransformersEngine, tmp_path, settings(tmp_path, dtype=dtype, emulate=emulate))

    assert subject.tolerance == TOLERANCES[like]


def test_weights_of_a_seed_are_the_same_and_tied_ones_come_once(tmp_path):
    subject = tiny_subject(TransformersEngine, tmp_path, settings(tmp_path))
    first, again, other = (dict(subject.state(seed)) for seed in (1, 1, 2))

    assert "lm_head.weight" not in first
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


@pytest.mark.asyncio
async def test_the_probe_card_passes_for_a_directorys_own_weights_and_fails_for_others(tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM

    tiny_subject(TransformersEngine, tmp_path, settings(tmp_path))
    # Weights of the usual size give nearly even distributions, under which any other weights look alike.
    config = AutoConfig.from_pretrained(tmp_path)
    config.initializer_range = 0.1
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    subject = directory_subject(TransformersEngine, tmp_path, settings(tmp_path))
    engine = await subject.start()
    await engine.load_weights(subject.state(1), 1)

    figures = await probe_card(subject, engine)
    await engine.load_weights(subject.state(2), 2)

    assert figures["mean_absolute_difference"] < 1e-5
    with pytest.raises(CheckFailedError, match="differs from a trainer in float32"):
        await probe_card(subject, engine)
    await engine.close()


def test_reference_log_probs_are_those_of_a_plain_forward_pass(tmp_path):
    subject = tiny_subject(TransformersEngine, tmp_path, settings(tmp_path))

    values = reference_log_probs(tmp_path, subject.state(1), [[3, 5, 7], [11, 13]])

    assert len(values) == 3
    assert all(value < 0 for value in values)
