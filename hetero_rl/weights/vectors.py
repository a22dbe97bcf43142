"""A few instructions on vectors that numba has no name for, in LLVM's terms, for any processor. Needs numba.

Each is emitted into the loop that calls it, and LLVM picks the widest vectors that the processor has. numba's cache notices a change
of a kernel's own file only: after a change here, `kernels` and `comparison` must be touched as well.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["COUNTED", "FLAGGED", "count_below", "flags_of_changes", "lowest_bit"]

COUNTED = 16
"""Entries that `count_below` looks at."""
FLAGGED = 64
"""Elements that `flags_of_changes` looks at."""
_WORD = ir.IntType(64)


def _load(context: Any, builder: Any, kind: Any, array: Any, start: Any, count: int) -> Any:
    """`count` elements of a contiguous array from an index that is in bounds, wherever in memory they lie."""
    element = context.get_data_type(kind.dtype)
    data = context.make_array(kind)(context, builder, array).data
    place = builder.bitcast(builder.gep(data, [start]), ir.VectorType(element, count).as_pointer())
    return builder.load(place, align=element.width // 8)


def _same(builder: Any, value: Any, count: int) -> Any:
    """A vector of one value."""
    empty = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(ir.IntType(32), 0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), count), [0] * count)
    return builder.shuffle_vector(first, empty, mask)


def _call(builder: Any, name: str, *arguments: Any) -> Any:
    """LLVM's own function on integers of 64 or fewer bits."""
    kind = arguments[0].type
    declared = ir.FunctionType(kind, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, declared, f"{name}.i{kind.width}")
    return builder.call(function, arguments)


@intrinsic
def count_below(_context, array, _start, _base, _bound):
    """How many of the `COUNTED` entries of a uint32 array from a start are less than a bound above a base, modulo 2^32."""

    def emit(context, builder, signature, arguments):
        values, at, low, limit = arguments
        found = _load(context, builder, signature.args[0], values, at, COUNTED)
        low, limit = (builder.trunc(number, ir.IntType(32)) for number in (low, limit))
        above = builder.sub(found, _same(builder, low, COUNTED))
        below = builder.icmp_unsigned("<", above, _same(builder, limit, COUNTED))
        flags = builder.bitcast(below, ir.IntType(COUNTED))
        return builder.zext(_call(builder, "llvm.ctpop", flags), _WORD)

    return types.int64(array, types.int64, types.int64, types.int64), emit


@intrinsic
def flags_of_changes(_context, old, new, _start):
    """One bit for each of the `FLAGGED` elements from a start, the first one lowest: whether two arrays differ there."""

    def emit(context, builder, signature, arguments):
        left, right, at = arguments
        values = [
            _load(context, builder, kind, array, at, FLAGGED)
            for kind, array in zip(signature.args, (left, right), strict=False)
        ]
        return builder.bitcast(builder.icmp_unsigned("!=", *values), _WORD)

    return types.int64(old, new, types.int64), emit


@intrinsic
def lowest_bit(_context, _flags):
    """The place of the lowest bit that is set; of 0, 64."""

    def emit(_target, builder, _signature, arguments):
        return _call(builder, "llvm.cttz", arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), emit
