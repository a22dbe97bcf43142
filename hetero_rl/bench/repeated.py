"""The baseline of the encoding figures: the same batch with one repeated field for ids and one for log-probabilities.

This is how a protocol looks that leaves numbers to protobuf. Ids as varints or as fixed 32-bit integers, filled from a
memory view or from a list made of it: all of these run, and the fastest is the baseline.
"""

import array
import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from hetero_rl.wire.columns import Float32Bytes, Int32Bytes, float32_view, int32_view
from hetero_rl.wire.convert.trajectories import trajectory_batch_to_proto
from hetero_rl.wire.messages import TrajectoryBatch

__all__ = ["RepeatedFields", "from_columns", "from_lists", "id_formats", "to_columns"]

_Field = descriptor_pb2.FieldDescriptorProto


@dataclasses.dataclass(frozen=True, slots=True)
class RepeatedFields:
    """A message class with `ids` and `log_probs`, both repeated and packed, and what else a batch has in `rest`."""

    name: str
    message: Any


def id_formats() -> tuple[RepeatedFields, ...]:
    """Both ways to type the ids."""
    return (_message("varint", _Field.TYPE_UINT32), _message("fixed32", _Field.TYPE_FIXED32))


def _message(name: str, id_type: "descriptor_pb2.FieldDescriptorProto.Type.ValueType") -> RepeatedFields:
    file = descriptor_pb2.FileDescriptorProto(
        name=f"hetero_rl/bench/{name}.proto", package=f"hetero_rl.bench.{name}", syntax="proto3"
    )
    batch = file.message_type.add(name="Batch")
    batch.field.add(name="ids", number=1, type=id_type, label=_Field.LABEL_REPEATED)
    batch.field.add(name="log_probs", number=2, type=_Field.TYPE_FLOAT, label=_Field.LABEL_REPEATED)
    batch.field.add(name="rest", number=3, type=_Field.TYPE_BYTES, label=_Field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName(f"{file.package}.Batch")
    return RepeatedFields(name, message_factory.GetMessageClass(descriptor))


def _rest(batch: TrajectoryBatch) -> bytes:
    """Everything but the token columns, packed as the protocol packs it: both sides do this work alike."""
    bare = dataclasses.replace(batch, token_ids=Int32Bytes(b""), log_probs=None)
    return trajectory_batch_to_proto(bare).SerializeToString()


def from_columns(batch: TrajectoryBatch) -> Mapping[str, Callable[[], bytes]]:
    """Encoders that start from the batch as a worker holds it, by name."""
    encoders: dict[str, Callable[[], bytes]] = {}
    for form, (how, read) in itertools.product(id_formats(), (("view", _same), ("list", list))):

        def encode(form: RepeatedFields = form, read: Callable[[Any], Any] = read) -> bytes:
            message = form.message(rest=_rest(batch))
            message.ids.extend(read(int32_view(batch.token_ids)))
            message.log_probs.extend(read(float32_view(batch.log_probs or b"")))
            return bytes(message.SerializeToString())

        encoders[f"{form.name} from a {how}"] = encode
    return encoders


def _same(view: Any) -> Any:
    return view


def from_lists(
    batch: TrajectoryBatch, token_ids: list[list[int]], log_probs: list[list[float]]
) -> Mapping[str, Callable[[], bytes]]:
    """Encoders that start from lists of Python numbers, one for each sample, by name."""
    encoders: dict[str, Callable[[], bytes]] = {}
    for form in id_formats():

        def encode(form: RepeatedFields = form) -> bytes:
            message = form.message(rest=_rest(batch))
            for ids in token_ids:
                message.ids.extend(ids)
            for numbers in log_probs:
                message.log_probs.extend(numbers)
            return bytes(message.SerializeToString())

        encoders[form.name] = encode
    return encoders


def to_columns(form: RepeatedFields, packed: bytes) -> tuple[Int32Bytes, Float32Bytes]:
    """Decodes to columns, as a trainer wants them."""
    message = form.message.FromString(packed)
    ids = Int32Bytes(array.array("i", list(message.ids)).tobytes())
    return ids, Float32Bytes(array.array("f", list(message.log_probs)).tobytes())
