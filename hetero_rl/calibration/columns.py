"""The same tokens as two scorers see them. N tokens of S sequences, flat, in sequence order.

The gap is the trainer minus the backend, log pi - log mu, in nats: what a token adds to log W.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

__all__ = ["Floats", "Integers", "PairColumns"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairColumns:
    """Log-probabilities of the same tokens from two scorers.

    Raises:
        ValueError: A column has the wrong length, or the lengths do not add up.
    """

    lengths: Integers
    """Scored tokens of each sequence [S], at least 1."""
    reference: Floats
    """log pi of each token [N]: the trainer's, or the first backend's of a pair."""
    measured: Floats
    """log mu of each token [N]: the backend's."""
    token_ids: Integers
    """Token ids [N]."""
    positions: Integers
    """Position of each token in its whole text, prompt included, from 0 [N]."""
    entropy: Floats | None = None
    """Entropy of the reference's distribution at each token in nats [N]; None when not known."""

    def __post_init__(self) -> None:
        """Checks shapes; values that are not finite are allowed and counted by who reads them."""
        tokens = int(self.lengths.sum())
        if self.lengths.ndim != 1 or (self.lengths < 1).any():
            raise ValueError(
                f"lengths is {self.lengths!r}; one number of at least 1 per sequence is required"
            )
        for name in ("reference", "measured", "token_ids", "positions", "entropy"):
            column = getattr(self, name)
            if column is not None and column.shape != (tokens,):
                raise ValueError(f"{name} has shape {column.shape}; ({tokens},) is required")

    @property
    def gap(self) -> Floats:
        """Log pi - log mu of each token [N]; not finite where either is not."""
        with np.errstate(invalid="ignore"):
            return self.reference - self.measured

    @property
    def sequence_ids(self) -> Integers:
        """Sequence of each token [N]."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def offsets(self) -> Integers:
        """Index of each token within its sequence's scored tokens, from 0 [N]."""
        starts = np.cumsum(self.lengths) - self.lengths
        return np.arange(int(self.lengths.sum())) - np.repeat(starts, self.lengths)

    def select(self, tokens: npt.NDArray[np.bool_]) -> "PairColumns":
        """The tokens where `tokens` [N] is true; sequences that have none left are gone."""
        kept = np.add.reduceat(tokens.astype(np.int64), np.cumsum(self.lengths) - self.lengths)
        return PairColumns(
            lengths=kept[kept > 0],
            reference=self.reference[tokens],
            measured=self.measured[tokens],
            token_ids=self.token_ids[tokens],
            positions=self.positions[tokens],
            entropy=None if self.entropy is None else self.entropy[tokens],
        )

    @property
    def usable(self) -> "PairColumns":
        """The tokens whose gap is finite; raises ValueError when there is none."""
        finite = np.isfinite(self.gap)
        if not finite.any():
            raise ValueError("no token has a finite gap")
        return self if finite.all() else self.select(finite)
