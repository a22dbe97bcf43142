"""The compiled loops of the delta codec: interleaved rANS coders whose gaps are measured in hazard. Needs numba.

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
negative ones. numba's cache notices a change of this file only. A damaged stream decodes to wrong weights, never out of
bounds.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

from hetero_rl.weights.hazards import EVEN_ODDS, hazard_before, inlined, learn, nats, survival
from hetero_rl.weights.survival import HAZARD_LIMIT, HAZARD_TOP, PROBABILITY_BITS
from hetero_rl.weights.vectors import COUNTED, count_below

__all__ = [
    "EVEN_ODDS", "LANE_TABLE", "MOST_DISTANCES", "MOST_LANES", "PIECE_ROOM", "STEP_ODDS", "SYMBOLS_PER_CHANGE", "WORDS_AHEAD",
    "decode", "note", "write",
]  # fmt: skip

_Function = TypeVar("_Function", bound=Callable[..., Any])


# No kernel allocates: without numba's own run time (_nrt) the loops are free of reference counts, and twice as fast.
def _kernel(function: _Function) -> _Function:
    compiled: _Function = numba.njit(cache=True, nogil=True, _nrt=False, error_model="numpy")(function)
    return compiled


U = np.uint64
_LONGEST_HAZARD = HAZARD_TOP - HAZARD_LIMIT
_SHORTEST_HAZARD = 64  # so that the slots of a change can be shared

# A state is in [2^31, 2^63) between symbols; a symbol has at least 1 of 2^30 slots, so one word at a time is enough.
_SLOTS = 1 << PROBABILITY_BITS
_SLOT_MASK = _SLOTS - 1
_LEAST_STATE = 1 << 31
_STATE_MASK = (1 << 63) - 1
_WORD_MASK = (1 << 32) - 1

_ODDS_SHIFT = PROBABILITY_BITS - 16
# Odds of one exponent: a tree of 5 bits for the length of a distance, a tree of 3 for its top bits.
STEP_ODDS = 320
_TOP_TREES = 32

MOST_LANES = 8
SYMBOLS_PER_CHANGE = 14
"""At most: position and kind of step, whether more than two, five bits of length, three of the rest, four times eight."""
WORDS_AHEAD = 32
"""Zeros that follow the words: a round or a distance reads fewer, so that the decoder never reads beyond them."""
_SMALLEST_PIECE = 128
_LARGEST_PIECE = 65536
_SAMPLED = 2048
MOST_DISTANCES = _LARGEST_PIECE + MOST_LANES
_COARSE = _LARGEST_PIECE + 2 * COUNTED
PIECE_ROOM = _COARSE + _LARGEST_PIECE // COUNTED + 2 * COUNTED
"""Entries of the running sum: before each element and at the end, then every sixteenth of them; room for searches to look ahead."""
_HAZARDS_IN_REACH = 512
"""So many hazards and a limit are less than 2^32, where the running sum starts anew."""
# Columns of the lanes' table: element reached, end of the stretch, state; where the present round looks.
_AT, _END, _STATE, _ELEMENT, _CHANGE, _LAST = (MOST_LANES * column for column in range(6))
LANE_TABLE = MOST_LANES * 6


@inlined
def _passed(sums, start, stop):
    """The hazard of the elements from `start` to before `stop`; the running sum starts anew at 2^32."""
    return (np.int64(sums[U(stop)]) - np.int64(sums[U(start)])) & _WORD_MASK


@inlined
def _piece_size(old, start, pieces):
    """Elements of the piece from `start`: the first ones are small, so that statistics are there soon."""
    size = min(_SMALLEST_PIECE << min(pieces[0], 20), _LARGEST_PIECE)
    pieces[0] += 1
    return min(size, old.size - start)


@inlined
def _measure(old, start, size, shift, hazards, sums, counts):
    """The running sum of hazards over a piece, and a sample of its exponents, before any element is changed."""
    total, element, blocks = np.int64(0), 0, size // COUNTED
    for block in range(blocks):
        sums[U(_COARSE + block)] = total
        for _ in range(COUNTED):
            sums[U(element)] = total
            total += np.int64(hazards[U(old[U(start + element)]) >> U(shift)])
            element += 1
    sums[U(_COARSE + blocks)] = total
    while element < size:
        sums[U(element)] = total
        total += np.int64(hazards[U(old[U(start + element)]) >> U(shift)])
        element += 1
    for ahead in range(2 * COUNTED):
        sums[U(size + ahead)] = total
    for ahead in range(blocks + 1, blocks + 2 * COUNTED):
        sums[U(_COARSE + ahead)] = total
    stride = max(1, size // _SAMPLED)
    for element in range(start, start + size, stride):
        counts[(np.int64(old[U(element)]) >> shift) & (counts.size - 1)] += stride


@inlined
def _place_lanes(size, lanes, table):
    stretch = (size + lanes - 1) // lanes
    for lane in range(lanes):
        table[_AT + lane] = min(lane * stretch, size)
        table[_END + lane] = min(lane * stretch + stretch, size)


@inlined
def _relearn(counts, hits, seen, changed, farther, hazards, far):
    """New probabilities from a piece; counts are in 256ths and forget a sixteenth per piece."""
    contexts = counts.size
    for context in range(contexts):
        found = np.int64(0)
        for lane in range(MOST_LANES):
            found += hits[U(context * MOST_LANES + lane)]
            hits[U(context * MOST_LANES + lane)] = 0
        if counts[context] == 0 and found == 0:
            continue
        changes, distant = found & _WORD_MASK, found >> 32
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
def _share_slots(width, share):
    """Slots of "farther up" and of "one value up" out of those of a change; as many or one more say "down"."""
    far = max((width * share) >> 17, 1)
    return far, (width >> 1) - far


@inlined
def _slots_of(width, far, near, distant, down):
    """First and number of the slots of a kind of step, in the order: far up, far down, near up, near down."""
    size = near ^ ((near ^ far) & -distant)
    first = ((2 * far) & (distant - 1)) + (size & -down)
    return first, size + ((width & 1) & (distant - 1) & down)


@inlined
def _order(bits, sign):
    """Bits of a float as an integer that rises with its value; `_unorder` is the way back."""
    return bits ^ (sign | ((sign - 1) & -np.int64((bits & sign) != 0)))


@inlined
def _unorder(order, sign):
    return order ^ (sign | ((sign - 1) & -np.int64((order & sign) == 0)))


@inlined
def _neighbour(bits, down, sign):
    """The value next to a float's; `_order` and `_unorder` in less time, as zeros of two signs are rare."""
    negative = np.int64((bits & sign) != 0)
    after = bits + 1 - 2 * (down ^ negative)
    if (after ^ bits) & sign:
        return _unorder((_order(bits, sign) + 1 - 2 * down) & (2 * sign - 1), sign)
    return after


