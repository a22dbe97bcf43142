"""The running completions, as columns of tensors with one row each: admitted, decoded one token at a time, taken out.

A row joins with the states of its prompt but the last token; the next step feeds that token like any other. So prompts,
re-computed completions and running ones need one code path, and a step is the same few operations for all rows
whatever they are doing. Python sees a row twice: when it joins and when it ends.

    admit ──► rows 0..n-1 ──step──► one token more for each ──► ended rows taken out, the last rows move into the holes

Shapes: R running rows, M most new tokens of any, K most stop tokens of any, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence

import torch

from hetero_rl.wire.messages import FinishReason, SamplingParameters
from hetero_rl.worker.engine import Completion, CompletionSpan
from hetero_rl.worker.engines.transformers.cache import SlotCache
from hetero_rl.worker.engines.transformers.forward import TOKENS_PER_PASS, Forward, chunks_of_tokens
from hetero_rl.worker.engines.transformers.sampling import draw_tokens, processed_log_probs, sample_noise

__all__ = ["RunningRows", "Sample"]

_NO_TOKEN = -1


@dataclasses.dataclass(slots=True, eq=False)
class Sample:
    """One completion on its way: which, of what prompt, and what sampled it so far."""

    sample_index: int
    prompt: Sequence[int]
    sampling: SamplingParameters
    version_starts: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    """(first token, weight version) of each span."""


class RunningRows:
    """Completions being decoded together, in the slots 0 to R - 1 of a cache."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._device = forward.device
        self._cache = SlotCache()
        self._samples: list[Sample] = []
        self._columns = _empty_columns(self._device)
        self._all_portable = True

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The running completions in the order of their rows."""
        return tuple(self._samples)

    def admit(self, samples: Sequence[Sample], version: int) -> None:
        """Adds completions; those that share a prompt object have it prefilled once."""
        self._prefill(samples, len(self._samples))
        joined = _joined_columns(samples, self._forward.max_positions, self._device)
        self._columns = {
            name: _stacked(column, joined[name], _NO_TOKEN if name == "stop_tokens" else 0)
            for name, column in self._columns.items()
        }
        for sample in samples:
            sample.version_starts = [(0, version)]
        self._samples.extend(samples)
        self._note_sampling()

    def step(self) -> list[tuple[Sample, Completion]]:
        """Samples one token for every row and takes out those that ended."""
        columns = self._columns
        positions = columns["length"]
        logits = self._forward.extend(
            self._cache, 0, columns["last_token"][:, None], positions, int(positions.max()) + 1
        )
        tokens, log_probs = self._sampled(logits)
        written = columns["count"][:, None]
        columns["tokens"].scatter_(1, written, tokens[:, None])
        columns["log_probs"].scatter_(1, written, log_probs[:, None])
        columns["last_token"] = tokens
        columns["length"] = positions + 1
        columns["count"] += 1
        stopped = (columns["stop_tokens"] == tokens[:, None]).any(dim=1)
        ended = stopped | (columns["count"] >= columns["limit"])
        return self._take_out(ended, stopped) if bool(ended.any()) else []

    def recompute(self, version: int) -> None:
        """Computes all states anew with the weights that are loaded now; tokens from here on are `version`'s."""
        counts = self._columns["count"].tolist()
        for sample, count in zip(self._samples, counts, strict=True):
            if sample.version_starts[-1][0] == count:
                sample.version_starts.pop()
            sample.version_starts.append((count, version))
        self._prefill(self._samples, 0)
        if any(counts):
            self._feed_again(max(counts))

    def remove(self, samples: Sequence[Sample]) -> None:
        """Drops completions that nobody waits for any more."""
        unwanted = {id(sample) for sample in samples}
        gone = [id(sample) in unwanted for sample in self._samples]
        self._compact(torch.tensor(gone, device=self._device))

    def _prefill(self, samples: Sequence[Sample], first_slot: int) -> None:
        """Computes the states of all prompts but their last tokens, each prompt once, into neighbouring slots."""
        slots_of: dict[int, list[int]] = {}
        prompts: list[Sequence[int]] = []
        for slot, sample in enumerate(samples, start=first_slot):
            if id(sample.prompt) not in slots_of:
                prompts.append(sample.prompt)
            slots_of.setdefault(id(sample.prompt), []).append(slot)
        for start, end in chunks_of_tokens([len(prompt) - 1 for prompt in prompts], TOKENS_PER_PASS):
            # A prompt of one token has no states before its last token.
            if all(len(prompt) == 1 for prompt in prompts[start:end]):
                continue
            states = self._forward.prefill([prompt[:-1] for prompt in prompts[start:end]])
            placed = sorted(
                (slot, row) for row, prompt in enumerate(prompts[start:end]) for slot in slots_of[id(prompt)]
            )
            slots, rows = torch.tensor(placed, device=self._device).unbind(dim=1)
            self._cache.place(slots, states, rows)

    def _feed_again(self, tokens: int) -> None:
        """Feeds each prompt's last token and all sampled tokens but the last one; `tokens` is the most of any row."""
        columns = self._columns
        lasts = torch.tensor([sample.prompt[-1] for sample in self._samples], device=self._device)
        fed = torch.cat([lasts[:, None], columns["tokens"][:, : tokens - 1]], dim=1)
        starts = columns["length"] - columns["count"]
        rows = max(1, TOKENS_PER_PASS // tokens)
        for first in range(0, len(fed), rows):
            part = slice(first, first + rows)
            visible = int(starts[part].max()) + tokens
            # Rows with fewer tokens write padding beyond their end, where their next tokens go.
            self._forward.extend(self._cache, first, fed[part], starts[part], visible)

    def _sampled(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        columns = self._columns
        noise = columns["noise"].gather(1, columns["count"][:, None])[:, 0]
        if self._all_portable:
            log_probs = logits.log_softmax(dim=-1)
            tokens = draw_tokens(log_probs, noise)
        else:
            greedy = columns["temperature"] == 0
            temperature = columns["temperature"].masked_fill(greedy, 1.0)
            log_probs = processed_log_probs(logits, temperature, columns["top_p"], columns["top_k"])
            tokens = torch.where(greedy, logits.argmax(dim=-1), draw_tokens(log_probs, noise))
        return tokens, log_probs.gather(-1, tokens[:, None])[:, 0]

    def _take_out(self, ended: torch.Tensor, stopped: torch.Tensor) -> list[tuple[Sample, Completion]]:
        rows = ended.nonzero()[:, 0]
        numbers = (
            rows.tolist(),
            self._columns["count"][rows].tolist(),
            self._columns["tokens"][rows].tolist(),
            self._columns["log_probs"][rows].tolist(),
            stopped[rows].tolist(),
        )
        taken = []
        for row, count, tokens, log_probs, stop in zip(*numbers, strict=True):
            sample = self._samples[row]
            completion = Completion(
                sample_index=sample.sample_index,
                token_ids=tokens[:count],
                log_probs=None if sample.sampling.temperature == 0 else log_probs[:count],
                spans=_spans(sample.version_starts, count),
                finish_reason=FinishReason.STOP if stop else FinishReason.LENGTH,
            )
            taken.append((sample, completion))
        self._compact(ended)
        return taken

    def _compact(self, gone: torch.Tensor) -> None:
        """Moves the last rows that stay into the places of rows that go."""
        flags = gone.tolist()
        left = len(flags) - sum(flags)
        holes = [row for row in range(left) if flags[row]]
        movers = [row for row in range(left, len(flags)) if not flags[row]]
        if holes:
            target = torch.tensor(holes, device=self._device)
            source = torch.tensor(movers, device=self._device)
            self._cache.move(target, source)
            for column in self._columns.values():
                column[target] = column[source]
            for hole, mover in zip(holes, movers, strict=True):
                self._samples[hole] = self._samples[mover]
        if left:
            self._columns = {name: column[:left] for name, column in self._columns.items()}
        else:
            # Tables are as wide as the longest completion they ever held; an idle engine keeps none.
            self._columns = _empty_columns(self._device)
        del self._samples[left:]
        self._note_sampling()

    def _note_sampling(self) -> None:
        self._all_portable = all(sample.sampling.portable for sample in self._samples)


def _spans(version_starts: Sequence[tuple[int, int]], count: int) -> tuple[CompletionSpan, ...]:
    ends = [start for start, _ in version_starts[1:]] + [count]
    return tuple(
        CompletionSpan(start, end, version)
        for (start, version), end in zip(version_starts, ends, strict=True)
    )


def _empty_columns(device: torch.device) -> dict[str, torch.Tensor]:
    integers = {name: torch.zeros(0, dtype=torch.int64, device=device) for name in _INTEGER_COLUMNS}
    floats = {name: torch.zeros(0, dtype=torch.float32, device=device) for name in ("temperature", "top_p")}
    tables = {
        "tokens": torch.zeros(0, 0, dtype=torch.int64, device=device),
        "log_probs": torch.zeros(0, 0, dtype=torch.float32, device=device),
        "noise": torch.zeros(0, 0, dtype=torch.float64, device=device),
        "stop_tokens": torch.zeros(0, 0, dtype=torch.int64, device=device),
    }
    return integers | floats | tables


_INTEGER_COLUMNS = ("last_token", "length", "count", "limit", "top_k")


def _joined_columns(
    samples: Sequence[Sample], max_positions: int, device: torch.device
) -> dict[str, torch.Tensor]:
    """Columns of completions that start now."""
    settings = [sample.sampling for sample in samples]
    most_stops = max(len(sampling.stop_token_ids) for sampling in settings)
    limits = [min(sample.sampling.max_new_tokens, max_positions - len(sample.prompt)) for sample in samples]
    most_tokens = max(limits)
    noise = torch.zeros(len(samples), most_tokens, dtype=torch.float64)
    for row, (sample, limit) in enumerate(zip(samples, limits, strict=True)):
        noise[row, :limit] = sample_noise(sample.sampling.seed, sample.sample_index, limit)
    stops = [
        [*sampling.stop_token_ids, *([_NO_TOKEN] * (most_stops - len(sampling.stop_token_ids)))]
        for sampling in settings
    ]
    columns = {
        "last_token": torch.tensor([sample.prompt[-1] for sample in samples]),
        "length": torch.tensor([len(sample.prompt) - 1 for sample in samples]),
        "count": torch.zeros(len(samples), dtype=torch.int64),
        "limit": torch.tensor(limits),
        "top_k": torch.tensor([sampling.top_k for sampling in settings]),
        "temperature": torch.tensor([sampling.temperature for sampling in settings], dtype=torch.float32),
        "top_p": torch.tensor([sampling.top_p for sampling in settings], dtype=torch.float32),
        "tokens": torch.zeros(len(samples), most_tokens, dtype=torch.int64),
        "log_probs": torch.zeros(len(samples), most_tokens, dtype=torch.float32),
        "noise": noise,
        "stop_tokens": torch.tensor(stops, dtype=torch.int64).reshape(len(samples), most_stops),
    }
    return {name: column.to(device) for name, column in columns.items()}


def _stacked(above: torch.Tensor, below: torch.Tensor, filler: int) -> torch.Tensor:
    """Rows of both; the narrower table is widened."""
    if above.ndim == 1:
        return torch.cat([above, below])
    width = max(above.shape[1], below.shape[1])
    widened = [
        torch.nn.functional.pad(table, (0, width - table.shape[1]), value=filler) for table in (above, below)
    ]
    return torch.cat(widened)
