"""The receiver's loops of the delta codec, for any processor; see `pieces`. Needs numba.

`wide_receiver` does the same in wider vectors; it calls what is here as well and must be touched after a change.
"""

import numpy as np

from hetero_rl.weights.hazards import hazard_before, inlined, learn, survival
from hetero_rl.weights.pieces import (
    AT,
    COARSE,
    ELEMENT,
    END,
    LEAST_STATE,
    MOST_LANES,
    ODDS_SHIFT,
    SLOT_MASK,
    SLOTS,
    STATE,
    STATE_MASK,
    STEP_ODDS,
    TOP_TREES,
    WORDS_AHEAD,
    U,
    hazard_passed,
    kernel,
    measure,
    neighbour,
    ordered,
    piece_size,
    place_lanes,
    relearn,
    share_slots,
    slots_of,
    unordered,
)  # fmt: skip
from hetero_rl.weights.survival import HAZARD_LIMIT, PROBABILITY_BITS
from hetero_rl.weights.vectors import COUNTED, count_below

__all__ = ["decode", "first_states", "take_distances"]


@inlined
def _take(state, start, slots, words, position):
    """The state after a symbol, and the next word's position. A word is looked at even if it is not needed."""
    state = slots * (state >> PROBABILITY_BITS) + (state & SLOT_MASK) - start
    empty = np.int64(state < LEAST_STATE)
    word = np.int64(words[U(position)])
    return (state << (empty << 5)) | (word & -empty), position + empty


@inlined
def _take_bit(state, words, position, odds, index):
    zero = (np.int64(odds[U(index)]) >> 8) << ODDS_SHIFT
    bit = np.int64((state & SLOT_MASK) >= zero)
    state, position = _take(state, zero & -bit, zero + ((SLOTS - 2 * zero) & -bit), words, position)
    learn(odds, index, bit)
    return state, position, bit


@inlined
def _take_distance(state, words, position, base, odds):
    """A distance of more than one value."""
    state, position, more = _take_bit(state, words, position, odds, base)
    if more == 0:
        return state, position, np.int64(2)
    node = 1
    for _ in range(5):
        state, position, bit = _take_bit(state, words, position, odds, base + node)
        node = 2 * node + bit
    length = node - 31
    more, rest, node, tree = 1, length - 1, 1, base + TOP_TREES + 8 * (length - 1)
    while rest > 0 and node < 8:
        rest -= 1
        state, position, bit = _take_bit(state, words, position, odds, tree + node)
        node = 2 * node + bit
        more = 2 * more + bit
    while rest > 0:
        taken = min(rest, 8)
        rest -= taken
        value = (state & SLOT_MASK) >> (PROBABILITY_BITS - taken)
        state, position = _take(state, value << (PROBABILITY_BITS - taken), SLOTS >> taken, words, position)
        more = (more << taken) | value
    return state, position, more + 2


@inlined
def first_states(words, lanes, table):
    """The state of each lane, from the first words."""
    for lane in range(lanes):
        state = np.int64(words[2 * lane]) | (np.int64(words[2 * lane + 1]) << 32)
        table[STATE + lane] = state & STATE_MASK


@inlined
def take_distances(old, words, position, pending, lanes, shift, sign, far, odds, table, distances):
    """Takes the long steps of a piece from the lanes in turn, and applies them. Returns the next word."""
    last = words.size - WORDS_AHEAD
    for number in range(pending):
        lane, element = number & (lanes - 1), distances[U(number)] >> 1
        before = np.int64(old[U(element)])
        base = ((before >> shift) & (far.size - 1)) * STEP_ODDS
        table[U(STATE + lane)], position, distance = _take_distance(
            table[U(STATE + lane)], words, min(position, last), base, odds
        )
        step = distance * (1 - 2 * (distances[U(number)] & 1))
        old[U(element)] = unordered((ordered(before, sign) + step) & (2 * sign - 1), sign)
    return position


