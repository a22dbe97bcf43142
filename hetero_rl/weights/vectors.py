"""A few instructions on vectors that numba has no name for, in LLVM's terms, for any processor. Needs numba. See `emitting`."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hetero_rl.weights.emitting import SHORT, WORD, address, call, gather, load, same, shifted, store

__all__ = [
    "COUNTED",
    "FLAGGED",
    "below",
    "count_below",
    "fetch",
    "flags_of_changes",
    "lowest_bit",
    "sum_hazards",
]

COUNTED = 16
"""Entries that `count_below` looks at."""
FLAGGED = 64
"""Elements that `flags_of_changes` looks at."""


def below(builder: Any, place: Any, base: Any, bound: Any) -> Any:
    """A bit for each of the `COUNTED` entries from a place: whether it is less than a bound above a base, modulo 2^32."""
    low, limit = (same(builder, builder.trunc(number, SHORT), COUNTED) for number in (base, bound))
    above = builder.sub(load(builder, place, COUNTED), low)
    return builder.bitcast(builder.icmp_unsigned("<", above, limit), ir.IntType(COUNTED))


@intrinsic
def count_below(_context, array, _start, _base, _bound):
    """How many of the `COUNTED` entries of a uint32 array from a start are less than a bound above a base, modulo 2^32."""

    def emit(context, builder, signature, arguments):
        values, start, base, bound = arguments
        flags = below(builder, address(context, builder, signature.args[0], values, start), base, bound)
        return builder.zext(call(builder, "llvm.ctpop", flags), WORD)

    return types.int64(array, types.int64, types.int64, types.int64), emit


@intrinsic
def sum_hazards(_context, sums, _at, _total, hazards, bits, _start, _shift):
    """Writes the running sum before each of the `COUNTED` elements from a start to `sums`; returns the sum after them.

    It begins with a total; each element adds the hazard at its bits without the lowest ones.
    """

    def emit(context, builder, signature, arguments):
        into, at, total, table, old, start, shift = arguments
        found = load(builder, address(context, builder, signature.args[4], old, start), COUNTED)
        if found.type.element.width < SHORT.width:
            found = builder.zext(found, ir.VectorType(SHORT, COUNTED))
        index = builder.lshr(found, same(builder, builder.trunc(shift, SHORT), COUNTED))
        first = address(context, builder, signature.args[3], table, ir.Constant(WORD, 0))
        passed = gather(builder, first, index)
        for by in (1, 2, 4, 8):
            passed = builder.add(passed, shifted(builder, passed, by))
        before = same(builder, builder.trunc(total, SHORT), COUNTED)
        before = builder.add(before, shifted(builder, passed, 1))
        store(builder, address(context, builder, signature.args[0], into, at), before)
        last = builder.extract_element(passed, ir.Constant(SHORT, COUNTED - 1))
        return builder.add(total, builder.zext(last, WORD))

    kinds = (sums, types.int64, types.int64, hazards, bits, types.int64, types.int64)
    return types.int64(*kinds), emit


@intrinsic
def fetch(_context, array, _start):
    """Asks for the memory of an element before it is needed; one beyond the end does no harm."""

    def emit(context, builder, signature, arguments):
        place = address(context, builder, signature.args[0], *arguments)
        numbers = [
            ir.Constant(SHORT, number) for number in (0, 3, 1)
        ]  # to read, and to keep in each cache: data
        kind = ir.FunctionType(ir.VoidType(), [place.type, SHORT, SHORT, SHORT])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [place, *numbers])
        return context.get_dummy_value()

    return types.void(array, types.int64), emit


@intrinsic
def flags_of_changes(_context, old, new, _start):
    """One bit for each of the `FLAGGED` elements from a start, the first one lowest: whether two arrays differ there."""

    def emit(context, builder, signature, arguments):
        left, right, at = arguments
        values = [
            load(builder, address(context, builder, kind, array, at), FLAGGED)
            for kind, array in zip(signature.args, (left, right), strict=False)
        ]
        return builder.bitcast(builder.icmp_unsigned("!=", *values), WORD)

    return types.int64(old, new, types.int64), emit


@intrinsic
def lowest_bit(_context, _flags):
    """The place of the lowest bit that is set; of 0, 64."""

    def emit(_target, builder, _signature, arguments):
        return call(builder, "llvm.cttz", arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), emit
