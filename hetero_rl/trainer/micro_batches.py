"""Cuts a batch into rows and rows into micro-batches by a token budget. Pure.

A row is a prompt followed by one completion of it, or by several where the model takes packed rows: then the prompt is
computed once for all of them. Packed, a micro-batch costs the sum of its rows; the rows go first-fit into as few as
there need to be. Padded, it costs its rows times the longest one, so rows of like length are put together. The longest
come first: if memory does not suffice, it shows at once.
"""

from collections.abc import Iterable, Sequence

from hetero_rl.errors import ConfigError

__all__ = ["Rows", "computed_tokens", "flat", "plan_micro_batches", "plan_rows"]

Rows = tuple[tuple[int, ...], ...]
"""A micro-batch: the sequences of each row, which all have the same prompt."""


def plan_rows(
    groups: Sequence[int], prompt_lengths: Sequence[int], lengths: Sequence[int], row_tokens: int
) -> Rows:
    """Puts the sequences of a group into rows.

    Args:
        groups: Group of each sequence.
        prompt_lengths: Prompt tokens of each sequence's group.
        lengths: Completion tokens of each sequence.
        row_tokens: Most tokens of a row with several completions; 0 gives every completion a row of its own.

    Example:
        >>> plan_rows([0, 0, 0, 1], [4, 4, 4, 2], [3, 2, 5, 1], 10)
        ((0, 1), (2,), (3,))
    """
    rows: list[list[int]] = []
    open_rows: dict[int, int] = {}
    sizes: list[int] = []
    for index, group in enumerate(groups):
        row = open_rows.get(group)
        if row is None or sizes[row] + lengths[index] > row_tokens:
            open_rows[group] = len(rows)
            rows.append([index])
            sizes.append(prompt_lengths[index] + lengths[index])
        else:
            rows[row].append(index)
            sizes[row] += lengths[index]
    return tuple(map(tuple, rows))


def plan_micro_batches(
    row_lengths: Sequence[int], tokens_per_micro_batch: int, *, packed: bool = False
) -> tuple[tuple[int, ...], ...]:
    """Assigns every row to one micro-batch.

    Args:
        row_lengths: Tokens of each row.
        tokens_per_micro_batch: Most tokens of a micro-batch, padding included.
        packed: Whether rows are packed one after another instead of padded.

    Returns:
        Indices into `row_lengths`, one tuple per micro-batch.

    Raises:
        ConfigError: One row alone is longer than the budget.

    Example:
        >>> plan_micro_batches([2, 5, 3, 4], 10)
        ((1, 3), (2, 0))
        >>> plan_micro_batches([2, 5, 3, 4], 10, packed=True)
        ((1, 3), (2, 0))
        >>> plan_micro_batches([2, 5, 3], 10, packed=True)
        ((1, 2, 0),)
    """
    order = sorted(range(len(row_lengths)), key=lambda index: (-row_lengths[index], index))
    if order and row_lengths[order[0]] > tokens_per_micro_batch:
        raise ConfigError(
            f"trainer.tokens_per_micro_batch is {tokens_per_micro_batch}, but a sequence has"
            f" {row_lengths[order[0]]} tokens with its prompt; set it to at least the longest prompt plus"
            " sampling.max_new_tokens"
        )
    plan: list[list[int]] = []
    used: list[int] = []
    for index in order:
        length = row_lengths[index]
        for number in range(0 if packed else max(0, len(plan) - 1), len(plan)):
            cost = length if packed else row_lengths[plan[number][0]]
            if used[number] + cost <= tokens_per_micro_batch:
                plan[number].append(index)
                used[number] += cost
                break
        else:
            plan.append([index])
            used.append(length)
    return tuple(map(tuple, plan))


def computed_tokens(row_lengths: Sequence[int], *, packed: bool) -> int:
    """Tokens that a micro-batch of rows costs."""
    return sum(row_lengths) if packed else len(row_lengths) * max(row_lengths, default=0)


def flat(rows: Iterable[Sequence[int]]) -> list[int]:
    """The sequences of some rows, one after another."""
    return [index for row in rows for index in row]
