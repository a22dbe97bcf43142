"""The check at start: decoding token by token from the cache gives what one plain forward pass gives.

A model whose attention, positions or cache this engine gets wrong would generate plausible text with wrong
log-probabilities. Here it is refused before it does any work.
"""

import torch

from hetero_rl.errors import EngineError
from hetero_rl.worker.engines.transformers.cache import SlotCache
from hetero_rl.worker.engines.transformers.forward import Forward

__all__ = ["check_decoding"]

# Mean absolute difference in log-probability that rounding explains, by data type.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.1}
_LENGTHS = (9, 6)
_PREFILLED = 4


@torch.inference_mode()
def check_decoding(forward: Forward, model_type: str, dtype: torch.dtype) -> float:
    """Decodes two short sequences of different lengths and compares with scoring them.

    Returns:
        The mean absolute difference of the log-probabilities.

    Raises:
        EngineError: They do not agree.
    """
    sequences = [
        [(17 * position + 5 * row + 1) % forward.vocabulary_size for position in range(length)]
        for row, length in enumerate(_LENGTHS)
    ]
    plain = [scores[_PREFILLED - row :] for row, scores in enumerate(forward.score(sequences))]
    cached = _decoded(forward, sequences)
    difference = (torch.cat(plain) - torch.cat(cached)).abs().mean().item()
    # Written so that NaN is refused too.
    if not difference <= _TOLERANCE[dtype]:
        raise EngineError(
            f"decoding of model type {model_type!r} from the cache differs from a plain forward pass by {difference:.3g} "
            f"on average (at most {_TOLERANCE[dtype]} is rounding in {dtype}); this engine cannot serve that model"
        )
    return difference


def _decoded(forward: Forward, sequences: list[list[int]]) -> list[torch.Tensor]:
    """Log-probabilities of the tokens after the prefilled ones; row r has r fewer tokens prefilled."""
    cache = SlotCache()
    prefilled = [sequence[: _PREFILLED - row] for row, sequence in enumerate(sequences)]
    slots = torch.arange(len(sequences), device=forward.device)
    cache.place(slots, forward.prefill(prefilled), slots)
    lengths = torch.tensor([len(tokens) for tokens in prefilled], device=forward.device)
    collected: list[list[torch.Tensor]] = [[] for _ in sequences]
    for _ in range(max(len(sequence) for sequence in sequences) - min(lengths.tolist()) - 1):
        # A row that has come to its end is fed its last token again; what comes of it is not used.
        position = [
            min(int(length), len(sequence) - 1) for length, sequence in zip(lengths, sequences, strict=True)
        ]
        fed = torch.tensor([sequence[at] for at, sequence in zip(position, sequences, strict=True)])
        logits = forward.extend(cache, 0, fed.to(forward.device)[:, None], lengths, int(lengths.max()) + 1)
        log_probs = logits.log_softmax(dim=-1).cpu()
        for row, sequence in enumerate(sequences):
            if position[row] + 1 < len(sequence):
                collected[row].append(log_probs[row, sequence[position[row] + 1]])
        lengths += 1
    return [torch.stack(values) for values in collected]
