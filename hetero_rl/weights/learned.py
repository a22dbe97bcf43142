"""What one end of a delta has learnt of a data type, and the memory that its loops work in. Needs numba."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero_rl.weights import pieces
from hetero_rl.wire.messages import DataType

__all__ = ["LAYOUTS", "Bits", "Layout", "Learned", "layout_of"]

Bits = NDArray[np.unsignedinteger[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Where the exponent of a floating point type lies, and the bit of its sign."""

    exponent_shift: int
    exponent_bits: int
    sign: int


LAYOUTS = {
    DataType.BFLOAT16: Layout(7, 8, 1 << 15),
    DataType.FLOAT16: Layout(10, 5, 1 << 15),
    DataType.FLOAT32: Layout(23, 8, 1 << 31),
}
"""Of the types that are coded as steps."""


def layout_of(data_type: DataType) -> Layout | None:
    """The layout of a type that is coded as steps; None for others, which are sent whole."""
    return LAYOUTS.get(data_type)


class Learned:
    """What one end has learnt of one data type; both ends learn the same."""

    def __init__(self, layout: Layout) -> None:
        contexts = 1 << layout.exponent_bits
        self.hazards = np.full(2 * contexts, 10_000, np.int32)  # about 1 % until the first piece is known
        self.far = np.full(contexts, 1 << 14, np.int32)  # a quarter of the slots
        self.seen = np.full(contexts, 4 * 256, np.int64)
        self.changed = np.full(contexts, 10, np.int64)
        self.farther = np.full(contexts, 2, np.int64)
        self.odds = np.full(contexts * pieces.STEP_ODDS, pieces.EVEN_ODDS, np.int32)
        self.pieces = np.zeros(1, np.int64)
        self.counts = np.zeros(contexts, np.int64)
        self.hits = np.zeros(pieces.MOST_LANES * contexts, np.int64)
        self.sums = np.zeros(pieces.PIECE_ROOM, np.uint32)
        self.table = np.zeros(pieces.LANE_TABLE, np.int64)
        self.distances = np.zeros(pieces.MOST_DISTANCES, np.int64)
        self._symbols = np.empty(0, np.int64)

    def symbols(self, count: int) -> NDArray[np.int64]:
        """Room for symbols, the same memory each time: what is fresh costs more than what is written there."""
        if self._symbols.size < count:
            self._symbols = np.empty(count, np.int64)
        return self._symbols[:count]

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """In the order that the kernels take."""
        return (
            self.hazards, self.far, self.seen, self.changed, self.farther, self.odds, self.pieces, self.counts,
            self.hits, self.sums, self.table, self.distances,
        )  # fmt: skip