@inlined
def _seek(sums, at, end, hazard):
    """The first element from `at` that brings the hazard since then to `hazard`, at least 1; `end` when there is none.

    Counting in a vector costs less than halving a window, and that less than a walk: where a walk ends, nothing can foretell.
    """
    base = np.int64(sums[U(at)])
    block = at // COUNTED
    passed = count_below(sums, COARSE + block + 1, base, hazard)
    while passed == COUNTED and block < end // COUNTED:
        block += COUNTED
        passed = count_below(sums, COARSE + block + 1, base, hazard)
    first = (block + passed) * COUNTED
    # Entries before `at` are 2^32 above it and do not count.
    return min(max(at, first) + count_below(sums, first, base, hazard) - 1, end)


@inlined
def _next_change(sums, at, end, element, slot):
    """The element that a slot names, searched from `element`, its slots' start and number, and whether it changes.

    If it does not, the gap is only coded up to its end there.
    """
    while element < end:
        passed = hazard_passed(sums, at, element + 1)
        below = survival(passed)
        if slot >= below:
            return element, below, survival(hazard_passed(sums, at, element)) - below, True
        if passed >= HAZARD_LIMIT:
            return element, 0, below, False
        element += 1
    return end - 1, 0, survival(hazard_passed(sums, at, end)), False


@inlined
def _seek_all(lanes, sums, table):
    """Where the next symbol of each lane is, or shortly before."""
    for lane in range(lanes):
        at = table[U(AT + lane)]
        hazard = max(min(hazard_before(table[U(STATE + lane)] & SLOT_MASK), HAZARD_LIMIT), 1)
        table[U(ELEMENT + lane)] = _seek(sums, at, table[U(END + lane)], hazard)


@inlined
def _take_position(old, words, position, start, lane, shift, sign, sums, far, hits, table):
    """Takes a lane's symbol and applies it, unless it says "farther". Returns the next word and whether it does."""
    state, at = table[U(STATE + lane)], table[U(AT + lane)]
    slot = state & SLOT_MASK
    element, below, width, changes = _next_change(
        sums, at, table[U(END + lane)], table[U(ELEMENT + lane)], slot
    )
    table[U(AT + lane)] = element + 1
    if not changes:
        table[U(STATE + lane)], position = _take(state, below, width, words, position)
        return position, np.int64(0), np.int64(0)
    before = np.int64(old[U(start + element)])
    context = (before >> shift) & (far.size - 1)
    slots, half = share_slots(width, np.int64(far[U(context)]))
    distant = np.int64(slot < below + 2 * slots)
    down = np.int64(slot >= below + slots + ((slots + half) & (distant - 1)))
    first, number = slots_of(width, slots, half, distant, down)
    table[U(STATE + lane)], position = _take(state, below + first, number, words, position)
    hits[U(context * MOST_LANES + lane)] += 1 + (distant << 32)
    old[U(start + element)] = neighbour(before, down, sign) if distant == 0 else before
    return position, distant, down


@kernel
def decode(
    old, words, lanes, shift, sign, hazards, far, seen, changed, farther, odds, pieces, counts, hits, sums,
    table, distances,
):  # fmt: skip
    """Applies the coded changes of one tensor in place."""
    first_states(words, lanes, table)
    position, start, last = 2 * lanes, 0, words.size - WORDS_AHEAD
    while start < old.size:
        size = piece_size(old, start, pieces)
        measure(old, start, size, shift, hazards, sums, counts)
        place_lanes(size, lanes, table)
        active, pending = 1, 0
        while active > 0:
            active, position = 0, min(position, last)
            _seek_all(lanes, sums, table)
            for lane in range(lanes):
                if table[U(AT + lane)] < table[U(END + lane)]:
                    active += 1
                    position, distant, down = _take_position(
                        old, words, position, start, lane, shift, sign, sums, far, hits, table
                    )
                    distances[U(pending)] = 2 * (start + table[U(AT + lane)] - 1) + down
                    pending += distant
        position = take_distances(
            old, words, position, pending, lanes, shift, sign, far, odds, table, distances
        )
        relearn(counts, hits, seen, changed, farther, hazards, far)
        start += size
