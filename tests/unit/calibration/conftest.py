"""A world of known distributions: logits of a trainer, and a chip that computes them with honest errors."""

import dataclasses

import numpy as np
import pytest

from hetero_rl.calibration.columns import PairColumns

VOCABULARY = 40


@dataclasses.dataclass(frozen=True)
class World:
    """Tokens sampled by the chip from its own distribution, scored by both sides."""

    lengths: np.ndarray
    trainer_logits: np.ndarray
    chip_logits: np.ndarray
    token_ids: np.ndarray

    def log_probs(self, logits, temperature=1.0, top_p=1.0):
        scaled = logits / temperature
        log_probs = scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)
        if top_p < 1:
            order = np.argsort(-log_probs, axis=1)
            ordered = np.take_along_axis(np.exp(log_probs), order, axis=1)
            kept_in_order = np.cumsum(ordered, axis=1) - ordered < top_p
            kept = np.zeros_like(kept_in_order)
            np.put_along_axis(kept, order, kept_in_order, axis=1)
            mass = np.where(kept, np.exp(log_probs), 0).sum(axis=1, keepdims=True)
            log_probs = np.where(kept, log_probs - np.log(mass), -np.inf)
        return log_probs[np.arange(len(log_probs)), self.token_ids]

    @property
    def trainer(self):
        return self.log_probs(self.trainer_logits)

    @property
    def chip(self):
        return self.log_probs(self.chip_logits).astype(np.float32).astype(np.float64)

    @property
    def positions(self):
        return np.concatenate([np.arange(length) + 8 for length in self.lengths])

    def pair(self, measured=None, reference=None):
        return PairColumns(
            lengths=self.lengths,
            reference=self.trainer if reference is None else reference,
            measured=self.chip if measured is None else measured,
            token_ids=self.token_ids,
            positions=self.positions,
        )


def make_world(seed=0, sequences=12, tokens=150, error=0.02, temperature=1.0, top_p=1.0):
    """`error`: standard deviation of the chip's logits, as bfloat16 makes it; 1e-6 is float32 in another order."""
    random = np.random.default_rng(seed)
    total = sequences * tokens
    # Some positions are certain, some wide open, as in text.
    sharpness = random.choice([0.5, 2.0, 6.0], size=(total, 1), p=[0.3, 0.4, 0.3])
    logits = random.normal(size=(total, VOCABULARY)) * sharpness
    chip = logits + random.normal(scale=error, size=logits.shape)
    world = World(np.full(sequences, tokens), logits, chip, np.zeros(total, dtype=np.int64))
    scaled = chip / temperature
    probabilities = np.exp(scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True))
    if top_p < 1:
        order = np.argsort(-probabilities, axis=1)
        ordered = np.take_along_axis(probabilities, order, axis=1)
        ordered[np.cumsum(ordered, axis=1) - ordered >= top_p] = 0
        np.put_along_axis(probabilities, order, ordered, axis=1)
        probabilities /= probabilities.sum(axis=1, keepdims=True)
    drawn = (random.random((total, 1)) > np.cumsum(probabilities, axis=1)).sum(axis=1)
    return dataclasses.replace(world, token_ids=np.minimum(drawn, VOCABULARY - 1))


@pytest.fixture(scope="session")
def world():
    """The function that makes worlds."""
    return make_world
