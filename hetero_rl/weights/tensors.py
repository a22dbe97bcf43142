"""Between torch tensors and their raw little-endian bytes, and which tensors share storage. Needs torch."""

import dataclasses
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from hetero_rl.errors import ConfigError, DamagedError
from hetero_rl.weights.manifest import raw_size
from hetero_rl.wire.messages import DataType, TensorEntry

__all__ = [
    "NamedTensor",
    "data_type_of",
    "distinct_tensors",
    "map_file",
    "raw_bytes",
    "serving_copy",
    "tensor_from_bytes",
]

_TO_TORCH = {
    DataType.UINT8: torch.uint8,
    DataType.INT16: torch.int16,
    DataType.INT32: torch.int32,
    DataType.INT64: torch.int64,
    DataType.FLOAT16: torch.float16,
    DataType.BFLOAT16: torch.bfloat16,
    DataType.FLOAT32: torch.float32,
    DataType.FLOAT64: torch.float64,
}
_FROM_TORCH = {torch_type: data_type for data_type, torch_type in _TO_TORCH.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class NamedTensor:
    """A tensor under its checkpoint name, and the other names of the same storage."""

    name: str
    tensor: torch.Tensor
    tied_names: tuple[str, ...]


def distinct_tensors(state: Mapping[str, torch.Tensor]) -> Iterator[NamedTensor]:
    """The tensors of a state in order, those that share storage once, under their first name.

    Takes a mapping because all tensors must be alive at once: the address of a freed one would be given to another.
    """
    names: dict[object, list[str]] = {}
    for name, tensor in state.items():
        names.setdefault(_storage_key(name, tensor), []).append(name)
    for first, *others in names.values():
        yield NamedTensor(first, state[first], tuple(others))


def serving_copy(tensor: torch.Tensor, serving_dtype: torch.dtype | None) -> torch.Tensor:
    """A tensor on the CPU, contiguous, floating point ones in the serving dtype; the tensor itself where it is so already."""
    floating = tensor.is_floating_point() and serving_dtype is not None
    return tensor.detach().to("cpu", serving_dtype if floating else tensor.dtype).contiguous()


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, in place."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def data_type_of(name: str, tensor: torch.Tensor) -> DataType:
    """The protocol's name of a tensor's type; raises ConfigError naming the tensor when it has none."""
    if tensor.dtype not in _FROM_TORCH:
        raise ConfigError(f"tensor {name!r} has dtype {tensor.dtype}, which cannot be published")
    return _FROM_TORCH[tensor.dtype]


def tensor_from_bytes(entry: TensorEntry, data: memoryview) -> torch.Tensor:
    """A tensor over writable raw bytes, without a copy; raises DamagedError when their number is wrong."""
    if data.nbytes != raw_size(entry):
        raise DamagedError(
            f"tensor {entry.name!r} of shape {entry.shape} has {data.nbytes} bytes, not {raw_size(entry)}"
        )
    dtype = _TO_TORCH[entry.data_type]
    if not data.nbytes:  # torch refuses an empty buffer
        return torch.empty(entry.shape, dtype=dtype)
    aligned = torch.frombuffer(data, dtype=torch.uint8)
    if aligned.data_ptr() % entry.data_type.item_size:
        aligned = aligned.clone()  # a view of another dtype must start at a multiple of its size
    return aligned.view(dtype).reshape(entry.shape)


def map_file(path: Path) -> memoryview:
    """The bytes of a file as private, copy-on-write memory; an empty file gives no bytes."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            return memoryview(bytearray())
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def _storage_key(name: str, tensor: torch.Tensor) -> object:
    """What two names of the same elements have in common; the name itself where there is no storage to share."""
    if not tensor.numel():
        return name
    return (
        str(tensor.device),
        tensor.untyped_storage().data_ptr(),
        tensor.storage_offset(),
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride(),
    )
