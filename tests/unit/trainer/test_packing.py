import dataclasses

import pytest
import torch
import transformers

from hetero_rl.trainer import packing
from hetero_rl.trainer.layout import RowTokens, packed_inputs, padded_inputs
from hetero_rl.trainer.packing import PackedLayout, enable_packing

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 31,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 0,
}
GROUPS = ((3, (4, 1, 0, 6)), (5, (2,)), (1, (3, 3)))


def model_of(kind, **settings):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **settings)
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def gathered(groups):
    return PackedLayout(groups, packing._gather(groups))


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3", "Granite"])
def test_models_with_full_attention_take_packed_rows(kind):
    assert enable_packing(model_of(kind), CPU)


def test_a_sliding_window_does_not_and_the_model_stays_as_it_was():
    model = model_of("Mistral", sliding_window=4)

    assert not enable_packing(model, CPU)
    assert model.config._attn_implementation == "sdpa"


def test_a_window_in_some_layers_is_found_too():
    model = model_of("Qwen3")
    model.config.layer_types = ["full_attention", "sliding_attention"]

    assert not enable_packing(model, CPU)


def test_the_eager_implementation_is_left_alone():
    assert not enable_packing(model_of("Llama", attn_implementation="eager"), CPU)


def test_a_model_that_ignores_the_layout_does_not():
    model = model_of("Llama")
    trunk, forward = model.base_model, model.base_model.forward
    trunk.forward = lambda packed_layout=None, **inputs: forward(**inputs)

    assert not enable_packing(model, CPU)
    assert model.config._attn_implementation == "sdpa"


def test_a_recurrent_model_does_not():
    config = transformers.MambaConfig(
        vocab_size=12, hidden_size=16, state_size=4, num_hidden_layers=1, use_cache=False
    )

    assert not enable_packing(transformers.MambaForCausalLM(config).eval(), CPU)


def attention_of_each_sequence(query, key, value):
    """By the plain formula at scale 0.4, the prompt's rows from the prompt alone."""
    expected = torch.empty_like(query.transpose(1, 2))
    key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    for start, prompt, sizes in packing._starts(GROUPS):
        end = start + prompt
        for size in (0, *sizes):
            places = torch.cat([torch.arange(start, start + prompt), torch.arange(end, end + size)])
            causal = torch.ones(len(places), len(places), dtype=torch.bool).tril()
            scores = query[:, :, places] @ key[:, :, places].transpose(-1, -2) * 0.4
            rows = (scores.masked_fill(~causal, -torch.inf).softmax(-1) @ value[:, :, places]).transpose(1, 2)
            kept = slice(0, None) if size == 0 else slice(prompt, None)
            expected = expected.index_copy(1, places[kept], rows[:, kept])
            end += size
    return expected


@pytest.mark.parametrize("make", [PackedLayout, gathered], ids=["cut", "gathered"])
def test_packed_attention_is_that_of_each_sequence_alone(make):
    generator = torch.Generator().manual_seed(0)
    total = sum(prompt + sum(sizes) for prompt, sizes in GROUPS)
    query = torch.randn(1, 4, total, 8, generator=generator).requires_grad_()
    key, value = (torch.randn(1, 2, total, 8, generator=generator).requires_grad_() for _ in range(2))
    out = torch.randn(1, total, 4, 8, generator=generator)

    result, _ = packing.packed_attention(
        torch.nn.Module(), query, key, value, None, packed_layout=make(GROUPS), scaling=0.4
    )
    found = torch.autograd.grad((result * out).sum(), (query, key, value))
    expected = attention_of_each_sequence(query, key, value)
    wanted = torch.autograd.grad((expected * out).sum(), (query, key, value))

    torch.testing.assert_close(result, expected, atol=1e-6, rtol=1e-5)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_short_sequences_are_gathered_and_long_ones_are_cut():
    short = PackedLayout.of(tuple((12, (9,) * 8) for _ in range(64)))
    long = PackedLayout.of(((128, (250, 40, 90, 256)),))

    assert short.gathered is not None
    assert long.gathered is None


