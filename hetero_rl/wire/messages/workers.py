"""What a worker says of itself."""

import dataclasses
import enum
import functools
import hashlib
import json
import operator
from collections.abc import Mapping

__all__ = [
    "Capabilities",
    "ModelDigests",
    "NumericsRecord",
    "WorkerIdentity",
    "WorkerState",
]


class WorkerState(enum.IntEnum):
    """Life cycle of a worker as the hub sees it."""

    ACTIVE = 1
    DRAINING = 2
    QUARANTINED = 3
    DEAD = 4
    LEFT = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What one worker's engine can do; measured where it can be."""

    max_concurrent_sequences: int
    max_sequence_tokens: int
    scoring: bool
    in_flight_update: bool
    processed_log_probs: bool
    adapters: bool = False
    routed_experts: bool = False
    weight_encodings: tuple[int, ...] = (1,)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NumericsRecord:
    """Everything that changes the numbers a backend computes."""

    engine: str
    engine_version: str
    torch_version: str
    device_vendor: str
    device_name: str
    driver_version: str
    runtime_version: str
    data_type: str
    attention_backend: str
    log_probs_mode: str
    knobs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    emulated: bool = False

    @property
    def numerics_id(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 over the canonical JSON of all fields."""
        values = _numerics_values(self)
        return _numerics_id(values, tuple(sorted(self.knobs.items())))


_NUMERICS_FIELDS = tuple(field.name for field in dataclasses.fields(NumericsRecord) if field.name != "knobs")
_numerics_values = operator.attrgetter(*_NUMERICS_FIELDS)


@functools.lru_cache(maxsize=256)
def _numerics_id(values: tuple[str | bool, ...], knobs: tuple[tuple[str, str], ...]) -> str:
    """With a memory: every submission is held against the id of its worker."""
    fields: dict[str, object] = dict(zip(_NUMERICS_FIELDS, values, strict=True))
    fields["knobs"] = dict(knobs)
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True, slots=True)
class ModelDigests:
    """Identity of a model without its weights: SHA-256, hexadecimal."""

    config: str
    tokenizer: str


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Who is calling: a name, and which incarnation of it."""

    worker_name: str
    worker_epoch: int
