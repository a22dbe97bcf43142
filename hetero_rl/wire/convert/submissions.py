"""What a worker hands in and what it is told: proto <-> frozen values."""

from collections.abc import Sequence

from hetero_rl.errors import HeteroRLError, InvalidMessageError
from hetero_rl.v1 import rollout_service_pb2
from hetero_rl.wire.column_codec import ColumnEncoding
from hetero_rl.wire.convert.workers import (
    receipt_from_proto,
    receipt_to_proto,
    submission_to_proto,
)
from hetero_rl.wire.messages import Submission, SubmissionReceipt
from hetero_rl.wire.refusal import refused, to_refusal

__all__ = ["MAX_SUBMISSIONS", "batch_to_proto", "outcome_to_proto", "outcomes_from_proto"]

MAX_SUBMISSIONS = 256
"""Most submissions of one call."""


def batch_to_proto(
    submissions: Sequence[Submission], encoding: ColumnEncoding = ColumnEncoding.RAW
) -> rollout_service_pb2.SubmitBatchRequest:
    """Packs several results; 1 to `MAX_SUBMISSIONS`."""
    return rollout_service_pb2.SubmitBatchRequest(
        submissions=[submission_to_proto(submission, encoding) for submission in submissions]
    )


def outcome_to_proto(outcome: SubmissionReceipt | Exception) -> rollout_service_pb2.SubmissionOutcome:
    """Packs what became of one submission; raises an error that is a fault of the hub itself."""
    if isinstance(outcome, SubmissionReceipt):
        return rollout_service_pb2.SubmissionOutcome(receipt=receipt_to_proto(outcome))
    refusal = to_refusal(outcome) if isinstance(outcome, HeteroRLError) else None
    if refusal is None:
        raise outcome
    return rollout_service_pb2.SubmissionOutcome(
        refusal=rollout_service_pb2.SubmissionRefusal(refusal=refusal.message, message=refusal.text)
    )


def outcomes_from_proto(
    message: rollout_service_pb2.SubmitBatchResponse, expected: int
) -> tuple[SubmissionReceipt | HeteroRLError, ...]:
    """Unpacks what became of `expected` submissions; refuses another number of answers."""
    if len(message.outcomes) != expected:
        raise InvalidMessageError(
            f"SubmitBatchResponse.outcomes has {len(message.outcomes)} elements, expected {expected}"
        )
    return tuple(map(_outcome_from_proto, message.outcomes))


def _outcome_from_proto(outcome: rollout_service_pb2.SubmissionOutcome) -> SubmissionReceipt | HeteroRLError:
    match outcome.WhichOneof("outcome"):
        case "receipt":
            return receipt_from_proto(outcome.receipt)
        case "refusal":
            return refused(outcome.refusal.refusal, outcome.refusal.message)
    return InvalidMessageError(
        "SubmissionOutcome.outcome is missing, or of a kind that this release does not know"
    )
