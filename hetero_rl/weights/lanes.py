"""Eight integers that a kernel works on at once, one of each lane: a type for numba with operators. See `emitting`.

Comparisons give 1 or 0 in each lane. Operators take a number in place of lanes on either side.
"""

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing import signature as of_types
from numba.extending import intrinsic, models, overload, register_model

from hetero_rl.weights import emitting
from hetero_rl.weights.emitting import SHORT, WORD, address, call, constant, same
from hetero_rl.weights.vectors import COUNTED, below

__all__ = [
    "LANES", "any_of", "count_first_below_each", "count_of", "expand", "flags_of", "gather", "highest",
    "load", "lowest", "numbers", "seek_each", "store", "times", "where",
]  # fmt: skip

LANES = 8
_VECTOR = ir.VectorType(WORD, LANES)
_FLAGS = ir.IntType(LANES)


class _Lanes(types.Type):
    def __init__(self) -> None:
        super().__init__(name="Lanes")


_LANES = _Lanes()


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


def _spread(builder: Any, value: Any) -> Any:
    """Lanes as they are; a number in each lane."""
    if value.type == _VECTOR:
        return value
    return same(builder, value if value.type == WORD else builder.zext(value, WORD), LANES)


def _of_numbers(emit: Callable[..., Any]) -> Any:
    """An instruction on two operands, each lanes or a number."""

    @intrinsic
    def run(_context, left, right):
        def spread(_target, builder, _signature, values):
            return emit(builder, *(_spread(builder, value) for value in values))

        return of_types(_LANES, left, right), spread

    return run


def _compares(how: str) -> Callable[..., Any]:
    return lambda builder, left, right: builder.zext(builder.icmp_signed(how, left, right), _VECTOR)


def _chooses(how: str) -> Callable[..., Any]:
    return lambda builder, left, right: builder.select(builder.icmp_signed(how, left, right), left, right)


def _multiplies(builder: Any, left: Any, right: Any) -> Any:
    half = constant(WORD, [(1 << 32) - 1] * LANES)
    return builder.mul(builder.and_(left, half), builder.and_(right, half))


def _give_operator(function: Callable[..., Any], emit: Callable[..., Any]) -> None:
    run = _of_numbers(emit)

    @overload(function)
    def choose(left, right):
        kinds = (left, right)
        if _LANES in kinds and all(kind == _LANES or isinstance(kind, types.Integer) for kind in kinds):
            # ruff: ignore[unnecessary-lambda] numba wants a function of Python's
            return lambda left, right: run(left, right)
        return None


for _function, _emit in {
    operator.add: ir.IRBuilder.add,
    operator.iadd: ir.IRBuilder.add,
    operator.sub: ir.IRBuilder.sub,
    operator.and_: ir.IRBuilder.and_,
    operator.iand: ir.IRBuilder.and_,
    operator.or_: ir.IRBuilder.or_,
    operator.xor: ir.IRBuilder.xor,
    operator.lshift: ir.IRBuilder.shl,
    operator.rshift: ir.IRBuilder.ashr,
    operator.lt: _compares("<"),
    operator.ge: _compares(">="),
    operator.eq: _compares("=="),
    operator.ne: _compares("!="),
}.items():
    _give_operator(_function, _emit)

lowest = _of_numbers(_chooses("<"))
"""The lower of two numbers in each lane."""
highest = _of_numbers(_chooses(">"))
"""The higher of two numbers in each lane."""
times = _of_numbers(_multiplies)
"""The product of the low 32 bits of each lane: one instruction where one of 64 bits takes three."""


def _is_set(builder: Any, flags: Any) -> Any:
    return builder.icmp_signed("!=", flags, constant(WORD, [0] * LANES))


@intrinsic
def where(_context, flags, yes, no):
    """In each lane the second number where the first is not 0, else the third."""

    def emit(_target, builder, _signature, values):
        choice, *both = (_spread(builder, value) for value in values)
        return builder.select(_is_set(builder, choice), *both)

    return of_types(_LANES, flags, yes, no), emit


@intrinsic
def flags_of(_context, lanes):
    """One bit for each lane, the first one lowest: whether it is not 0."""

    def emit(_target, builder, _signature, values):
        return builder.zext(builder.bitcast(_is_set(builder, values[0]), _FLAGS), WORD)

    return types.int64(lanes), emit


@intrinsic
def any_of(_context, lanes):
    """Whether any lane is not 0."""

    def emit(_target, builder, _signature, values):
        flags = builder.bitcast(_is_set(builder, values[0]), _FLAGS)
        return builder.icmp_signed("!=", flags, ir.Constant(_FLAGS, 0))

    return types.boolean(lanes), emit


