"""The outcomes of a step that come in several messages, put together within the size that the step has."""

from hetero_rl.errors import InvalidMessageError
from hetero_rl.v1 import training_service_pb2 as pb
from hetero_rl.wire.convert import fields, trajectories
from hetero_rl.wire.messages import DataType, SequenceOutcome

__all__ = ["LongCommit"]

_FLOAT32_BYTES = 4


class LongCommit:
    """What has arrived of a step's outcomes and log-probabilities.

    Args:
        trainer_epoch: Of the first message; every other one has the same.
        step: Likewise.
        size: Sequences and tokens of the step's batch; more is never kept.
        max_elements: Most elements of one message's column.
    """

    def __init__(self, trainer_epoch: int, step: int, size: tuple[int, int], max_elements: int) -> None:
        self.trainer_epoch = trainer_epoch
        self.step = step
        self.outcomes: list[SequenceOutcome] = []
        self._sequences, self._tokens = size
        self._max_elements = max_elements
        self._log_probs: bytearray | None = None

    @property
    def log_probs(self) -> bytes | None:
        """The whole column; None when no message had any of it."""
        return None if self._log_probs is None else bytes(self._log_probs)

    def add(self, request: pb.CommitStepRequest) -> None:
        """Takes the next message; raises InvalidMessageError when it belongs elsewhere or holds more than there is."""
        if (request.trainer_epoch, request.step) != (self.trainer_epoch, self.step):
            raise InvalidMessageError(
                f"a message of epoch {request.trainer_epoch} and step {request.step} in a stream of epoch "
                f"{self.trainer_epoch} and step {self.step}",
                "CommitStepRequest.step",
            )
        left = self._sequences - len(self.outcomes)
        if len(request.outcomes.group_ids) > left:
            raise InvalidMessageError(
                f"more outcomes than the step's {self._sequences} sequences", "CommitStepRequest.outcomes"
            )
        if request.outcomes.group_ids:
            self.outcomes += trajectories.outcomes_from_proto(request.outcomes)
        self._add_log_probs(request)

    def _add_log_probs(self, request: pb.CommitStepRequest) -> None:
        held = len(self._log_probs or b"") // _FLOAT32_BYTES
        part = fields.optional_column_of(
            request,
            "log_probs",
            DataType.FLOAT32,
            max_elements=min(self._max_elements, self._tokens - held),
        )
        if part is not None:
            if self._log_probs is None:
                self._log_probs = bytearray()
            self._log_probs += part
