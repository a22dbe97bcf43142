"""The sender's loops of the delta codec; see `pieces`. Needs numba."""

import numpy as np

from hetero_rl.weights.hazards import inlined, learn, survival
from hetero_rl.weights.pieces import (
    AT,
    CHANGE,
    END,
    HAZARDS_IN_REACH,
    LAST,
    LEAST_STATE,
    MOST_LANES,
    ODDS_SHIFT,
    SLOT_MASK,
    SLOTS,
    STATE,
    STEP_ODDS,
    SYMBOLS_PER_CHANGE,
    TOP_TREES,
    WORD_MASK,
    U,
    hazard_passed,
    kernel,
    measure,
    ordered,
    piece_size,
    place_lanes,
    relearn,
    share_slots,
    slots_of,
)  # fmt: skip
from hetero_rl.weights.survival import HAZARD_LIMIT, PROBABILITY_BITS

__all__ = ["note", "write"]


@inlined
def _symbol(start, slots, lane):
    return (lane << 60) | (start << 30) | slots


@inlined
def _note_bit(symbols, noted, lane, odds, index, bit):
    zero = (np.int64(odds[U(index)]) >> 8) << ODDS_SHIFT
    symbols[U(noted)] = _symbol(zero & -bit, zero + ((SLOTS - 2 * zero) & -bit), lane)
    learn(odds, index, bit)
    return noted + 1


@inlined
def _note_distance(symbols, noted, lane, distance, base, odds):
    """A distance of more than one value: whether it is more than two, then how much more."""
    more = distance - 2
    noted = _note_bit(symbols, noted, lane, odds, base, np.int64(more > 0))
    if more == 0:
        return noted
    length = 0
    while (more >> length) > 0:
        length += 1
    node = 1
    for shift in range(4, -1, -1):
        bit = ((length - 1) >> shift) & 1
        noted = _note_bit(symbols, noted, lane, odds, base + node, bit)
        node = 2 * node + bit
    rest, node, tree = length - 1, 1, base + TOP_TREES + 8 * (length - 1)
    while rest > 0 and node < 8:
        rest -= 1
        bit = (more >> rest) & 1
        noted = _note_bit(symbols, noted, lane, odds, tree + node, bit)
        node = 2 * node + bit
    while rest > 0:
        taken = min(rest, 8)
        rest -= taken
        slots = SLOTS >> taken
        symbols[U(noted)] = _symbol(slots * ((more >> rest) & ((1 << taken) - 1)), slots, lane)
        noted += 1
    return noted


@inlined
def _limit_reached(sums, at, stop):
    """Up to where a gap from `at` is coded by itself because its hazard reaches the limit; 0 when it does not."""
    reach = at
    while reach < stop and hazard_passed(sums, at, reach) < HAZARD_LIMIT:
        reach = min(reach + HAZARDS_IN_REACH, stop)
    if hazard_passed(sums, at, reach) < HAZARD_LIMIT:
        return 0
    below = max(reach - HAZARDS_IN_REACH, at)
    while reach - below > 1:
        middle = (below + reach) >> 1
        if hazard_passed(sums, at, middle) < HAZARD_LIMIT:
            below = middle
        else:
            reach = middle
    return reach


@inlined
def _share_changes(index, change, start, lanes, table):
    """Where each lane's changes begin and end in `index`; returns the first one after the piece."""
    for lane in range(lanes):
        table[CHANGE + lane] = change
        while change < index.size and index[U(change)] < start + table[END + lane]:
            change += 1
        table[LAST + lane] = change
    return change


@inlined
def _note_position(
    old, index, new, start, lane, noted, shift, sign, sums, far, hits, table, symbols,
    distances, pending,
):  # fmt: skip
    """Notes a lane's next change, or that none comes up to its end or a limit; keeps a long step for later."""
    at, change = table[AT + lane], table[CHANGE + lane]
    changes = change < table[LAST + lane]
    stop = index[U(change)] - start if changes else table[END + lane]
    reached = _limit_reached(sums, at, stop)
    if reached > 0 or not changes:
        reached = reached if reached > 0 else stop
        symbols[U(noted)] = _symbol(0, survival(hazard_passed(sums, at, reached)), lane)
        table[AT + lane] = reached
        return pending
    below = survival(hazard_passed(sums, at, stop + 1))
    width = survival(hazard_passed(sums, at, stop)) - below
    before = np.int64(old[U(start + stop)])
    context = (before >> shift) & (far.size - 1)
    step = ordered(np.int64(new[U(change)]), sign) - ordered(before, sign)
    distant, down = np.int64(abs(step) > 1), np.int64(step < 0)
    slots, half = share_slots(width, np.int64(far[U(context)]))
    first, number = slots_of(width, slots, half, distant, down)
    symbols[U(noted)] = _symbol(below + first, number, lane)
    hits[U(context * MOST_LANES + lane)] += 1 + (distant << 32)
    table[AT + lane], table[CHANGE + lane] = stop + 1, change + 1
    distances[U(pending)] = (context << 34) | abs(step)
    return pending + distant


@kernel
def note(
    old, index, new, symbols, lanes, shift, sign, hazards, far, seen, changed, farther, odds, pieces, counts, hits,
    sums, table, distances,
):  # fmt: skip
    """Notes the symbols that say that `old[index]` become `new`, in the decoder's order.

    Returns their number, or -1 when `symbols` has no room for them.
    """
    noted, start, following = 0, 0, 0
    while start < old.size:
        size = piece_size(old, start, pieces)
        measure(old, start, size, shift, hazards, sums, counts)
        place_lanes(size, lanes, table)
        following = _share_changes(index, following, start, lanes, table)
        before, pending = -1, 0
        while before < noted:
            before = noted
            if noted + lanes + pending * SYMBOLS_PER_CHANGE > symbols.size:
                return -1
            for lane in range(lanes):
                if table[AT + lane] < table[END + lane]:
                    pending = _note_position(
                        old, index, new, start, lane, noted, shift, sign, sums, far, hits, table, symbols,
                        distances, pending,
                    )  # fmt: skip
                    noted += 1
        for number in range(pending):
            lane, base = number & (lanes - 1), (distances[number] >> 34) * STEP_ODDS
            noted = _note_distance(symbols, noted, lane, distances[number] & ((1 << 34) - 1), base, odds)
        relearn(counts, hits, seen, changed, farther, hazards, far)
        start += size
    return noted


@kernel
def write(symbols, lanes, table, words):
    """Codes symbols from the last to the first, into the end of `words`; returns where they begin, -1 without room."""
    for lane in range(lanes):
        table[STATE + lane] = LEAST_STATE
    position, least = words.size, 2 * lanes + 1
    for number in range(symbols.size - 1, -1, -1):
        symbol = symbols[U(number)]
        lane, start, slots = symbol >> 60, (symbol >> 30) & SLOT_MASK, symbol & SLOT_MASK
        state = table[U(STATE + lane)]
        if position < least:
            return -1
        full = np.int64((state >> 33) >= slots)  # which nothing can foretell: no branch on it
        words[U(position - 1)] = state & WORD_MASK
        position -= full
        state >>= full << 5
        quotient = np.int64(U(state) // U(slots))
        table[U(STATE + lane)] = (quotient << PROBABILITY_BITS) + state - quotient * slots + start
    for lane in range(lanes - 1, -1, -1):
        position -= 2
        state = table[STATE + lane]
        words[position], words[position + 1] = state & WORD_MASK, state >> 32
    return position