# ---- the sender ----


@inlined
def _symbol(start, slots, lane):
    return (lane << 60) | (start << 30) | slots


@inlined
def _note_bit(symbols, noted, lane, odds, index, bit):
    zero = (np.int64(odds[U(index)]) >> 8) << _ODDS_SHIFT
    symbols[U(noted)] = _symbol(zero & -bit, zero + ((_SLOTS - 2 * zero) & -bit), lane)
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
    rest, node, tree = length - 1, 1, base + _TOP_TREES + 8 * (length - 1)
    while rest > 0 and node < 8:
        rest -= 1
        bit = (more >> rest) & 1
        noted = _note_bit(symbols, noted, lane, odds, tree + node, bit)
        node = 2 * node + bit
    while rest > 0:
        taken = min(rest, 8)
        rest -= taken
        slots = _SLOTS >> taken
        symbols[U(noted)] = _symbol(slots * ((more >> rest) & ((1 << taken) - 1)), slots, lane)
        noted += 1
    return noted


@inlined
def _limit_reached(sums, at, stop):
    """Up to where a gap from `at` is coded by itself because its hazard reaches the limit; 0 when it does not."""
    reach = at
    while reach < stop and _passed(sums, at, reach) < HAZARD_LIMIT:
        reach = min(reach + _HAZARDS_IN_REACH, stop)
    if _passed(sums, at, reach) < HAZARD_LIMIT:
        return 0
    below = max(reach - _HAZARDS_IN_REACH, at)
    while reach - below > 1:
        middle = (below + reach) >> 1
        if _passed(sums, at, middle) < HAZARD_LIMIT:
            below = middle
        else:
            reach = middle
    return reach


@inlined
def _share_changes(index, change, start, lanes, table):
    """Where each lane's changes begin and end in `index`; returns the first one after the piece."""
    for lane in range(lanes):
        table[_CHANGE + lane] = change
        while change < index.size and index[U(change)] < start + table[_END + lane]:
            change += 1
        table[_LAST + lane] = change
    return change


