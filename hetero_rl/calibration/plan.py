"""What a calibration asks for: texts, prompts, lengths, temperatures. Values and pure functions."""

import dataclasses
from collections.abc import Callable, Sequence

from hetero_rl.tasks.task import derive_seed

__all__ = ["TEXTS", "Plan", "TextSequence", "prompts_of", "text_sequences"]

TEXTS = (
    (
        "The river rises in the hills north of the town and bends twice before it reaches the sea. In spring, when the snow melts, "
        "its water is brown and fast; by August children wade across. Three mills once stood on its banks. The last of them "
        "ground flour until a dry year, and today it holds a small museum of tools, photographs and the great oak wheel."
    ),
    (
        "def moving_average(values, width):\n    total = sum(values[:width])\n    means = [total / width]\n    for new, old in "
        "zip(values[width:], values):\n        total += new - old\n        means.append(total / width)\n    return means\n"
    ),
    (
        "Question: A shop sells pens at 3 euros each and notebooks at 5 euros each. Ana buys 4 pens and 2 notebooks. How much does "
        "she pay? Answer: 4 pens cost 4 * 3 = 12 euros. 2 notebooks cost 2 * 5 = 10 euros. Together that is 12 + 10 = 22 euros."
    ),
    (
        "Abstract. We measure how far two implementations of one network disagree. Rounding in a different order moves the logits "
        "by a little; summed over a long answer, the little becomes a lot. We report means, tails and growth with length."
    ),
    "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40",
    (
        "Dear Maria, thank you for the seeds. I planted the beans along the south wall and the sunflowers by the gate, where they can "
        "look at the road. It rained all week, so the well is full. Come in July: the cherries will be ripe and the room is ready."
    ),
)
"""Passages of prose, code, sums, science, counting and a letter, written for this project."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    prompts: int = 12
    """Prompts that every backend answers."""
    group_size: int = 4
    """Completions of each prompt."""
    prompt_tokens: int = 24
    """Most tokens of a prompt."""
    max_new_tokens: int = 192
    """Most tokens of a completion."""
    text_tokens: int = 384
    """Most tokens of a text that is scored as it is."""
    tempered: float = 0.7
    """Temperature of a few more completions, where a backend reports the distribution that it samples from."""
    text_temperatures: tuple[float, ...] = (0.7, 1.0, 1.3)
    """Temperatures at which the trainer writes sequences for everybody to score."""
    alone: int = 4
    """Sequences that are scored one at a time too."""
    checked: int = 8
    """Sequences that are scored under each version of A, B, A, and twice under the first."""
    perturbation: float = 0.05
    """Standard deviation of what B adds to each tensor of A, in units of the tensor's root mean square."""
    seed: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class TextSequence:
    """Tokens to score, and who wrote them."""

    token_ids: tuple[int, ...]
    prompt_tokens: int
    """How many of them come first without having been sampled; at least 1."""
    source: str
    """"text", "trainer", or the name of a backend."""
    temperature: float


def prompts_of(plan: Plan, encode: Callable[[str], Sequence[int]]) -> list[tuple[int, ...]]:
    """Prompts of various lengths: beginnings of the texts, each one other than the ones before."""
    encoded = [tuple(encode(text)) for text in TEXTS]
    prompts = []
    for number in range(plan.prompts):
        text = encoded[number % len(encoded)]
        start = (
            derive_seed(plan.seed, "prompt", number) % max(1, len(text) - 4) if number >= len(TEXTS) else 0
        )
        length = 4 + derive_seed(plan.seed, "length", number) % max(1, plan.prompt_tokens - 3)
        prompts.append(text[start : start + length] or text[:1])
    return prompts


def text_sequences(plan: Plan, encode: Callable[[str], Sequence[int]]) -> list[TextSequence]:
    """The texts themselves, each alone and all of them as one long sequence: every length from short to the longest."""
    encoded = [list(encode(text)) for text in TEXTS]
    joined = [token for text in encoded for token in text]
    while len(joined) < plan.text_tokens:
        joined += joined.copy()
    candidates = [text[: plan.text_tokens] for text in encoded] + [joined[: plan.text_tokens]]
    return [
        TextSequence(token_ids=tuple(tokens), prompt_tokens=1, source="text", temperature=1.0)
        for tokens in candidates
        if len(tokens) >= 2
    ]
