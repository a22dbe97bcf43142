"""Random messages of the protocol, built from its descriptors, and bytes that are nearly messages."""

from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor as Field

__all__ = ["mutated", "random_message"]

_DEEPEST = 4
_INTEGERS = (
    0,
    1,
    2,
    3,
    7,
    255,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**64 - 1,
    -1,
    -2,
    -(2**31),
    -(2**63),
)
_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, -1e30, 3.4e38, float("inf"), float("-inf"), float("nan"))
_RANGES = {
    Field.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    Field.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    Field.CPPTYPE_UINT32: (0, 2**32 - 1),
    Field.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def random_message(draw, descriptor, known, depth=0):
    """A message whose fields are set at random.

    Args:
        draw: `random.Random`.
        descriptor: Of the message.
        known: Texts that mean something to the receiver, such as names of workers and leases.
        depth: How deep this message lies in another.
    """
    message = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if draw.random() < 0.25 or (depth >= _DEEPEST and field.message_type):
            continue
        if field.is_repeated:
            for _ in range(draw.choice((0, 1, 1, 2, 3, 40) if depth < 2 else (0, 1, 2))):
                _add(draw, message, field, known, depth)
        elif field.message_type:
            getattr(message, field.name).CopyFrom(random_message(draw, field.message_type, known, depth + 1))
        else:
            setattr(message, field.name, _scalar(draw, field, known))
    return message


def _add(draw, message, field, known, depth):
    if field.message_type and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        key = _scalar(draw, entry["key"], known)
        if not entry["value"].message_type:
            getattr(message, field.name)[key] = _scalar(draw, entry["value"], known)
    elif field.message_type:
        getattr(message, field.name).add().CopyFrom(
            random_message(draw, field.message_type, known, depth + 1)
        )
    else:
        getattr(message, field.name).append(_scalar(draw, field, known))


def _scalar(draw, field, known):
    kind = field.cpp_type
    if kind == Field.CPPTYPE_BOOL:
        return draw.random() < 0.5
    if kind == Field.CPPTYPE_ENUM:
        return draw.choice((*(value.number for value in field.enum_type.values), 99, -1))
    if kind in {Field.CPPTYPE_FLOAT, Field.CPPTYPE_DOUBLE}:
        return draw.choice((*_FLOATS, draw.uniform(-20, 0)))
    if kind in _RANGES:
        low, high = _RANGES[kind]
        return min(max(draw.choice(_INTEGERS), low), high)
    if field.type == Field.TYPE_BYTES:
        return draw.randbytes(draw.choice((0, 1, 4, 8, 12, 64, 4096)))
    return draw.choice((*known, "", "a", "\x00", "../../etc/passwd", "é" * 40, "x" * 5000, "f" * 64))


def mutated(draw, data):
    """The bytes with a few of them flipped, cut, doubled or inserted."""
    data = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        place = draw.randint(0, len(data))
        match draw.randrange(4):
            case 0 if data:
                data[place % len(data)] ^= 1 << draw.randrange(8)
            case 1:
                del data[place:]
            case 2:
                data[place:place] = draw.randbytes(draw.choice((1, 2, 16)))
            case _:
                data[place:place] = data[place // 2 : place]
    return bytes(data)
