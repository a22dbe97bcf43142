"""The receiver's loop of the delta codec with all lanes in one vector; see `pieces`. Needs numba.

    states ──► hazard sought ──► two counts per lane ──► element of each ──► slots ──► states, words ──┐
      ▲                          (three if it is far)        └── bits, share of "farther" ──┘          │
      └────────────────────────────────────────────────────────────────────────────────────────────────┘
    of each lane by itself, beside the next round: the element, its count and its distance are written

Gives the bits that `receiver` gives. Faster only where a processor takes entries of a table for a whole vector, as those
with AVX-512 do; `decoders` finds out.
"""

import numpy as np

from hetero_rl.weights.hazards import (
    FALL_MASK,
    FINE_MASK,
    LINE_FALLS,
    LINE_STARTS,
    RANGE_BITS,
    SURVIVAL_COARSE,
    SURVIVAL_FINE,
    inlined,
)  # fmt: skip
from hetero_rl.weights.lanes import (
    LANES,
    any_of,
    count_first_below_each,
    count_of,
    expand,
    flags_of,
    gather,
    highest,
    load,
    lowest,
    numbers,
    seek_each,
    store,
    times,
    where,
)  # fmt: skip
from hetero_rl.weights.pieces import (
    AT,
    CHANGE,
    COARSE,
    COARSEST,
    ELEMENT,
    FETCHED_AHEAD,
    LAST,
    LEAST_STATE,
    MOST_LANES,
    SLOT_MASK,
    STATE,
    WORD_MASK,
    WORDS_AHEAD,
    U,
    finish_measuring,
    kernel,
    neighbour,
    piece_size,
    relearn,
)  # fmt: skip
from hetero_rl.weights.receiver import first_states, take_distances
from hetero_rl.weights.survival import FINE_BITS, HAZARD_LIMIT, PROBABILITY_BITS
from hetero_rl.weights.vectors import COUNTED, fetch, sum_hazards

__all__ = ["decode"]

if LANES != MOST_LANES:
    raise AssertionError(f"a vector has {LANES} lanes, the format {MOST_LANES}")

_BLOCK_BITS = 4
_REACH_BITS = 8
"""Elements that two counts look at, from the start of a block."""
# Columns of the lanes' table while a round is written: its element, new bits, context, kind of step.
_PLACE, _BITS, _CONTEXT, _KIND = ELEMENT, CHANGE, LAST, AT


