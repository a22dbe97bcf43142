"""Which codings of weight versions this installation can write and read. Standard library only."""

import importlib.util

from hetero_rl.wire.messages import WeightEncoding

__all__ = ["supported_encodings"]


def supported_encodings() -> tuple[WeightEncoding, ...]:
    """Full copies always; deltas where numba is installed, which the extra `codec` brings."""
    full = (WeightEncoding.FULL_RAW, WeightEncoding.FULL_PLANES)
    if importlib.util.find_spec("numba") is None:
        return full
    return (*full, WeightEncoding.ULP_DELTA)
