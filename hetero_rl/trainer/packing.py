"""Attention within packed groups: no padding, each prompt once, nothing seen across sequences.

    one row of tokens    [ prompt A | A0 | A1 | A2 | prompt B | B0 | B1 ]

    prompt A   sees itself, causally              A1   sees prompt A, and itself causally
    positions  of A0, A1, A2 all go on from the end of prompt A

Everything but attention treats tokens one by one, so it needs no layout at all. Attention takes one of two ways:

    cut        one call for each prompt and one for each completion, whose keys are the prompt's and its own
    gathered   one call for all prompts and one for all completions, padded, where sequences are so short that the calls
               would cost more than the padding

Both are exact, prompts get the sum of their completions' gradients, and no mask spans the row. One masked call for the whole
row took 2.5 times as long as the cut one on a processor (9 heads, 8 completions of 42 to 248 tokens after 128).

A model takes part if it reads its attention function from transformers' registry; `enable_packing` finds out by trying.
"""

import dataclasses
import functools
import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["PackedLayout", "enable_packing", "packed_attention"]

NAME = "hetero_rl_packed"
TOLERANCE = 1e-3
"""Largest difference of a hidden state in float32, relative to the largest, that counts as equal."""
CALL_COST = {"cpu": 2**14}
"""What one attention call costs before it computes anything, in pairs of query and key."""
CALL_COST_ELSEWHERE = 2**20
_LOG = logging.getLogger(__name__)

