"""How the starter model is made: a small Qwen3 with random weights, supervised on the task's own solutions.

Everything here is a function of its arguments. The cache in `hetero_rl.starter.cache` hashes this file: a change of the
recipe makes other models, under other names.
"""

import collections
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hetero_rl.config.tree import StarterConfig
from hetero_rl.errors import TaskError
from hetero_rl.starter.tokenizer import SPECIAL_TOKENS, VOCABULARY
from hetero_rl.tasks import PromptEncoder, Task

__all__ = ["Progress", "new_model", "shared_instruction", "supervise"]

PAD, BOS, EOS, _ = (VOCABULARY[token] for token in SPECIAL_TOKENS)
IGNORED = -100
"""Label of a position that is not learned."""
WARMUP_STEPS = 20
AVERAGED_STEPS = 4
"""Steps over which the loss is averaged before it is compared with its target."""
SAMPLED_QUESTIONS = 64
SHORTEST_INSTRUCTION = 8
"""Characters that all questions share before they are made one token."""


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """How far the supervised stage is."""

    step: int
    """Steps made."""
    steps: int
    """Steps to make at most."""
    loss: float
    """Mean cross-entropy of a solution's token, in nats."""


def new_model(config: StarterConfig, *, vocabulary_size: int, context_tokens: int, seed: int) -> Any:
    """A Qwen3 with tied embeddings and random weights, in float32.

    Args:
        config: Its sizes.
        vocabulary_size: Number of token ids.
        context_tokens: Longest sequence.
        seed: Seed of the weights; torch's own generator is left as it was.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    settings = Qwen3Config(
        vocab_size=vocabulary_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_heads,
        head_dim=config.hidden_size // config.num_heads,
        max_position_embeddings=context_tokens,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(settings)


def shared_instruction(task: Task) -> str:
    """What the questions of a task begin with, up to the last white space; empty where they have little in common."""
    questions = [task.training_item(n, stream="supervised").question for n in range(SAMPLED_QUESTIONS)]
    common = os.path.commonprefix(questions)  # ruff: ignore[os-path-commonprefix] character by character is what is wanted
    end = max(common.rfind(" "), common.rfind("\n")) + 1
    return common[:end] if end >= SHORTEST_INSTRUCTION else ""


def supervise(
    model: Any,
    task: Task,
    encoder: PromptEncoder,
    config: StarterConfig,
    report: Callable[[Progress], None] = lambda _: None,
) -> None:
    """Trains the model in place on solutions of the task's own "supervised" stream.

    Args:
        model: What `new_model` made.
        task: Items; each needs a solution.
        encoder: Turns questions into prompts, as the run will.
        config: Steps, batch size, learning rate and the loss at which to stop.
        report: Called after every step.

    Raises:
        TaskError: If an item has no solution.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    model.train()
    batches = _batches(task, encoder, config.supervised_batch_size)
    recent: collections.deque[float] = collections.deque(maxlen=AVERAGED_STEPS)
    for step in range(config.supervised_steps):
        token_ids, labels = next(batches)
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * min(1.0, (step + 1) / WARMUP_STEPS)
        loss = _loss(model, token_ids, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it without types
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent.append(float(loss.detach()))
        report(Progress(step + 1, config.supervised_steps, recent[-1]))
        if len(recent) == AVERAGED_STEPS and sum(recent) / AVERAGED_STEPS < config.target_loss:
            break
    model.eval()


def _loss(model: Any, token_ids: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over the labels [B, L] that are not ignored."""
    logits = model(input_ids=token_ids[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED
    )


def _batches(task: Task, encoder: PromptEncoder, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Token ids and labels [B, L], int64, padded on the right: causal attention never looks at padding there."""
    ordinal = 0
    while True:
        rows = [_row(task, encoder, ordinal + offset) for offset in range(size)]
        ordinal += size
        yield _padded([ids for ids, _ in rows], PAD), _padded([labels for _, labels in rows], IGNORED)


def _row(task: Task, encoder: PromptEncoder, ordinal: int) -> tuple[list[int], list[int]]:
    item = task.training_item(ordinal, stream="supervised")
    if item.solution is None:
        raise TaskError(
            "the starter model learns from solutions, and this task has none for "
            f"{item.question[:80]!r}; set model.path to a model that was trained elsewhere"
        )
    prompt = encoder.encode(item.question)
    solution = [*(VOCABULARY.get(character, VOCABULARY["<unk>"]) for character in item.solution), EOS]
    return [*prompt, *solution], [*([IGNORED] * len(prompt)), *solution]


def _padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    longest = max(len(row) for row in rows)
    return torch.tensor([[*row, *([filler] * (longest - len(row)))] for row in rows])
