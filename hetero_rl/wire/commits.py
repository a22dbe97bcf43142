"""What the trainer says about a step that it applied, as one message or, where that would be too large, as several."""

import dataclasses
from collections.abc import Iterator, Sequence

from hetero_rl.v1 import training_service_pb2
from hetero_rl.wire.channels import CHUNK_BYTES
from hetero_rl.wire.column_codec import ColumnEncoding, encode_column
from hetero_rl.wire.convert import trajectories
from hetero_rl.wire.messages import DataType, SequenceOutcome

__all__ = ["Commit"]

_OUTCOME_BYTES = 64  # besides the group's id
_OUTCOMES_TOGETHER = 8192


@dataclasses.dataclass(frozen=True, slots=True)
class Commit:
    """A step, what became of each sequence, and the log-probabilities of all tokens, float32; None where not kept."""

    trainer_epoch: int
    step: int
    outcomes: Sequence[SequenceOutcome]
    log_probs: bytes | None
    encoding: ColumnEncoding

    @property
    def size(self) -> int:
        """About the bytes of one message of it."""
        names = sum(len(outcome.group_id) for outcome in self.outcomes)
        return len(self.log_probs or b"") + _OUTCOME_BYTES * len(self.outcomes) + names

    def request(self) -> training_service_pb2.CommitStepRequest:
        """The one message."""
        return self._part(self.outcomes, self.log_probs)

    def parts(self) -> Iterator[training_service_pb2.CommitLongStepRequest]:
        """Messages of about a chunk each, at least one."""
        for part in self._parts():
            yield training_service_pb2.CommitLongStepRequest(part=part)

    def _parts(self) -> Iterator[training_service_pb2.CommitStepRequest]:
        for start in range(0, max(1, len(self.outcomes)), _OUTCOMES_TOGETHER):
            yield self._part(self.outcomes[start : start + _OUTCOMES_TOGETHER], None)
        log_probs = self.log_probs or b""
        for start in range(0, len(log_probs), CHUNK_BYTES):
            yield self._part((), log_probs[start : start + CHUNK_BYTES])

    def _part(
        self, outcomes: Sequence[SequenceOutcome], log_probs: bytes | None
    ) -> training_service_pb2.CommitStepRequest:
        request = training_service_pb2.CommitStepRequest(
            trainer_epoch=self.trainer_epoch,
            step=self.step,
            outcomes=trajectories.outcomes_to_proto(outcomes),
        )
        if log_probs is not None:
            request.log_probs.CopyFrom(encode_column(log_probs, DataType.FLOAT32, self.encoding))
        return request