@intrinsic
def count_of(_context, lanes):
    """How many lanes are not 0."""

    def emit(_target, builder, _signature, values):
        flags = builder.bitcast(_is_set(builder, values[0]), _FLAGS)
        return builder.zext(call(builder, "llvm.ctpop", flags), WORD)

    return types.int64(lanes), emit


@intrinsic
def numbers(_context):
    """The number of each lane, from 0."""

    def emit(_target, _builder, _signature, _values):
        return constant(WORD, range(LANES))

    return _LANES(), emit


@intrinsic
def load(_context, array, start):
    """Consecutive entries of an int64 array."""

    def emit(context, builder, signature, values):
        return emitting.load(builder, address(context, builder, signature.args[0], *values), LANES)

    return _LANES(array, start), emit


@intrinsic
def store(_context, array, start, lanes):
    """Writes consecutive entries of an int64 array."""

    def emit(context, builder, signature, values):
        *where_to, numbers_of_lanes = values
        emitting.store(builder, address(context, builder, signature.args[0], *where_to), numbers_of_lanes)
        return context.get_dummy_value()

    return types.void(array, start, lanes), emit


@intrinsic
def gather(_context, array, index):
    """The entries of an integer array at an index of each lane, all in bounds."""

    def emit(context, builder, signature, values):
        kind = signature.args[0]
        found = emitting.gather(
            builder, address(context, builder, kind, values[0], ir.Constant(WORD, 0)), values[1]
        )
        if found.type == _VECTOR:
            return found
        return builder.sext(found, _VECTOR) if kind.dtype.signed else builder.zext(found, _VECTOR)

    return _LANES(array, index), emit


@intrinsic
def expand(_context, array, start, flags):
    """Consecutive entries of a uint32 array from a start, one for each lane that is flagged, 0 for others."""

    def emit(context, builder, signature, values):
        place = address(context, builder, signature.args[0], *values[:2])
        found = ir.VectorType(SHORT, LANES)
        chosen = _is_set(builder, values[2])
        kind = ir.FunctionType(found, [place.type, chosen.type, found])
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.masked.expandload.v{LANES}i32")
        words = builder.call(function, [place, chosen, constant(SHORT, [0] * LANES)])
        return builder.zext(words, _VECTOR)

    return _LANES(array, start, flags), emit


def _of_each(builder: Any, work: Callable[..., Any], *lanes: Any) -> Any:
    """What a scalar piece of work makes of each lane."""
    made = ir.Constant(_VECTOR, ir.Undefined)
    for number in range(LANES):
        lane = ir.Constant(SHORT, number)
        found = work(*(builder.extract_element(values, lane) for values in lanes))
        made = builder.insert_element(made, found, lane)
    return made


@intrinsic
def count_first_below_each(_context, array, _start, _base, _bound):
    """In each lane, how many of the `COUNTED` entries from its start come before one that is not below, as `count_below` has it."""

    def emit(context, builder, signature, values):
        def count(start, base, bound):
            place = address(context, builder, signature.args[0], values[0], start)
            others = builder.not_(below(builder, place, base, bound))
            found = call(builder, "llvm.cttz", others, ir.Constant(ir.IntType(1), 0))
            return builder.zext(found, WORD)

        return _of_each(builder, count, *values[1:])

    return _LANES(array, _LANES, _LANES, _LANES), emit


@intrinsic
def seek_each(_context, array, coarse, _start, _base, _bound):
    """In each lane, the first of the next 256 elements before which the running sum is no longer below, as `count_below` has it.

    Every sixteenth sum is in the array as well, from `coarse`. Is at least the sixteenth block after that of the start if the
    sum stays below for so long.
    """

    def emit(context, builder, signature, values):
        sums, beginning = values[:2]
        sixteen = ir.Constant(WORD, COUNTED.bit_length() - 1)

        def count(start, base, bound):
            flags = below(builder, address(context, builder, signature.args[0], sums, start), base, bound)
            return builder.zext(call(builder, "llvm.ctpop", flags), WORD)

        def seek(start, base, bound):
            block = builder.lshr(start, sixteen)
            block = builder.add(block, count(builder.add(beginning, block), base, bound))
            first = builder.shl(block, sixteen)
            found = count(first, base, bound)
            # Sums before the start are not below and do not count.
            first = builder.select(builder.icmp_signed("<", first, start), start, first)
            return builder.add(first, found)

        return _of_each(builder, seek, *values[2:])

    return _LANES(array, coarse, _LANES, _LANES, _LANES), emit
