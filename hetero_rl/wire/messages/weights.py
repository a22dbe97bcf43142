"""Weight versions and their proof. T tensors of a version."""

import dataclasses
import enum

from hetero_rl.wire.columns import Float32Bytes, Int32Bytes

__all__ = [
    "AdapterDescription",
    "BlobReference",
    "DataType",
    "ModelFile",
    "ProbeCard",
    "ProbeResult",
    "TensorEntry",
    "WeightEncoding",
    "WeightManifest",
    "WeightSync",
]


class DataType(enum.IntEnum):
    """Element type of a tensor or column."""

    UINT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    FLOAT16 = 5
    BFLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8

    @property
    def item_size(self) -> int:
        """Bytes per element."""
        return _ITEM_SIZES[self]


# Every column of every message asks.
_ITEM_SIZES = (0, 1, 2, 4, 8, 2, 2, 4, 8)


class WeightEncoding(enum.IntEnum):
    """How the bytes of a weight version are coded."""

    FULL_RAW = 1
    FULL_PLANES = 2
    ULP_DELTA = 3


@dataclasses.dataclass(frozen=True, slots=True)
class BlobReference:
    """Bytes named by their content: SHA-256, hexadecimal, and size in bytes."""

    digest: str
    size: int


@dataclasses.dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of the model directory that a worker needs besides weights."""

    name: str
    blob: BlobReference


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor of a weight version."""

    name: str
    data_type: DataType
    shape: tuple[int, ...]
    digest: str
    """SHA-256 of the raw little-endian bytes after this version is applied."""
    blob_index: int
    offset: int
    size: int
    """Coded bytes in the blob."""
    base_digest: str = ""
    """Digest before; empty for a full copy."""
    tied_names: tuple[str, ...] = ()
    """Other names of the same storage."""
    changed_elements: int | None = None
    """Delta: elements whose bits differ from the base; None for a full copy, or when nobody counted them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProbeCard:
    """A few fixed sequences with the trainer's own log-probabilities under one version."""

    lengths: tuple[int, ...]
    token_ids: Int32Bytes
    log_probs: Float32Bytes
    """L - 1 for a sequence of L tokens."""
    tolerance: float
    """Largest mean absolute difference that is trusted."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What a worker found when it scored a probe card; differences are trainer minus worker."""

    weight_version: int
    mean_absolute_difference: float
    max_absolute_difference: float
    mean_difference: float
    tokens: int
    log_probs: Float32Bytes | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdapterDescription:
    """Low-rank adapters of a version: W + (alpha / rank) B A for each target W of the frozen base."""

    rank: int
    alpha: float
    target_modules: tuple[str, ...]
    """Last parts of the targets' names, ascending."""
    base_digest: str
    """State digest of the tensors that are the base."""

    @property
    def scale(self) -> float:
        """What multiplies B A."""
        return self.alpha / self.rank


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WeightManifest:
    """Everything about one weight version."""

    version: int
    step: int
    """Optimizer steps applied to these weights."""
    encoding: WeightEncoding
    tensors: tuple[TensorEntry, ...]
    blobs: tuple[BlobReference, ...]
    state_digest: str
    """SHA-256 over the tensors' names and digests in order."""
    base_version: int = 0
    probe_card: ProbeCard | None = None
    adapter: AdapterDescription | None = None
    """What the adapters among the tensors are; None: the tensors are the model's own."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WeightSync:
    """How a worker came to a weight version; seconds by its own clock."""

    weight_version: int
    from_version: int
    """The version it went on from; 0 began with a full copy."""
    manifests: int
    fetched_bytes: int
    """Bytes of blobs that came over the line."""
    fetch_seconds: float
    decode_seconds: float
    verify_seconds: float
    pause_seconds: float
    """The engine loaded the weights and did nothing else."""
    total_seconds: float
    """From learning of the version to serving it."""
    fallbacks: int = 0
    """Times since the sync before that something was damaged and a full copy took its place."""
    relay_bypasses: int = 0
    """Times since the sync before that the relay did not answer and the hub was asked."""
