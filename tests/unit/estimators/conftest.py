import pytest
import torch

from hetero_rl.estimators import RecordedBatch


@pytest.fixture
def make_recorded():
    """A recorded batch in float64 and current log-probabilities near it."""

    def make(groups=3, group_size=4, seed=0, shift=0.05, dtype=torch.float64, **fields):
        generator = torch.Generator().manual_seed(seed)
        sequences = groups * group_size
        lengths = torch.randint(1, 12, (sequences,), generator=generator)
        tokens = int(lengths.sum())
        behavior = -3 * torch.rand(tokens, generator=generator, dtype=dtype) - 0.05
        current = behavior + shift * torch.randn(tokens, generator=generator, dtype=dtype)
        recorded = RecordedBatch(
            behavior_log_probs=behavior,
            lengths=lengths,
            group_ids=torch.arange(sequences) // group_size,
            rewards=torch.rand(sequences, generator=generator, dtype=dtype),
            **fields,
        )
        return recorded, current.clamp(max=-1e-3)

    return make