@inlined
def _measure(old, start, size, shift, hazards, sums, counts):
    """As `pieces.measure`."""
    total = 0
    for block in range(size // COUNTED):
        sums[U(COARSE + block)] = total
        element = start + block * COUNTED
        fetch(old, element + FETCHED_AHEAD)
        total = sum_hazards(sums, block * COUNTED, total, hazards, old, element, shift)
    finish_measuring(old, start, size, shift, hazards, sums, counts, total)


@inlined
def _survival(hazard):
    coarse = gather(SURVIVAL_COARSE, hazard >> FINE_BITS)
    return times(coarse, gather(SURVIVAL_FINE, hazard & FINE_MASK)) >> PROBABILITY_BITS


@inlined
def _hazard_before(slot):
    part = slot >> RANGE_BITS
    fall = times(gather(LINE_FALLS, part), slot & FALL_MASK)
    return gather(LINE_STARTS, part) - (fall >> RANGE_BITS)


@inlined
def _passed(sums, base, stop):
    """The hazard from where the running sum was `base` to before `stop`."""
    return (gather(sums, stop) - base) & WORD_MASK


@inlined
def _seek(sums, at, base, hazard, final):
    """The first element from `at` that brings the hazard since then to `hazard`; `final` when there is none."""
    element = seek_each(sums, COARSE + 1, at, base, hazard) - 1
    far = ((element >> _BLOCK_BITS) >= (at >> _BLOCK_BITS) + COUNTED) & (element < final)
    if any_of(far):
        top, end = at >> _REACH_BITS, final >> _REACH_BITS
        # Hazards of 4096 elements may exceed 2^32: those after the first one that is not below do not count.
        passed = count_first_below_each(sums, top + (COARSEST + 1), base, hazard)
        farther = (passed == COUNTED) & (top < end)
        while any_of(farther):
            top += farther << _BLOCK_BITS
            passed = where(farther, count_first_below_each(sums, top + (COARSEST + 1), base, hazard), passed)
            farther &= (passed == COUNTED) & (top < end)
        first = highest(at, (top + passed) << _REACH_BITS)
        element = seek_each(sums, COARSE + 1, lowest(first, final), base, hazard) - 1
    return lowest(element, final)


@inlined
def _next_change(sums, base, element, final, slot):
    """The element that a slot names, searched from `element`, and the first slot of its change.

    A slot below that says that nothing changes up to and with this element.
    """
    passed = _passed(sums, base, element + 1)
    below = _survival(passed)
    further = (slot < below) & (passed < HAZARD_LIMIT) & (element < final)
    while any_of(further):
        element += further
        passed = _passed(sums, base, element + 1)
        below = _survival(passed)
        further = (slot < below) & (passed < HAZARD_LIMIT) & (element < final)
    return element, below


@inlined
def _step_of(slot, below, width, share):
    """Whether a change is by more than one value, whether down, and its slots: those of `pieces.slots_of`."""
    far = highest(times(width, share) >> 17, 1)
    near = (width >> 1) - far
    second = below + (far << 1)
    distant = slot < second
    number = where(distant, far, near)
    middle = where(distant, below, second) + number
    down = slot >= middle
    # The last kind, one value down, has a slot more if their number is odd.
    odd = width & down & (distant ^ 1)
    return distant, down, where(down, middle, middle - number), number + odd


@inlined
def _take(states, slot, first, number):
    """The states after a symbol, before those that are low have taken a word."""
    quotient = states >> PROBABILITY_BITS
    # Of 33 bits, the highest one apart.
    high = (number & (0 - (quotient >> 32))) << 32
    return times(number, quotient) + high + slot - first


@inlined
def _write(old, sign, changes, crossing, pending, hits, table, distances):
    """Writes the round that is in the table, lane by lane; returns how many distances are to follow."""
    if crossing != 0:
        for lane in range(MOST_LANES):
            if (crossing >> lane) & 1:
                before = np.int64(old[U(table[_PLACE + lane])])
                table[_BITS + lane] = neighbour(before, table[_KIND + lane] & 1, sign)
    for lane in range(MOST_LANES):
        if (changes >> lane) & 1:
            element, kind = table[U(_PLACE + lane)], table[U(_KIND + lane)]
            old[U(element)] = table[U(_BITS + lane)]
            hits[U(table[U(_CONTEXT + lane)] * MOST_LANES + lane)] += 1 + ((kind >> 1) << 32)
            distances[U(pending)] = 2 * element + (kind & 1)
            pending += kind >> 1
    return pending


@inlined
def _round(
    old, words, position, start, shift, sign, states, at, end, sums, far, hits, table, distances, pending
):
    """Takes a symbol of every lane that has not reached its end."""
    active, slot, base = at < end, states & SLOT_MASK, gather(sums, at)
    final = highest(end - 1, at)  # a lane at its end looks where it is, so that each index is in bounds
    hazard = highest(lowest(_hazard_before(slot), HAZARD_LIMIT), 1)
    element, below = _next_change(sums, base, _seek(sums, at, base, hazard, final), final, slot)
    changes = (slot >= below) & active
    width = _survival(_passed(sums, base, element)) - below
    before = gather(old, lowest(element + start, old.size - 1))
    context = (before >> shift) & (far.size - 1)
    distant, down, first, number = _step_of(slot, below, width, gather(far, context))
    after = _take(states, slot, where(changes, first, 0), where(changes, number, below))
    empty = (after < LEAST_STATE) & active
    after = where(empty, (after << 32) | expand(words, position, empty), after)
    near = before + 1 - ((down ^ ((before & sign) != 0)) << 1)
    store(table, _PLACE, element + start)
    store(table, _BITS, where(distant, before, near))
    store(table, _CONTEXT, context)
    store(table, _KIND, (distant << 1) | down)
    crossing = flags_of((near ^ before) & sign & (0 - changes) & (distant - 1))
    pending = _write(old, sign, flags_of(changes), crossing, pending, hits, table, distances)
    return where(active, after, states), where(active, element + 1, at), position + count_of(empty), pending


@kernel
def decode(
    old, words, lanes, shift, sign, hazards, far, seen, changed, farther, odds, pieces, counts, hits, sums,
    table, distances,
):  # fmt: skip
    """Applies the coded changes of one tensor in place."""
    first_states(words, lanes, table)
    for lane in range(lanes, MOST_LANES):
        table[STATE + lane] = LEAST_STATE
    position, start, last = 2 * lanes, 0, words.size - WORDS_AHEAD
    while start < old.size:
        size = piece_size(old, start, pieces)
        _measure(old, start, size, shift, hazards, sums, counts)
        stretch = (size + lanes - 1) // lanes
        at = lowest(times(numbers(), stretch), size)
        end = where(numbers() < lanes, lowest(at + stretch, size), at)
        states, pending = load(table, STATE), 0
        while any_of(at < end):
            states, at, position, pending = _round(
                old, words, min(position, last), start, shift, sign, states, at, end, sums, far, hits, table,
                distances, pending,
            )  # fmt: skip
        store(table, STATE, states)
        position = take_distances(
            old, words, position, pending, lanes, shift, sign, far, odds, table, distances
        )
        relearn(counts, hits, seen, changed, farther, hazards, far)
        start += size
