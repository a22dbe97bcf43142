"""Checks of weight versions, blobs and probe cards."""

import math

from hetero_rl.errors import DamagedError
from hetero_rl.weights import manifest as rules
from hetero_rl.wire.columns import int32_view
from hetero_rl.wire.invalid import invalid
from hetero_rl.wire.messages import BlobReference, ProbeCard, WeightManifest
from hetero_rl.wire.validation.columns import first_not_below, first_not_log_prob
from hetero_rl.wire.validation.text import check_digest, check_text

__all__ = ["check_blob_reference", "check_manifest", "check_probe_card"]

MAX_BLOB_BYTES = 2**40
MAX_VERSION_BYTES = 2**44
"""Largest blob, and largest sum of a version's blobs."""
MAX_TENSORS = 2**20
MAX_BLOBS = 2**16
MAX_PROBE_TOKENS = 2**20

_MAX_INT64 = 2**63 - 1
_MAX_TENSOR_NAME = 512


def check_blob_reference(blob: BlobReference) -> None:
    """Refuses a blob whose digest is none or whose size is absurd."""
    check_digest(blob.digest, "BlobReference.digest")
    if not 0 <= blob.size <= MAX_BLOB_BYTES:
        raise invalid("BlobReference.size", f"is {blob.size}, expected 0 to {MAX_BLOB_BYTES}", "TOO_LARGE")


def check_manifest(manifest: WeightManifest, vocabulary_size: int) -> None:
    """Refuses a weight version that contradicts itself or exceeds the limits.

    Sizes and names come first, then the rules that trainer and workers share (`hetero_rl.weights.manifest`): digests,
    unique names, tensors inside their blobs, shapes that fit the bytes, and the state digest.

    Raises:
        InvalidMessageError: Names the first field that is wrong.
    """
    if manifest.version > _MAX_INT64 or manifest.step > _MAX_INT64:
        raise invalid(
            "WeightManifest.version",
            f"is {manifest.version} at step {manifest.step}, expected less than 2^63",
        )
    if not 1 <= len(manifest.tensors) <= MAX_TENSORS:
        raise invalid(
            "WeightManifest.tensors", f"has {len(manifest.tensors)} entries, expected 1 to {MAX_TENSORS}"
        )
    if len(manifest.blobs) > MAX_BLOBS:
        raise invalid(
            "WeightManifest.blobs", f"has {len(manifest.blobs)} entries, expected at most {MAX_BLOBS}"
        )
    for blob in manifest.blobs:
        check_blob_reference(blob)
    total = sum(blob.size for blob in manifest.blobs)
    if total > MAX_VERSION_BYTES:
        raise invalid(
            "WeightManifest.blobs", f"add up to {total} bytes, at most {MAX_VERSION_BYTES} fit", "TOO_LARGE"
        )
    for tensor in manifest.tensors:
        for name in (tensor.name, *tensor.tied_names):
            check_text(name, "TensorEntry.name", _MAX_TENSOR_NAME)
    try:
        rules.check_manifest(manifest)
    except DamagedError as error:
        raise invalid("WeightManifest", f"contradicts itself: {error}") from error
    if manifest.probe_card is not None:
        check_probe_card(manifest.probe_card, vocabulary_size)


def check_probe_card(card: ProbeCard, vocabulary_size: int) -> None:
    """Refuses a probe card that no worker could score.

    Raises:
        InvalidMessageError: Names the first field that is wrong.
    """
    if not card.lengths or min(card.lengths) < 2:
        raise invalid(
            "ProbeCard.lengths", f"is {list(card.lengths[:16])}, expected sequences of at least 2 tokens"
        )
    tokens = sum(card.lengths)
    if tokens > MAX_PROBE_TOKENS:
        raise invalid(
            "ProbeCard.lengths", f"add up to {tokens} tokens, at most {MAX_PROBE_TOKENS} fit", "TOO_LARGE"
        )
    if len(card.token_ids) != 4 * tokens:
        raise invalid("ProbeCard.token_ids", f"has {len(card.token_ids)} bytes, expected {tokens} int32")
    scored = tokens - len(card.lengths)
    if len(card.log_probs) != 4 * scored:
        raise invalid("ProbeCard.log_probs", f"has {len(card.log_probs)} bytes, expected {scored} float32")
    if (wrong := first_not_below(card.token_ids, vocabulary_size)) is not None:
        value = int32_view(card.token_ids)[wrong]
        raise invalid(
            "ProbeCard.token_ids",
            f"holds {value} at position {wrong}, expected ids in [0, {vocabulary_size})",
        )
    if (wrong := first_not_log_prob(card.log_probs)) is not None:
        raise invalid("ProbeCard.log_probs", f"holds no log-probability at position {wrong}")
    if not (math.isfinite(card.tolerance) and card.tolerance > 0):
        raise invalid("ProbeCard.tolerance", f"is {card.tolerance}, expected a finite number above 0")