@inlined
def _note_position(
    old, index, new, start, lane, noted, shift, sign, sums, far, hits, table, symbols,
    distances, pending,
):  # fmt: skip
    """Notes a lane's next change, or that none comes up to its end or a limit; keeps a long step for later."""
    at, change = table[_AT + lane], table[_CHANGE + lane]
    changes = change < table[_LAST + lane]
    stop = index[U(change)] - start if changes else table[_END + lane]
    reached = _limit_reached(sums, at, stop)
    if reached > 0 or not changes:
        reached = reached if reached > 0 else stop
        symbols[U(noted)] = _symbol(0, survival(_passed(sums, at, reached)), lane)
        table[_AT + lane] = reached
        return pending
    below = survival(_passed(sums, at, stop + 1))
    width = survival(_passed(sums, at, stop)) - below
    before = np.int64(old[U(start + stop)])
    context = (before >> shift) & (far.size - 1)
    step = _order(np.int64(new[U(change)]), sign) - _order(before, sign)
    distant, down = np.int64(abs(step) > 1), np.int64(step < 0)
    slots, half = _share_slots(width, np.int64(far[U(context)]))
    first, number = _slots_of(width, slots, half, distant, down)
    symbols[U(noted)] = _symbol(below + first, number, lane)
    hits[U(context * MOST_LANES + lane)] += 1 + (distant << 32)
    table[_AT + lane], table[_CHANGE + lane] = stop + 1, change + 1
    distances[U(pending)] = (context << 34) | abs(step)
    return pending + distant


@_kernel
def note(
    old, index, new, symbols, lanes, shift, sign, hazards, far, seen, changed, farther, odds, pieces, counts, hits,
    sums, table, distances,
):  # fmt: skip
    """Notes the symbols that say that `old[index]` become `new`, in the decoder's order.

    Returns their number, or -1 when `symbols` has no room for them.
    """
    noted, start, following = 0, 0, 0
    while start < old.size:
        size = _piece_size(old, start, pieces)
        _measure(old, start, size, shift, hazards, sums, counts)
        _place_lanes(size, lanes, table)
        following = _share_changes(index, following, start, lanes, table)
        before, pending = -1, 0
        while before < noted:
            before = noted
            if noted + lanes + pending * SYMBOLS_PER_CHANGE > symbols.size:
                return -1
            for lane in range(lanes):
                if table[_AT + lane] < table[_END + lane]:
                    pending = _note_position(
                        old, index, new, start, lane, noted, shift, sign, sums, far, hits, table, symbols,
                        distances, pending,
                    )  # fmt: skip
                    noted += 1
        for number in range(pending):
            lane, base = number & (lanes - 1), (distances[number] >> 34) * STEP_ODDS
            noted = _note_distance(symbols, noted, lane, distances[number] & ((1 << 34) - 1), base, odds)
        _relearn(counts, hits, seen, changed, farther, hazards, far)
        start += size
    return noted