Groups = tuple[tuple[int, tuple[int, ...]], ...]
"""For each group of a row its prompt tokens, and the tokens of each of its completions."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """Where prompts and completions are in the row, padded. C completions, G groups, lengths P and R at most."""

    prompts: Tensor
    """[G, P]."""
    queries: Tensor
    """[C, R]."""
    keys: Tensor
    """[C, P + R]: the prompt's, padded, and the completion's own."""
    visible: Tensor
    """[C, 1, R, P + R] bool."""
    order: Tensor
    """[T]: for each token of the row its place among all prompt places and then all completion places."""

    def to(self, device: torch.device) -> "Gathered":
        """The same on another device."""
        moved = (getattr(self, field.name).to(device) for field in dataclasses.fields(self))
        return Gathered(*moved)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PackedLayout:
    """What lies where in a packed row."""

    groups: Groups
    gathered: Gathered | None = None
    """None: attention is cut."""
    masks: Mapping[tuple[int, int], Tensor] = dataclasses.field(default_factory=dict)
    """Cut attention: what a completion sees, [R, P + R] added to scores, by P and R. Made once for all layers."""

    @classmethod
    def of(cls, groups: Groups, kind: str = "cpu") -> "PackedLayout":
        """Chooses the way of attention for a type of device."""
        sizes = [(prompt, size) for prompt, completions in groups for size in completions if size]
        if not sizes:
            return cls(groups)
        longest_prompt = max(prompt for prompt, _ in groups)
        longest = max(size for _, size in sizes)
        cut = sum(size * (prompt + size) for prompt, size in sizes)
        cut += (len(sizes) + len(groups)) * CALL_COST.get(kind, CALL_COST_ELSEWHERE)
        padded = len(sizes) * longest * (longest_prompt + longest) + len(groups) * longest_prompt**2
        if padded <= cut:
            return cls(groups, _gather(groups))
        return cls(groups, None, {pair: _seen(*pair) for pair in sizes})

    def to(self, device: torch.device) -> "PackedLayout":
        """The same on another device, with the way of attention that suits it."""
        if device.type == "cpu":
            return self
        chosen = PackedLayout.of(self.groups, device.type)
        gathered = None if chosen.gathered is None else chosen.gathered.to(device)
        return PackedLayout(
            self.groups, gathered, {pair: mask.to(device) for pair, mask in chosen.masks.items()}
        )


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_layout: PackedLayout | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """An attention function for transformers' registry; rows that are not packed go to its own `sdpa`.

    Args:
        module: The attention layer.
        query: [1, H, T, d].
        key: [1, K, T, d], each of K heads for H / K query heads.
        value: As key.
        attention_mask: None for packed rows.
        packed_layout: The layout of the row; None is no packed row.
        options: What else the layer passes.

    Returns:
        [1, T, H, d], and no attention weights.
    """
    if packed_layout is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **options
        )
        return result
    if options.get("softcap") is not None or options.get("sliding_window") is not None:
        raise ValueError("packed attention knows neither soft caps nor sliding windows")
    if key.shape[1] != query.shape[1] and query.device.type != "cpu":
        # Off the processor, heads that are shared and a mask together have no fast kernel.
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    scaling = options.get("scaling")
    if packed_layout.gathered is not None:
        return _attend_gathered(query, key, value, packed_layout.gathered, scaling), None
    return _attend_cut(query, key, value, packed_layout, scaling), None


def _mask_of(*args: Any, **named: Any) -> Tensor | None:
    """A mask function for transformers' registry: its own `sdpa` one, but none for whole rows without padding.

    Packed rows are such rows: their attention needs no mask, and one for a whole row would be as large as its length squared.
    Without a mask function under the name transformers would drop the mask of padded rows and of rows after a cache.
    """
    from transformers.masking_utils import sdpa_mask

    # The argument was renamed within transformers 5; both names are in the field.
    queries = named["q_length"] if "q_length" in named else len(named["cache_position"])
    if named.get("attention_mask") is None and queries == named["kv_length"]:
        return None
    mask: Tensor | None = sdpa_mask(*args, **named)
    return mask


def _attend_gathered(
    query: Tensor, key: Tensor, value: Tensor, where: Gathered, scaling: float | None
) -> Tensor:
    """Attention [1, T, H, d] of all prompts, and of all completions."""
    attend = torch.nn.functional.scaled_dot_product_attention
    shared = key.shape[1] != query.shape[1]
    heads, width = query.shape[1], query.shape[3]

    def at(tokens: Tensor, places: Tensor) -> Tensor:
        """[C, H, R, d] of [1, H, T, d]."""
        rows = tokens[0].transpose(0, 1).index_select(0, places.flatten())
        return rows.view(*places.shape, *rows.shape[1:]).transpose(1, 2)

    of_prompts = attend(
        at(query, where.prompts),
        at(key, where.prompts),
        at(value, where.prompts),
        is_causal=True,
        scale=scaling,
        enable_gqa=shared,
    )
    of_completions = attend(
        at(query, where.queries),
        at(key, where.keys),
        at(value, where.keys),
        attn_mask=where.visible,
        scale=scaling,
        enable_gqa=shared,
    )
    both = torch.cat(
        [part.transpose(1, 2).reshape(-1, heads, width) for part in (of_prompts, of_completions)]
    )
    return both.index_select(0, where.order)[None]


def _gather(groups: Groups) -> Gathered:
    longest_prompt = max(prompt for prompt, _ in groups)
    longest = max(size for _, completions in groups for size in completions)
    offset = len(groups) * longest_prompt
    starts: list[int] = []
    own: list[tuple[int, int, int]] = []  # first token, size and group of each completion
    order: list[int] = []
    for number, (start, prompt, completions) in enumerate(_starts(groups)):
        starts.append(start)
        order.extend(range(number * longest_prompt, number * longest_prompt + prompt))
        end = start + prompt
        for size in filter(None, completions):
            place = offset + len(own) * longest
            order.extend(range(place, place + size))
            own.append((end, size, number))
            end += size
    first, sizes, group = torch.tensor(own).T
    lengths = torch.tensor([prompt for prompt, _ in groups])
    # Places beyond a sequence repeat its last token; nobody sees them.
    prompts = _places(torch.tensor(starts), lengths, longest_prompt)
    queries = _places(first, sizes, longest)
    return Gathered(
        prompts=prompts,
        queries=queries,
        keys=torch.cat([prompts[group], queries], 1),
        visible=_visible(lengths[group], longest_prompt, longest)[:, None],
        order=torch.tensor(order),
    )


def _places(starts: Tensor, sizes: Tensor, longest: int) -> Tensor:
    """[n, longest] positions of n runs of tokens, the last one of each repeated."""
    return starts[:, None] + torch.minimum(torch.arange(longest), sizes[:, None] - 1)


def _visible(prompt_lengths: Tensor, longest_prompt: int, longest: int) -> Tensor:
    """[C, R, P + R]: a completion's token sees its own prompt, and the completion up to itself."""
    seen = torch.arange(longest_prompt) < prompt_lengths[:, None]
    causal = torch.ones(longest, longest, dtype=torch.bool).tril()
    count = prompt_lengths.numel()
    return torch.cat([seen[:, None].expand(-1, longest, -1), causal.expand(count, -1, -1)], -1)


def _starts(groups: Groups) -> list[tuple[int, int, tuple[int, ...]]]:
    found, start = [], 0
    for prompt, completions in groups:
        found.append((start, prompt, completions))
        start += prompt + sum(completions)
    return found


