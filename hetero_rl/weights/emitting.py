"""How `vectors` and `lanes` write LLVM's instructions: what the two have in common. Needs numba.

Each instruction is emitted into the loop that calls it, and LLVM picks the widest vectors that the processor has. numba's
cache notices a change of a kernel's own file only: after a change here or there, `comparison`, `sender`, `receiver` and
`wide_receiver` must be touched as well.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

__all__ = ["SHORT", "WORD", "address", "call", "constant", "gather", "load", "same", "shifted", "store"]

WORD, SHORT = ir.IntType(64), ir.IntType(32)
_FLAG = ir.IntType(1)


def constant(kind: Any, values: Sequence[int]) -> Any:
    """A vector of numbers that are known when it is compiled."""
    return ir.Constant(ir.VectorType(kind, len(values)), list(values))


def address(context: Any, builder: Any, kind: Any, array: Any, start: Any) -> Any:
    """Where an element of a contiguous array is."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [start])


def load(builder: Any, place: Any, count: int) -> Any:
    """`count` elements from a place, wherever in memory it is."""
    element = place.type.pointee
    return builder.load(
        builder.bitcast(place, ir.VectorType(element, count).as_pointer()), align=element.width // 8
    )


def store(builder: Any, place: Any, values: Any) -> None:
    """Writes a vector to a place, wherever in memory it is."""
    builder.store(
        values, builder.bitcast(place, values.type.as_pointer()), align=values.type.element.width // 8
    )


def same(builder: Any, value: Any, count: int) -> Any:
    """A vector of one value."""
    empty = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(SHORT, 0))
    return builder.shuffle_vector(first, empty, constant(SHORT, [0] * count))


def shifted(builder: Any, values: Any, by: int) -> Any:
    """A vector with zeros before its values, of which the last ones go."""
    count = values.type.count
    taken = [place if place < by else count + place - by for place in range(count)]
    return builder.shuffle_vector(constant(values.type.element, [0] * count), values, constant(SHORT, taken))


def gather(builder: Any, place: Any, index: Any) -> Any:
    """The elements at a vector of distances from a place."""
    element, count = place.type.pointee, index.type.count
    places = builder.gep(place, [ir.Constant(index.type.element, 0)])
    # llvmlite has no vector of addresses; LLVM makes one of a place and a vector of distances.
    places.operands, places.indices = [place, index], [index]
    places.type = ir.VectorType(place.type, count)
    found = ir.VectorType(element, count)
    kind = ir.FunctionType(found, [places.type, SHORT, ir.VectorType(_FLAG, count), found])
    name = f"llvm.masked.gather.v{count}i{element.width}.v{count}p0"
    alignment = ir.Constant(SHORT, element.width // 8)
    every = constant(_FLAG, [1] * count)
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, [places, alignment, every, ir.Constant(found, ir.Undefined)])


def call(builder: Any, name: str, *arguments: Any) -> Any:
    """LLVM's own function on integers of 64 or fewer bits."""
    kind = arguments[0].type
    declared = ir.FunctionType(kind, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, declared, f"{name}.i{kind.width}")
    return builder.call(function, arguments)