@_kernel
def write(symbols, lanes, table, words):
    """Codes symbols from the last to the first, into the end of `words`; returns where they begin, -1 without room."""
    for lane in range(lanes):
        table[_STATE + lane] = _LEAST_STATE
    position, least = words.size, 2 * lanes + 1
    for number in range(symbols.size - 1, -1, -1):
        symbol = symbols[U(number)]
        lane, start, slots = symbol >> 60, (symbol >> 30) & _SLOT_MASK, symbol & _SLOT_MASK
        state = table[U(_STATE + lane)]
        if position < least:
            return -1
        full = np.int64((state >> 33) >= slots)  # which nothing can foretell: no branch on it
        words[U(position - 1)] = state & _WORD_MASK
        position -= full
        state >>= full << 5
        quotient = np.int64(U(state) // U(slots))
        table[U(_STATE + lane)] = (quotient << PROBABILITY_BITS) + state - quotient * slots + start
    for lane in range(lanes - 1, -1, -1):
        position -= 2
        state = table[_STATE + lane]
        words[position], words[position + 1] = state & _WORD_MASK, state >> 32
    return position


# ---- the receiver ----


@inlined
def _take(state, start, slots, words, position):
    """The state after a symbol, and the next word's position. A word is looked at even if it is not needed."""
    state = slots * (state >> PROBABILITY_BITS) + (state & _SLOT_MASK) - start
    empty = np.int64(state < _LEAST_STATE)
    word = np.int64(words[U(position)])
    return (state << (empty << 5)) | (word & -empty), position + empty


@inlined
def _take_bit(state, words, position, odds, index):
    zero = (np.int64(odds[U(index)]) >> 8) << _ODDS_SHIFT
    bit = np.int64((state & _SLOT_MASK) >= zero)
    state, position = _take(state, zero & -bit, zero + ((_SLOTS - 2 * zero) & -bit), words, position)
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
    more, rest, node, tree = 1, length - 1, 1, base + _TOP_TREES + 8 * (length - 1)
    while rest > 0 and node < 8:
        rest -= 1
        state, position, bit = _take_bit(state, words, position, odds, tree + node)
        node = 2 * node + bit
        more = 2 * more + bit
    while rest > 0:
        taken = min(rest, 8)
        rest -= taken
        value = (state & _SLOT_MASK) >> (PROBABILITY_BITS - taken)
        state, position = _take(state, value << (PROBABILITY_BITS - taken), _SLOTS >> taken, words, position)
        more = (more << taken) | value
    return state, position, more + 2


@inlined
def _seek(sums, at, end, hazard):
    """The first element from `at` that brings the hazard since then to `hazard`, at least 1; `end` when there is none.

    Counting in a vector costs less than halving a window, and that less than a walk: where a walk ends, nothing can foretell.
    """
    base = np.int64(sums[U(at)])
    block = at // COUNTED
    passed = count_below(sums, _COARSE + block + 1, base, hazard)
    while passed == COUNTED and block < end // COUNTED:
        block += COUNTED
        passed = count_below(sums, _COARSE + block + 1, base, hazard)
    first = (block + passed) * COUNTED
    # Entries before `at` are 2^32 above it and do not count.
    return min(max(at, first) + count_below(sums, first, base, hazard) - 1, end)


@inlined
def _next_change(sums, at, end, element, slot):
    """The element that a slot names, searched from `element`, its slots' start and number, and whether it changes.

    If it does not, the gap is only coded up to its end there.
    """
    while element < end:
        passed = _passed(sums, at, element + 1)
        below = survival(passed)
        if slot >= below:
            return element, below, survival(_passed(sums, at, element)) - below, True
        if passed >= HAZARD_LIMIT:
            return element, 0, below, False
        element += 1
    return end - 1, 0, survival(_passed(sums, at, end)), False


@inlined
def _seek_all(lanes, sums, table):
    """Where the next symbol of each lane is, or shortly before."""
    for lane in range(lanes):
        at = table[U(_AT + lane)]
        hazard = max(min(hazard_before(table[U(_STATE + lane)] & _SLOT_MASK), HAZARD_LIMIT), 1)
        table[U(_ELEMENT + lane)] = _seek(sums, at, table[U(_END + lane)], hazard)


@inlined
def _take_position(old, words, position, start, lane, shift, sign, sums, far, hits, table):
    """Takes a lane's symbol and applies it, unless it says "farther". Returns the next word and whether it does."""
    state, at = table[U(_STATE + lane)], table[U(_AT + lane)]
    slot = state & _SLOT_MASK
    element, below, width, changes = _next_change(
        sums, at, table[U(_END + lane)], table[U(_ELEMENT + lane)], slot
    )
    table[U(_AT + lane)] = element + 1
    if not changes:
        table[U(_STATE + lane)], position = _take(state, below, width, words, position)
        return position, np.int64(0), np.int64(0)
    before = np.int64(old[U(start + element)])
    context = (before >> shift) & (far.size - 1)
    slots, half = _share_slots(width, np.int64(far[U(context)]))
    distant = np.int64(slot < below + 2 * slots)
    down = np.int64(slot >= below + slots + ((slots + half) & (distant - 1)))
    first, number = _slots_of(width, slots, half, distant, down)
    table[U(_STATE + lane)], position = _take(state, below + first, number, words, position)
    hits[U(context * MOST_LANES + lane)] += 1 + (distant << 32)
    old[U(start + element)] = _neighbour(before, down, sign) if distant == 0 else before
    return position, distant, down


@_kernel
def decode(
    old, words, lanes, shift, sign, hazards, far, seen, changed, farther, odds, pieces, counts, hits, sums,
    table, distances,
):  # fmt: skip
    """Applies the coded changes of one tensor in place."""
    for lane in range(lanes):
        state = np.int64(words[2 * lane]) | (np.int64(words[2 * lane + 1]) << 32)
        table[_STATE + lane] = state & _STATE_MASK
    position, start, last = 2 * lanes, 0, words.size - WORDS_AHEAD
    while start < old.size:
        size = _piece_size(old, start, pieces)
        _measure(old, start, size, shift, hazards, sums, counts)
        _place_lanes(size, lanes, table)
        active, pending = 1, 0
        while active > 0:
            active, position = 0, min(position, last)
            _seek_all(lanes, sums, table)
            for lane in range(lanes):
                if table[U(_AT + lane)] < table[U(_END + lane)]:
                    active += 1
                    position, distant, down = _take_position(
                        old, words, position, start, lane, shift, sign, sums, far, hits, table
                    )
                    distances[U(pending)] = 2 * (start + table[U(_AT + lane)] - 1) + down
                    pending += distant
        for number in range(pending):
            lane, element = number & (lanes - 1), distances[U(number)] >> 1
            before = np.int64(old[U(element)])
            base = ((before >> shift) & (far.size - 1)) * STEP_ODDS
            table[U(_STATE + lane)], position, distance = _take_distance(
                table[U(_STATE + lane)], words, min(position, last), base, odds
            )
            step = distance * (1 - 2 * (distances[U(number)] & 1))
            old[U(element)] = _unorder((_order(before, sign) + step) & (2 * sign - 1), sign)
        _relearn(counts, hits, seen, changed, farther, hazards, far)
        start += size
