"""What both ends of the delta codec do alike: hazards, slots and statistics of a piece. Needs numba.

    old weights ──exponent──► hazard of each element ──running sum over a piece──► one search finds the next change
    change at an element:   slots [S(h + w), S(h)) of the coder, S the survival exp(-h), h the hazard since the last change,
                            shared by: farther than one value, one value up, one value down
    no change so far:       slots [0, S(h))
    if farther:             the distance bit by bit under adaptive odds

An element of exponent e changes with probability p_e; its hazard is w_e = -ln(1 - p_e). If changes are independent, the
hazard passed between two of them is exponential, so one pass in natural order codes every position at the entropy given
the old exponent, without sorting by exponent. Probabilities come from what both sides have already seen, piece by piece.

A piece is cut into one stretch per lane. Each round takes one symbol of every lane: first it finds where all of them are,
then what they say. Nothing in a step of a round waits for the lane before, so that the processor works on several at a
time, and no branch depends on what nothing foretells. The distances of a piece come last, from the lanes in turn. Each lane
has a state of 63 bits; all read the same sequence of 32-bit words. The encoder notes its symbols in the order of the
decoder, then codes them from the last to the first.

Everything is int64 arithmetic, identical on every processor; indices are cast to uint64 to spare numba's test for
negative ones. A damaged stream decodes to wrong weights, never out of bounds. numba's cache notices a change of a
kernel's own file only: after a change here, `sender`, `receiver` and `wide_receiver` must be touched as well.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

from hetero_rl.weights.hazards import EVEN_ODDS, inlined, nats
from hetero_rl.weights.survival import HAZARD_LIMIT, HAZARD_TOP, PROBABILITY_BITS
from hetero_rl.weights.vectors import COUNTED, fetch

__all__ = [
    "AT",
    "CHANGE",
    "COARSE",
    "COARSEST",
    "ELEMENT",
    "END",
    "EVEN_ODDS",
    "FETCHED_AHEAD",
    "HAZARDS_IN_REACH",
    "LANE_TABLE",
    "LAST",
    "LEAST_STATE",
    "MOST_DISTANCES",
    "MOST_LANES",
    "ODDS_SHIFT",
    "PIECE_ROOM",
    "SLOTS",
    "SLOT_MASK",
    "STATE",
    "STATE_MASK",
    "STEP_ODDS",
    "SYMBOLS_PER_CHANGE",
    "TOP_TREES",
    "WORDS_AHEAD",
    "WORD_MASK",
    "U",
    "finish_measuring",
    "hazard_passed",
    "kernel",
    "measure",
    "neighbour",
    "ordered",
    "piece_size",
    "place_lanes",
    "relearn",
    "share_slots",
    "slots_of",
    "unordered",
]  # fmt: skip

_Function = TypeVar("_Function", bound=Callable[..., Any])


# No kernel allocates: without numba's own run time (_nrt) the loops are free of reference counts, and twice as fast.
def kernel(function: _Function) -> _Function:
    """A loop that Python calls, kept compiled."""
    compiled: _Function = numba.njit(cache=True, nogil=True, _nrt=False, error_model="numpy")(function)
    return compiled


U = np.uint64
_LONGEST_HAZARD = HAZARD_TOP - HAZARD_LIMIT
_SHORTEST_HAZARD = 64  # so that the slots of a change can be shared

# A state is in [2^31, 2^63) between symbols; a symbol has at least 1 of 2^30 slots, so one word at a time is enough.
SLOTS = 1 << PROBABILITY_BITS
SLOT_MASK = SLOTS - 1
LEAST_STATE = 1 << 31
STATE_MASK = (1 << 63) - 1
WORD_MASK = (1 << 32) - 1

ODDS_SHIFT = PROBABILITY_BITS - 16
# Odds of one exponent: a tree of 5 bits for the length of a distance, a tree of 3 for its top bits.
STEP_ODDS = 320
TOP_TREES = 32

MOST_LANES = 8
SYMBOLS_PER_CHANGE = 14
"""At most: position and kind of step, whether more than two, five bits of length, three of the rest, four times eight."""
WORDS_AHEAD = 32
"""Zeros that follow the words: a round or a distance reads fewer, so that the decoder never reads beyond them."""
_SMALLEST_PIECE = 128
_LARGEST_PIECE = 65536
_SAMPLED = 2048
MOST_DISTANCES = _LARGEST_PIECE + MOST_LANES
COARSE = _LARGEST_PIECE + 2 * COUNTED
COARSEST = COARSE + _LARGEST_PIECE // COUNTED + 2 * COUNTED
PIECE_ROOM = COARSEST + _LARGEST_PIECE // COUNTED**2 + 2 * COUNTED
"""Entries of the running sum: before each element and at the end, every sixteenth of them, every 256th; each with room to look ahead."""
FETCHED_AHEAD = 4096
"""Elements that a pass over a piece asks memory for before it gets there."""
HAZARDS_IN_REACH = 512
"""So many hazards and a limit are less than 2^32, where the running sum starts anew."""
# Columns of the lanes' table: element reached, end of the stretch, state; where the present round looks.
AT, END, STATE, ELEMENT, CHANGE, LAST = (MOST_LANES * column for column in range(6))
LANE_TABLE = MOST_LANES * 6


@inlined
def hazard_passed(sums, start, stop):
    """The hazard of the elements from `start` to before `stop`; the running sum starts anew at 2^32."""
    return (np.int64(sums[U(stop)]) - np.int64(sums[U(start)])) & WORD_MASK


@inlined
def piece_size(old, start, pieces):
    """Elements of the piece from `start`: the first ones are small, so that statistics are there soon."""
    size = min(_SMALLEST_PIECE << min(pieces[0], 20), _LARGEST_PIECE)
    pieces[0] += 1
    return min(size, old.size - start)


@inlined
def measure(old, start, size, shift, hazards, sums, counts):
    """The running sum of hazards over a piece, and a sample of its exponents, before any element is changed."""
    total, element = np.int64(0), 0
    for block in range(size // COUNTED):
        sums[U(COARSE + block)] = total
        fetch(old, start + element + FETCHED_AHEAD)
        for _ in range(COUNTED):
            sums[U(element)] = total
            total += np.int64(hazards[U(old[U(start + element)]) >> U(shift)])
            element += 1
    finish_measuring(old, start, size, shift, hazards, sums, counts, total)


@inlined
def finish_measuring(old, start, size, shift, hazards, sums, counts, total):
    """The rest of `measure` after its whole blocks."""
    blocks = size // COUNTED
    element = blocks * COUNTED
    sums[U(COARSE + blocks)] = total
    while element < size:
        sums[U(element)] = total
        total += np.int64(hazards[U(old[U(start + element)]) >> U(shift)])
        element += 1
    for ahead in range(2 * COUNTED):
        sums[U(size + ahead)] = total
    for ahead in range(blocks + 1, blocks + 2 * COUNTED):
        sums[U(COARSE + ahead)] = total
    whole = blocks // COUNTED
    for top in range(whole + 1):
        sums[U(COARSEST + top)] = sums[U(COARSE + top * COUNTED)]
    for ahead in range(whole + 1, whole + 2 * COUNTED):
        sums[U(COARSEST + ahead)] = total
    stride = max(1, size // _SAMPLED)
    for element in range(start, start + size, stride):
        counts[(np.int64(old[U(element)]) >> shift) & (counts.size - 1)] += stride


@inlined
def place_lanes(size, lanes, table):
    stretch = (size + lanes - 1) // lanes
    for lane in range(lanes):
        table[AT + lane] = min(lane * stretch, size)
        table[END + lane] = min(lane * stretch + stretch, size)


@inlined
def relearn(counts, hits, seen, changed, farther, hazards, far):
    """New probabilities from a piece; counts are in 256ths and forget a sixteenth per piece."""
    contexts = counts.size
    for context in range(contexts):
        found = np.int64(0)
        for lane in range(MOST_LANES):
            found += hits[U(context * MOST_LANES + lane)]
            hits[U(context * MOST_LANES + lane)] = 0
        if counts[context] == 0 and found == 0:
            continue
        changes, distant = found & WORD_MASK, found >> 32
        changed[context] += (changes << 8) - (changed[context] >> 4)
        seen[context] = max(seen[context] + (counts[context] << 8) - (seen[context] >> 4), changed[context])
        farther[context] = min(farther[context] + (distant << 8) - (farther[context] >> 4), changed[context])
        total = seen[context] + 256
        hazard = min(max(nats(total, total - changed[context] - 100), _SHORTEST_HAZARD), _LONGEST_HAZARD)
        hazards[context] = hazard
        hazards[context + contexts] = hazard
        far[context] = _far_share(farther[context], changed[context])
        counts[context] = 0


@inlined
def _far_share(farther, changed):
    """How many 65536ths of the slots of a change say "farther than one value"; some are left for the others."""
    return min(max(((farther + 64) << 16) // (changed + 256), 64), 65000)


@inlined
def share_slots(width, share):
    """Slots of "farther up" and of "one value up" out of those of a change; as many or one more say "down"."""
    far = max((width * share) >> 17, 1)
    return far, (width >> 1) - far


@inlined
def slots_of(width, far, near, distant, down):
    """First and number of the slots of a kind of step, in the order: far up, far down, near up, near down."""
    size = near ^ ((near ^ far) & -distant)
    first = ((2 * far) & (distant - 1)) + (size & -down)
    return first, size + ((width & 1) & (distant - 1) & down)


@inlined
def ordered(bits, sign):
    """Bits of a float as an integer that rises with its value; `unordered` is the way back."""
    return bits ^ (sign | ((sign - 1) & -np.int64((bits & sign) != 0)))


@inlined
def unordered(order, sign):
    return order ^ (sign | ((sign - 1) & -np.int64((order & sign) == 0)))


@inlined
def neighbour(bits, down, sign):
    """The value next to a float's; `ordered` and `unordered` in less time, as zeros of two signs are rare."""
    negative = np.int64((bits & sign) != 0)
    after = bits + 1 - 2 * (down ^ negative)
    if (after ^ bits) & sign:
        return unordered((ordered(bits, sign) + 1 - 2 * down) & (2 * sign - 1), sign)
    return after
