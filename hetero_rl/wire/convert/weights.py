"""Weight versions, probe cards and blobs: proto <-> frozen values."""

import dataclasses
from collections.abc import Sequence

from hetero_rl.v1 import weights_pb2
from hetero_rl.wire.column_codec import ColumnEncoding, encode_column
from hetero_rl.wire.columns import Float32Bytes, Int32Bytes, int32_column
from hetero_rl.wire.convert import fields
from hetero_rl.wire.convert.work import lengths_of
from hetero_rl.wire.invalid import invalid
from hetero_rl.wire.messages import (
    AdapterDescription,
    BlobReference,
    DataType,
    ModelFile,
    ProbeCard,
    ProbeResult,
    TensorEntry,
    WeightEncoding,
    WeightManifest,
    WeightSync,
)

__all__ = [
    "blob_from_proto",
    "blob_to_proto",
    "manifest_from_proto",
    "manifest_to_proto",
    "model_file_from_proto",
    "model_file_to_proto",
    "probe_card_from_proto",
    "probe_card_to_proto",
    "probe_result_from_proto",
    "probe_result_to_proto",
    "weight_encodings_from_proto",
    "weight_encodings_to_proto",
    "weight_sync_from_proto",
    "weight_sync_to_proto",
]


def blob_to_proto(blob: BlobReference) -> weights_pb2.BlobReference:
    """Packs a blob's name."""
    return weights_pb2.BlobReference(digest=blob.digest, size=blob.size)


def blob_from_proto(message: weights_pb2.BlobReference) -> BlobReference:
    """Unpacks a blob's name."""
    return BlobReference(digest=message.digest, size=message.size)


def model_file_to_proto(file: ModelFile) -> weights_pb2.ModelFile:
    """Packs a file of the model directory."""
    return weights_pb2.ModelFile(name=file.name, blob=blob_to_proto(file.blob))


def model_file_from_proto(message: weights_pb2.ModelFile) -> ModelFile:
    """Unpacks a file of the model directory; its name is checked by `validation.check_run_request`."""
    fields.require(message, "blob")
    return ModelFile(name=message.name, blob=blob_from_proto(message.blob))


def weight_encodings_to_proto(encodings: Sequence[WeightEncoding]) -> list[str]:
    """Names of weight encodings, as protobuf takes them."""
    return [f"WEIGHT_ENCODING_{encoding.name}" for encoding in encodings]


def weight_encodings_from_proto(values: Sequence[int]) -> tuple[WeightEncoding, ...]:
    """Weight encodings that a caller decodes; newer ones than this side knows are left out."""
    known = set(WeightEncoding)
    return tuple(WeightEncoding(value) for value in values if value in known)


def probe_card_to_proto(
    card: ProbeCard, encoding: ColumnEncoding = ColumnEncoding.RAW
) -> weights_pb2.ProbeCard:
    """Packs a probe card."""
    return weights_pb2.ProbeCard(
        lengths=encode_column(int32_column(card.lengths), DataType.INT32),
        token_ids=encode_column(card.token_ids, DataType.INT32, encoding),
        log_probs=encode_column(card.log_probs, DataType.FLOAT32, encoding),
        tolerance=card.tolerance,
    )


def probe_card_from_proto(message: weights_pb2.ProbeCard) -> ProbeCard:
    """Unpacks a probe card whose columns agree in length."""
    lengths = lengths_of(message, "lengths")
    tokens = sum(lengths)
    scored = tokens - len(lengths)
    token_ids = fields.column_of(message, "token_ids", DataType.INT32, length=tokens)
    log_probs = fields.column_of(message, "log_probs", DataType.FLOAT32, length=scored)
    return ProbeCard(
        lengths=lengths,
        token_ids=Int32Bytes(token_ids),
        log_probs=Float32Bytes(log_probs),
        tolerance=fields.finite_of(message, "tolerance"),
    )


def probe_result_to_proto(result: ProbeResult) -> weights_pb2.ProbeResult:
    """Packs the outcome of a probe."""
    message = weights_pb2.ProbeResult(
        weight_version=result.weight_version,
        mean_absolute_difference=result.mean_absolute_difference,
        max_absolute_difference=result.max_absolute_difference,
        mean_difference=result.mean_difference,
        tokens=result.tokens,
    )
    if result.log_probs is not None:
        message.log_probs.CopyFrom(encode_column(result.log_probs, DataType.FLOAT32))
    return message


def probe_result_from_proto(message: weights_pb2.ProbeResult) -> ProbeResult:
    """Unpacks the outcome of a probe. Differences may be NaN: a broken engine reports what it computed."""
    log_probs = fields.optional_column_of(message, "log_probs", DataType.FLOAT32, length=message.tokens)
    return ProbeResult(
        weight_version=message.weight_version,
        mean_absolute_difference=message.mean_absolute_difference,
        max_absolute_difference=message.max_absolute_difference,
        mean_difference=message.mean_difference,
        tokens=message.tokens,
        log_probs=None if log_probs is None else Float32Bytes(log_probs),
    )


