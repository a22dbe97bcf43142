"""Cuts a batch into micro-batches by a token budget. Pure.

A micro-batch is padded on the right to its longest sequence, so it costs rows times that length. Sequences are sorted
by length first, which keeps the padding small, and the longest come first: if memory does not suffice, it shows at once.
"""

from collections.abc import Sequence

from hetero_rl.errors import ConfigError

__all__ = ["padded_tokens", "plan_micro_batches"]


def plan_micro_batches(lengths: Sequence[int], tokens_per_micro_batch: int) -> tuple[tuple[int, ...], ...]:
    """Assigns every sequence to one micro-batch.

    Args:
        lengths: Prompt plus completion tokens of each sequence.
        tokens_per_micro_batch: Most tokens of a micro-batch, padding included.

    Returns:
        Indices into `lengths`, one tuple per micro-batch.

    Raises:
        ConfigError: One sequence alone is longer than the budget.

    Example:
        >>> plan_micro_batches([2, 5, 3, 4], 10)
        ((1, 3), (2, 0))
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    if order and lengths[order[0]] > tokens_per_micro_batch:
        raise ConfigError(
            f"trainer.tokens_per_micro_batch is {tokens_per_micro_batch}, but a sequence has {lengths[order[0]]} tokens"
            " with its prompt; set it to at least the longest prompt plus sampling.max_new_tokens"
        )
    plan: list[tuple[int, ...]] = []
    current: list[int] = []
    for index in order:
        if current and (len(current) + 1) * lengths[current[0]] > tokens_per_micro_batch:
            plan.append(tuple(current))
            current = []
        current.append(index)
    return (*plan, tuple(current)) if current else tuple(plan)


def padded_tokens(lengths: Sequence[int], plan: Sequence[Sequence[int]]) -> int:
    """Tokens that a plan computes, padding included."""
    return sum(len(micro_batch) * max(lengths[index] for index in micro_batch) for micro_batch in plan)
