"""The compiled loop that finds where two arrays differ. Needs numba. All of it is in this file: see `kernels`."""

import numba
import numpy as np

__all__ = ["FLAGS", "find_changes"]

FLAGS = 4096
"""Elements compared at a time; their flags stay in the processor's nearest cache."""


@numba.njit(cache=True, nogil=True, _nrt=False, error_model="numpy")
def find_changes(old, new, index, flags, words):
    """Writes the positions at which two arrays differ and returns their number.

    `index` has room for every element and `FLAGS` more; `words` are the bytes of `flags`, eight at a time.
    """
    found, start = 0, 0
    while start < old.size:
        size = min(FLAGS, old.size - start)
        for element in range(size):
            flags[np.uint64(element)] = old[np.uint64(start + element)] != new[np.uint64(start + element)]
        for element in range(size, min((size + 15) & ~15, FLAGS)):
            flags[element] = 0
        for pair in range((size + 15) >> 4):
            if words[np.uint64(2 * pair)] | words[np.uint64(2 * pair + 1)]:
                for element in range(16 * pair, 16 * pair + 16):
                    index[np.uint64(found)] = start + element
                    found += np.int64(flags[np.uint64(element)])
        start += size
    return found
