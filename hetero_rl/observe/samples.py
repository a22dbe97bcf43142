"""Completions of a run for a person to read: text, reward, and where the backend and the trainer disagree. Pure.

The gap of a token is log mu - log pi: what the worker reported when it sampled, minus the trainer's own value at the step.
Model output is hostile to a terminal: whatever is not printable is shown escaped.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hetero_rl.hub.journal_reader import Sample
from hetero_rl.wire.columns import float32_view, int32_view

__all__ = [
    "ReadableSample",
    "gap_style",
    "printable",
    "readable",
    "sample_record",
    "sample_view",
    "token_table",
    "worst_first",
]

Decode = Callable[[Sequence[int]], str]

GAP_STYLES = ((0.5, "bold white on red"), (0.1, "red"), (0.02, "yellow"), (0.0, "green"))
"""Style of a token by the least |gap| in nats that earns it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReadableSample:
    """A sample with its text. L tokens."""

    sample: Sample
    prompt: str
    tokens: tuple[str, ...]
    """Text of each token, L of them, special tokens included."""
    token_ids: tuple[int, ...]
    behavior_log_probs: tuple[float, ...] | None
    """log mu, L of them; None for greedy evaluation."""
    trainer_log_probs: tuple[float, ...] | None
    """log pi, L of them; None where the run did not keep them."""

    @property
    def completion(self) -> str:
        """The text of the whole completion."""
        return "".join(self.tokens)

    @property
    def gaps(self) -> tuple[float, ...] | None:
        """Log mu - log pi of each token."""
        if self.behavior_log_probs is None or self.trainer_log_probs is None:
            return None
        pairs = zip(self.behavior_log_probs, self.trainer_log_probs, strict=True)
        return tuple(mu - pi for mu, pi in pairs)


def readable(sample: Sample, decode: Decode) -> ReadableSample:
    """Adds the text to a sample."""
    token_ids = tuple(int32_view(sample.token_ids))
    return ReadableSample(
        sample=sample,
        prompt=decode(int32_view(sample.prompt_token_ids).tolist()),
        tokens=tuple(decode([token_id]) for token_id in token_ids),
        token_ids=token_ids,
        behavior_log_probs=_floats(sample.log_probs),
        trainer_log_probs=_floats(sample.trainer_log_probs),
    )


def worst_first(samples: Sequence[Sample]) -> list[Sample]:
    """By the largest |gap| of a token; those whose step is not committed come last."""
    return sorted(samples, key=lambda sample: -sample.outcome.max_absolute_gap if sample.outcome else 1.0)


def printable(text: str) -> str:
    """The text with everything escaped that could move a cursor, hide text or turn its direction."""
    return "".join(
        char if char.isprintable() else "⏎" if char == "\n" else ascii(char)[1:-1] for char in text
    )


def gap_style(gap: float) -> str:
    """How a token with this gap is coloured; a gap that is no number is the worst."""
    return next((style for least, style in GAP_STYLES if abs(gap) >= least), GAP_STYLES[0][1])


def sample_view(item: ReadableSample, *, with_tokens: bool) -> RenderableType:
    """One completion: a line of facts, the prompt, the completion coloured by gap.

    Args:
        item: The completion.
        with_tokens: Whether a table of its tokens follows.
    """
    body = Table.grid(padding=(0, 2))
    body.add_column(style="dim", no_wrap=True)
    body.add_column(overflow="fold")
    body.add_row("prompt", Text(printable(item.prompt)))
    body.add_row("completion", _coloured(item))
    body.add_row("facts", Text("  ".join(_facts(item))))
    parts: list[RenderableType] = [_title(item), body]
    if with_tokens:
        parts.append(token_table(item))
    return Group(*parts, Text())


def token_table(item: ReadableSample) -> Table:
    """A line for each token: id, text, log mu, log pi, gap."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("#", "id"):
        table.add_column(column, justify="right")
    table.add_column("token")
    for column in ("log mu", "log pi", "gap"):
        table.add_column(column, justify="right")
    for position, token_id in enumerate(item.token_ids):
        gap = None if item.gaps is None else item.gaps[position]
        table.add_row(
            str(position),
            str(token_id),
            Text(printable(item.tokens[position])),
            _number(item.behavior_log_probs, position),
            _number(item.trainer_log_probs, position),
            Text("-") if gap is None else Text(f"{gap:+.2e}", gap_style(gap)),
        )
    return table


def sample_record(item: ReadableSample) -> dict[str, object]:
    """A sample as JSON values."""
    sample = item.sample
    outcome = None
    if sample.outcome is not None:
        outcome = dataclasses.asdict(sample.outcome) | {
            "disposition": sample.outcome.disposition.name.lower()
        }
    return {
        "group_id": sample.group_id,
        "sample_index": sample.sample_index,
        "purpose": sample.purpose.name.lower(),
        "step": sample.step,
        "worker": sample.worker_name,
        "backend": sample.backend,
        "numerics_id": sample.numerics_id,
        "oldest_weight_version": sample.oldest_version,
        "newest_weight_version": sample.newest_version,
        "finish_reason": sample.finish_reason.name.lower(),
        "prompt": item.prompt,
        "completion": item.completion,
        "token_ids": list(item.token_ids),
        "behavior_log_probs": _listed(item.behavior_log_probs),
        "trainer_log_probs": _listed(item.trainer_log_probs),
        "outcome": outcome,
    }


def _title(item: ReadableSample) -> Text:
    sample = item.sample
    span = f"v{sample.oldest_version}"
    if sample.newest_version != sample.oldest_version:
        span += f"..v{sample.newest_version}"
    reward = "" if sample.outcome is None else f"  reward {sample.outcome.reward:g}"
    return Text.assemble(
        (f"{sample.group_id} #{sample.sample_index}", "bold"),
        f"  step {sample.step or '-'}  {sample.worker_name} ({sample.backend})  weights {span}",
        (reward, "bold"),
    )


def _facts(item: ReadableSample) -> Iterable[str]:
    sample, outcome = item.sample, item.sample.outcome
    yield f"{len(item.token_ids)} tokens, ended by {sample.finish_reason.name.lower()}"
    if outcome is None:
        return
    yield outcome.disposition.name.lower().replace("_", " ")
    yield f"lag {outcome.lag}"
    yield f"advantage {outcome.advantage:+.3f}"
    yield f"log W {outcome.log_importance_ratio:+.3e}"
    yield f"coefficient {outcome.coefficient:.3f}"
    yield f"|gap| mean {outcome.mean_absolute_gap:.2e} max {outcome.max_absolute_gap:.2e}"


def _coloured(item: ReadableSample) -> Text:
    gaps = item.gaps
    if gaps is None:
        return Text(printable(item.completion))
    return Text.assemble(
        *((printable(token), gap_style(gap)) for token, gap in zip(item.tokens, gaps, strict=True))
    )


def _floats(column: bytes | None) -> tuple[float, ...] | None:
    return None if column is None else tuple(float32_view(column))


def _listed(values: tuple[float, ...] | None) -> list[float] | None:
    return None if values is None else list(values)


def _number(values: tuple[float, ...] | None, position: int) -> str:
    return "-" if values is None else f"{values[position]:.5f}"