def tensor_to_proto(tensor: TensorEntry) -> weights_pb2.TensorEntry:
    """Packs one tensor's entry."""
    return weights_pb2.TensorEntry(
        name=tensor.name,
        data_type=f"DATA_TYPE_{tensor.data_type.name}",
        shape=tensor.shape,
        digest=tensor.digest,
        base_digest=tensor.base_digest,
        blob_index=tensor.blob_index,
        offset=tensor.offset,
        size=tensor.size,
        tied_names=tensor.tied_names,
        changed_elements=tensor.changed_elements,
    )


def tensor_from_proto(message: weights_pb2.TensorEntry, blobs: int) -> TensorEntry:
    """Unpacks one tensor's entry of a manifest with `blobs` blobs."""
    if message.blob_index >= max(blobs, 1):
        raise invalid(
            "TensorEntry.blob_index",
            f"of {message.name!r} is {message.blob_index}, the manifest has {blobs} blobs",
        )
    return TensorEntry(
        name=message.name,
        data_type=fields.member_of(DataType, message, "data_type"),
        shape=tuple(message.shape),
        digest=message.digest,
        base_digest=message.base_digest,
        blob_index=message.blob_index,
        offset=message.offset,
        size=message.size,
        tied_names=tuple(message.tied_names),
        changed_elements=message.changed_elements if message.HasField("changed_elements") else None,
    )


def _adapter_to_proto(adapter: AdapterDescription) -> weights_pb2.AdapterDescription:
    return weights_pb2.AdapterDescription(
        rank=adapter.rank,
        alpha=adapter.alpha,
        target_modules=adapter.target_modules,
        base_digest=adapter.base_digest,
    )


def _adapter_from_proto(message: weights_pb2.AdapterDescription) -> AdapterDescription:
    return AdapterDescription(
        rank=fields.count_of(message, "rank", 1),
        alpha=fields.finite_of(message, "alpha"),
        target_modules=tuple(message.target_modules),
        base_digest=message.base_digest,
    )


def manifest_to_proto(manifest: WeightManifest) -> weights_pb2.WeightManifest:
    """Packs a weight version's manifest."""
    message = weights_pb2.WeightManifest(
        version=manifest.version,
        step=manifest.step,
        encoding=f"WEIGHT_ENCODING_{manifest.encoding.name}",
        base_version=manifest.base_version,
        tensors=[tensor_to_proto(tensor) for tensor in manifest.tensors],
        blobs=[blob_to_proto(blob) for blob in manifest.blobs],
        state_digest=manifest.state_digest,
    )
    if manifest.probe_card is not None:
        message.probe_card.CopyFrom(probe_card_to_proto(manifest.probe_card))
    if manifest.adapter is not None:
        message.adapter.CopyFrom(_adapter_to_proto(manifest.adapter))
    return message


def manifest_from_proto(message: weights_pb2.WeightManifest) -> WeightManifest:
    """Unpacks a weight version's manifest; `validation.check_manifest` checks sizes and digests."""
    card = probe_card_from_proto(message.probe_card) if message.HasField("probe_card") else None
    return WeightManifest(
        version=fields.count_of(message, "version", 1),
        step=message.step,
        encoding=fields.member_of(WeightEncoding, message, "encoding"),
        base_version=message.base_version,
        tensors=tuple(tensor_from_proto(tensor, len(message.blobs)) for tensor in message.tensors),
        blobs=tuple(blob_from_proto(blob) for blob in message.blobs),
        state_digest=message.state_digest,
        probe_card=card,
        adapter=_adapter_from_proto(message.adapter) if message.HasField("adapter") else None,
    )


_SYNC_SECONDS = ("fetch_seconds", "decode_seconds", "verify_seconds", "pause_seconds", "total_seconds")


def weight_sync_to_proto(sync: WeightSync) -> weights_pb2.WeightSync:
    """Packs how a worker came to a version."""
    return weights_pb2.WeightSync(**dataclasses.asdict(sync))


def weight_sync_from_proto(message: weights_pb2.WeightSync) -> WeightSync:
    """Unpacks how a worker came to a version; refuses times that are not finite or below 0."""
    seconds = {field: fields.finite_of(message, field) for field in _SYNC_SECONDS}
    for field, value in seconds.items():
        if value < 0:
            raise invalid(fields.name_of(message, field), f"is {value}, expected seconds of 0 or more")
    version = fields.count_of(message, "weight_version", 1)
    if version >= 2**63:
        raise invalid("WeightSync.weight_version", f"is {version}, expected less than 2^63")
    return WeightSync(
        weight_version=version,
        from_version=message.from_version,
        manifests=message.manifests,
        fetched_bytes=message.fetched_bytes,
        fallbacks=message.fallbacks,
        relay_bypasses=message.relay_bypasses,
        **seconds,
    )