def test_a_prompt_without_anything_behind_it_is_cut():
    assert PackedLayout.of(((3, (0, 0)),)).gathered is None


def test_soft_caps_and_windows_are_refused():
    tokens = torch.zeros(1, 1, 2, 4)

    with pytest.raises(ValueError, match="soft caps"):
        packing.packed_attention(
            torch.nn.Module(),
            tokens,
            tokens,
            tokens,
            None,
            packed_layout=PackedLayout(((2, ()),)),
            softcap=3.0,
        )


def test_a_packed_row_leaves_out_the_last_token_of_each_completion():
    rows = [
        RowTokens(torch.tensor([5, 6]), (torch.tensor([7, 8, 2]), torch.tensor([2]))),
        RowTokens(torch.tensor([4]), (torch.tensor([3, 9]),)),
    ]

    inputs = packed_inputs(rows)

    assert inputs.input_ids.tolist() == [[5, 6, 7, 8, 4, 3]]
    assert inputs.layout["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1]]
    assert inputs.layout["packed_layout"].groups == ((2, (2, 0)), (1, (1,)))
    # The last prompt token predicts the first token of both completions.
    assert inputs.targets.rows.tolist() == [1, 2, 3, 1, 4, 5]
    assert inputs.targets.token_ids.tolist() == [7, 8, 2, 2, 3, 9]
    assert inputs.targets.lengths == (3, 1, 2)


def test_padded_rows_hold_one_completion_each():
    rows = [RowTokens(torch.tensor([5, 6]), (torch.tensor([7, 8, 2]), torch.tensor([2])))]

    inputs = padded_inputs(rows)

    assert inputs.input_ids.tolist() == [[5, 6, 7, 8], [5, 6, 0, 0]]
    assert inputs.targets.rows.tolist() == [1, 2, 3, 5]
    assert inputs.targets.token_ids.tolist() == [7, 8, 2, 2]


def test_tokens_that_the_policy_did_not_choose_are_not_predicted():
    row = RowTokens(torch.tensor([5]), (torch.tensor([7, 8, 2]),), (torch.tensor([True, False, True]),))

    inputs = packed_inputs([row])

    assert inputs.targets.rows.tolist() == [0, 2]
    assert inputs.targets.token_ids.tolist() == [7, 2]
    assert inputs.targets.lengths == (2,)


def test_log_probs_of_packed_and_padded_rows_agree(policy):
    rows = [
        RowTokens(
            torch.tensor([5, 6, 7]), (torch.tensor([7, 2]), torch.tensor([2]), torch.tensor([3, 1, 4]))
        ),
        RowTokens(torch.tensor([4]), (torch.tensor([3, 8, 9, 1]),)),
    ]
    padded = dataclasses.replace(policy, packed=False)

    assert policy.packed
    torch.testing.assert_close(
        policy.log_probs(policy.inputs(rows)), padded.log_probs(padded.inputs(rows)), atol=1e-6, rtol=0
    )


def test_a_model_that_takes_packed_rows_still_computes_plain_ones():
    model = model_of("Qwen3")
    ids = torch.randint(1, 31, (2, 9), generator=torch.Generator().manual_seed(1))
    padded = torch.ones_like(ids)
    padded[0, :3] = 0
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False).logits
        masked = model(input_ids=ids, attention_mask=padded, use_cache=False).logits[0, 3:]
        assert enable_packing(model, CPU)
        cache = transformers.DynamicCache()
        parts = [model(input_ids=part, cache=cache, use_cache=True).logits for part in ids.split(5, 1)]
        found = torch.cat(parts, 1)
        found_masked = model(input_ids=ids, attention_mask=padded, use_cache=False).logits[0, 3:]
    torch.testing.assert_close(found, whole, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found_masked, masked, atol=1e-5, rtol=1e-4)
