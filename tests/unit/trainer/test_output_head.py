import logging

import pytest
import torch
import transformers

from hetero_rl.trainer.output_head import OutputHead, find_output_head, logits_bytes

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 31,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 0,
    "initializer_range": 0.5,
}


def model_of(kind, **settings):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **settings)
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3", "Mistral"])
def test_most_heads_are_a_plain_projection(kind, tied):
    assert find_output_head(model_of(kind, tie_word_embeddings=tied), CPU) == OutputHead()


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        ("Cohere", {"logit_scale": 0.25}, OutputHead(scale=0.25)),
        ("Granite", {"logits_scaling": 8.0}, OutputHead(scale=0.125)),
        ("Gemma2", {"final_logit_softcapping": 3.0}, OutputHead(soft_cap=3.0)),
        ("Gemma3", {}, OutputHead()),
    ],
)
def test_scales_and_soft_caps_are_read_from_the_configuration(kind, settings, expected):
    if kind == "Gemma3":
        config = transformers.Gemma3TextConfig(**SIZES)
        model = transformers.Gemma3ForCausalLM(config).eval()
    else:
        model = model_of(kind, **settings)

    assert find_output_head(model, CPU) == expected


def test_a_head_of_its_own_kind_falls_back_to_logits_and_says_what_that_costs(caplog):
    model = model_of("Llama")
    forward = model.forward

    def doubled(**inputs):
        output = forward(**inputs)
        output.logits = output.logits * 2 + 1
        return output

    model.forward = doubled
    with caplog.at_level(logging.WARNING):
        assert find_output_head(model, CPU) is None

    assert "head of LlamaForCausalLM is not known" in caplog.text
    assert "0 MiB for every 1024 completion tokens" in caplog.text
    assert "trainer.tokens_per_micro_batch" in caplog.text


def test_memory_of_logits_counts_their_gradient_and_a_copy():
    # 1024 tokens of 151,936 in float32: 622 MB, three times.
    assert logits_bytes(1024, 151_936) == 3 * 4 * 1024 * 151_936
