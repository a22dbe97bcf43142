"""The compiled loop that finds where two arrays differ. Needs numba. What it calls is in `vectors`: see there."""

import numba
import numpy as np

from hetero_rl.weights.vectors import FLAGGED, flags_of_changes, lowest_bit

__all__ = ["find_changes"]


@numba.njit(cache=True, nogil=True, _nrt=False, error_model="numpy")
def find_changes(old, new, start, stop, index, bits):
    """Writes where two contiguous arrays differ, from `start` to before `stop`, and what is new there; returns how often they do.

    `index` and `bits` have room for as many elements as are looked at.
    """
    found, at, whole = 0, start, stop - (stop - start) % FLAGGED
    while at < whole:
        flags = flags_of_changes(old, new, at)
        while flags != 0:
            element = at + lowest_bit(flags)
            index[np.uint64(found)] = element
            bits[np.uint64(found)] = new[np.uint64(element)]
            found += 1
            flags &= flags - 1
        at += FLAGGED
    for element in range(whole, stop):
        if old[np.uint64(element)] != new[np.uint64(element)]:
            index[np.uint64(found)] = element
            bits[np.uint64(found)] = new[np.uint64(element)]
            found += 1
    return found