def _attend_cut(
    query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, scaling: float | None
) -> Tensor:
    """Attention [1, T, H, d] of each prompt, and of each completion behind it."""
    attend = functools.partial(
        torch.nn.functional.scaled_dot_product_attention,
        scale=scaling,
        enable_gqa=key.shape[1] != query.shape[1],
    )
    # One split for all: its gradient is one concatenation, that of a slice is a row of zeros for each slice.
    sizes = [size for prompt, completions in layout.groups for size in (prompt, *completions)]
    pieces = zip(*(torch.split(each, sizes, 2) for each in (query, key, value)), strict=True)
    parts = []
    for prompt, completions in layout.groups:
        own_query, before_key, before_value = next(pieces)
        parts.append(attend(own_query, before_key, before_value, is_causal=True))
        for size in completions:
            own_query, own_key, own_value = next(pieces)
            if not size:
                continue
            mask = layout.masks.get((prompt, size))
            if mask is None:
                mask = _seen(prompt, size).to(query.device)
            keys, values = torch.cat([before_key, own_key], 2), torch.cat([before_value, own_value], 2)
            parts.append(attend(own_query, keys, values, attn_mask=mask.to(query.dtype)))
    return torch.cat(parts, 2).transpose(1, 2).contiguous()


def _seen(prompt: int, size: int) -> Tensor:
    """[R, P + R] float32: 0 where query i of a completion sees a key, the whole prompt and the completion up to i; else -inf."""
    mask = torch.full((size, prompt + size), float("-inf"))
    return mask.triu_(prompt + 1)


def enable_packing(model: Any, device: torch.device) -> bool:
    """Makes a model take packed rows, if it computes them as it computes each sequence alone.

    Models that mix tokens other than by attention, ignore position ids or choose their attention in their own way give
    other numbers and are left as they were. A sliding window is refused unseen: a few tokens fit into any window.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    config = getattr(model, "config", None)
    before = getattr(config, "_attn_implementation", None)
    if before != "sdpa" or _has_sliding_window(config):
        return False
    AttentionInterface.register(NAME, packed_attention)
    AttentionMaskInterface.register(NAME, _mask_of)
    try:
        expected = _alone(model, device)
        model.set_attn_implementation(NAME)
        found = _packed(model, device)
    except (AttributeError, TypeError, ValueError, RuntimeError, IndexError, KeyError) as error:
        _LOG.info("this model takes no packed rows (%s); prompts are computed for each completion", error)
        model.set_attn_implementation(before)
        return False
    if found.shape == expected.shape:
        difference = (found - expected).abs().max()
        if bool(difference <= TOLERANCE * expected.abs().max()):
            return True
    _LOG.info("this model computes packed rows in another way; prompts are computed for each completion")
    model.set_attn_implementation(before)
    return False


_TRIAL: Groups = ((3, (3, 1, 4)), (2, (2, 0)))


def _trial_ids(model: Any) -> Tensor:
    vocabulary = int(model.get_input_embeddings().num_embeddings)
    generator = torch.Generator().manual_seed(0)
    total = sum(prompt + sum(completions) for prompt, completions in _TRIAL)
    return torch.randint(vocabulary, (total,), generator=generator)


def _alone(model: Any, device: torch.device) -> Tensor:
    """Hidden states of the completions of the trial, each computed as a sequence of its own."""
    ids = _trial_ids(model)
    parts = []
    for start, prompt, completions in _starts(_TRIAL):
        end = start + prompt
        for size in completions:
            sequence = torch.cat([ids[start : start + prompt], ids[end : end + size]]).to(device)
            with torch.no_grad():
                output = model.base_model(input_ids=sequence[None], use_cache=False)
            parts.append(output.last_hidden_state[0, prompt:].float())
            end += size
    return torch.cat(parts)


def _packed(model: Any, device: torch.device) -> Tensor:
    """The same from one packed row."""
    positions, chosen, end = [], [], 0
    for start, prompt, completions in _starts(_TRIAL):
        positions.append(torch.arange(prompt))
        positions += [torch.arange(prompt, prompt + size) for size in completions]
        end = start + prompt + sum(completions)
        chosen.append(torch.arange(start + prompt, end))
    with torch.no_grad():
        output = model.base_model(
            input_ids=_trial_ids(model)[None].to(device),
            position_ids=torch.cat(positions)[None].to(device),
            use_cache=False,
            packed_layout=PackedLayout(_TRIAL),
        )
    hidden: Tensor = output.last_hidden_state[0, torch.cat(chosen).to(device)].float()
    return hidden


def _has_sliding_window(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return any(kind != "full_attention" for kind in kinds)
    return getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
