"""The blocking clients: `TrainingPort` for the trainer, `FleetPort` for people and dashboards.

    any thread ── open, enqueue, commit, publish ──► control channel ──► hub
       └───────── take, put_blob ──────────────────► bulk channel    ──► hub

Channels are safe to share between threads. Every call has a deadline and none is repeated here; a thread that waits is
freed by the deadline or by `close`, after which it gets `UnreachableError`. Messages of the hub are converted like any
other input: `InvalidMessageError` means that the hub speaks another dialect.
"""

from collections.abc import Collection, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import grpc

from hetero_rl.errors import RefusedError, UnreachableError
from hetero_rl.v1 import (
    fleet_service_pb2,
    fleet_service_pb2_grpc,
    training_service_pb2,
    training_service_pb2_grpc,
)
from hetero_rl.wire.channels import (
    CHUNK_BYTES,
    DEADLINES,
    DEFAULT_MAX_MESSAGE_BYTES,
    Deadlines,
    bulk_options,
    control_options,
    open_channel,
)
from hetero_rl.wire.clients import default_encoding
from hetero_rl.wire.column_codec import ColumnEncoding
from hetero_rl.wire.commits import Commit
from hetero_rl.wire.convert import fields, fleet, run, trajectories, weights, work
from hetero_rl.wire.invalid import invalid
from hetero_rl.wire.messages import (
    BlobReference,
    EnqueueReceipt,
    Event,
    FinishedGroup,
    ProbeCard,
    PromptGroup,
    RunGrant,
    RunRequest,
    RunStatus,
    ScoreStatus,
    SequenceOutcome,
    WeightManifest,
    WorkerSummary,
)
from hetero_rl.wire.ports import BatchProgress
from hetero_rl.wire.refusal import from_rpc_error
from hetero_rl.wire.upload import Upload

__all__ = ["FleetClient", "TrainingClient"]


class _BlockingClient:
    """Channels that are closed together, and one way to call."""

    def __init__(self, address: str, *channels: grpc.Channel) -> None:
        self._address = address
        self._channels = channels

    def close(self) -> None:
        """Ends the connections; running calls are cancelled."""
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, method: Any, request: object, name: str, deadline: float) -> Any:
        try:
            return method(request, timeout=deadline)
        except grpc.RpcError as error:
            raise from_rpc_error(error, f"{name} at {self._address}") from error

    def _stream(self, method: Any, request: object, name: str, deadline: float) -> list[Any]:
        try:
            return list(method(request, timeout=deadline))
        except grpc.RpcError as error:
            raise from_rpc_error(error, f"{name} at {self._address}") from error


class TrainingClient(_BlockingClient):
    """`TrainingPort` over gRPC; remembers the trainer epoch that `open_run` was given.

    Args:
        address: host:port of the hub.
        credentials: From `credentials.channel_credentials`; None for plaintext.
        encoding: Layout of the columns sent; None chooses by address.
        max_message_bytes: Largest message sent; the hub refuses what exceeds its own limit.
        deadlines: Seconds that calls may take.
    """

    def __init__(
        self,
        address: str,
        credentials: grpc.ChannelCredentials | None = None,
        *,
        encoding: ColumnEncoding | None = None,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        deadlines: Deadlines = DEADLINES,
    ) -> None:
        control = open_channel(address, credentials, control_options(max_message_bytes))
        bulk = open_channel(address, credentials, bulk_options(max_message_bytes))
        super().__init__(address, control, bulk)
        self._stub: Any = training_service_pb2_grpc.TrainingServiceStub(control)
        self._bulk_stub: Any = training_service_pb2_grpc.TrainingServiceStub(bulk)
        self._encoding = encoding or default_encoding(address)
        self._deadlines = deadlines
        self._largest = max_message_bytes
        self._open_epoch: int | None = None

    def open_run(self, request: RunRequest) -> RunGrant:
        """Opens a new run or continues one; fences every trainer before this one."""
        message = run.run_request_to_proto(request)
        response = self._call(self._stub.OpenRun, message, "OpenRun", self._deadlines.submit)
        grant = run.run_grant_from_proto(response)
        self._open_epoch = grant.trainer_epoch
        return grant

    def enqueue_groups(self, groups: Sequence[PromptGroup]) -> EnqueueReceipt:
        """Puts prompt groups into the queue; known group ids are not queued again.

        Many groups go in several messages. When one of those fails, those before it are queued: repeat the whole call.
        """
        messages = [work.prompt_group_to_proto(group, self._encoding) for group in groups]
        accepted, credit = 0, 0
        for batch in _by_size(messages):
            request = training_service_pb2.EnqueueGroupsRequest(trainer_epoch=self._epoch, groups=batch)
            response = self._call(self._stub.EnqueueGroups, request, "EnqueueGroups", self._deadlines.submit)
            receipt = run.enqueue_receipt_from_proto(response)
            accepted, credit = accepted + receipt.accepted, receipt.credits
        return EnqueueReceipt(accepted=accepted, credits=credit)

    def take_batch(self, step: int, wait: float) -> tuple[FinishedGroup, ...] | None:
        """The batch of optimizer step `step`, counted from 1; None when it is not complete after `wait` seconds."""
        request = training_service_pb2.TakeBatchRequest(
            trainer_epoch=self._epoch, step=step, wait=fields.duration_to_proto(wait)
        )
        return self._take(self._bulk_stub.TakeBatch, request, "TakeBatch", wait)

    def take_batch_ahead(
        self, step: int, wait: float, *, held: Collection[str], at_least: int
    ) -> BatchProgress:
        """As `take_batch`, but reads groups ahead of their batch; see `TrainingPort`."""
        request = training_service_pb2.TakeBatchRequest(
            trainer_epoch=self._epoch,
            step=step,
            wait=fields.duration_to_proto(wait),
            groups_ahead=at_least,
            held_group_ids=held,
        )
        deadline = wait + self._deadlines.stream
        responses = self._stream(self._bulk_stub.TakeBatch, request, "TakeBatch", deadline)
        return _progress(responses, held)

    def take_evaluation(self, group_ids: Sequence[str], wait: float) -> tuple[FinishedGroup, ...] | None:
        """Finished evaluation groups; None when some are missing after `wait` seconds."""
        request = training_service_pb2.TakeEvaluationRequest(
            trainer_epoch=self._epoch, group_ids=group_ids, wait=fields.duration_to_proto(wait)
        )
        return self._take(self._bulk_stub.TakeEvaluation, request, "TakeEvaluation", wait)

    def commit_step(
        self, step: int, outcomes: Sequence[SequenceOutcome], log_probs: bytes | None = None
    ) -> None:
        """Says that a step was applied and what became of each sequence; `log_probs` is a float32 column."""
        commit = Commit(self._epoch, step, outcomes, log_probs, self._encoding)
        if commit.size > self._largest // 2:
            deadline = self._deadlines.upload(commit.size)
            self._call(self._bulk_stub.CommitLongStep, commit.parts(), "CommitLongStep", deadline)
        else:
            self._call(self._bulk_stub.CommitStep, commit.request(), "CommitStep", self._deadlines.submit)

    def put_blob(self, blob: BlobReference, chunks: Iterator[bytes]) -> None:
        """Uploads a blob unless the hub has it; starts where the hub's part of an earlier upload ends.

        Args:
            blob: Digest and size of the bytes.
            chunks: All bytes of the blob from the first, in pieces of any size.

        Raises:
            InvalidMessageError: The chunks do not add up to the size.
        """
        request = training_service_pb2.GetBlobRequest(
            trainer_epoch=self._epoch, blob=weights.blob_to_proto(blob)
        )
        response = self._call(self._stub.GetBlob, request, "GetBlob", self._deadlines.control)
        if response.held_bytes > blob.size:
            raise invalid("GetBlobResponse.held_bytes", f"is {response.held_bytes}, the blob has {blob.size}")
        # An empty blob is sent all the same: 0 bytes held does not say whether the hub knows it.
        if response.held_bytes < blob.size or blob.size == 0:
            self._upload(Upload(self._epoch, blob, chunks, response.held_bytes))

    def publish_version(self, manifest: WeightManifest) -> tuple[int, ...]:
        """Makes a weight version known; its blobs must be stored.

        Returns:
            Versions that workers hold from which a merged delta to this one would be of use, newest first.
        """
        request = training_service_pb2.PublishVersionRequest(
            trainer_epoch=self._epoch, manifest=weights.manifest_to_proto(manifest)
        )
        response = self._call(self._stub.PublishVersion, request, "PublishVersion", self._deadlines.submit)
        return tuple(response.wanted_bases)

    def add_route(self, manifest: WeightManifest) -> None:
        """Adds another way to a version that is published; its blobs must be stored."""
        request = training_service_pb2.AddWeightRouteRequest(
            trainer_epoch=self._epoch, manifest=weights.manifest_to_proto(manifest)
        )
        self._call(self._stub.AddWeightRoute, request, "AddWeightRoute", self._deadlines.submit)

    def commit_checkpoint(self, step: int, oldest_kept_step: int) -> None:
        """Says that a checkpoint is durable."""
        request = training_service_pb2.CommitCheckpointRequest(
            trainer_epoch=self._epoch, step=step, oldest_kept_step=oldest_kept_step
        )
        self._call(self._stub.CommitCheckpoint, request, "CommitCheckpoint", self._deadlines.submit)

    def close_run(self, *, complete: bool) -> None:
        """Ends the run, or leaves it to be continued."""
        request = training_service_pb2.CloseRunRequest(trainer_epoch=self._epoch, complete=complete)
        self._call(self._stub.CloseRun, request, "CloseRun", self._deadlines.submit)

    @property
    def _epoch(self) -> int:
        if self._open_epoch is None:
            raise RefusedError("call open_run first: it gives the trainer epoch", "RUN_NOT_OPEN")
        return self._open_epoch

    def _take(self, method: Any, request: object, name: str, wait: float) -> tuple[FinishedGroup, ...] | None:
        responses = self._stream(method, request, name, wait + self._deadlines.stream)
        for response in responses:
            fields.require(response, "group")
        groups = tuple(trajectories.finished_group_from_proto(response.group) for response in responses)
        return groups or None

    def _upload(self, upload: Upload) -> None:
        deadline = self._deadlines.upload(upload.blob.size)
        try:
            response = self._call(self._bulk_stub.PutBlob, upload.requests(), "PutBlob", deadline)
        except UnreachableError:
            # gRPC ends the call when reading a chunk fails; that failure is the story, not the cancelled call.
            if upload.error is not None:
                raise upload.error from None
            raise
        if response.held_bytes != upload.blob.size:
            raise UnreachableError(
                f"PutBlob at {self._address} ended with {response.held_bytes} of {upload.blob.size} bytes held"
            )


def _progress(responses: Sequence[Any], held: Collection[str]) -> BatchProgress:
    """What a hub answered; an older one sends whole batches and names nothing."""
    ahead = [response.ahead for response in responses]
    if any(ahead) and not all(ahead):
        raise invalid("TakeBatchResponse.ahead", "is set for a part of the answer")
    names, groups = [], []
    for response in responses:
        if response.held_group_id and not response.HasField("group"):
            if response.held_group_id not in held:
                raise invalid(
                    "TakeBatchResponse.held_group_id", f"{response.held_group_id!r} is not held here"
                )
            names.append(response.held_group_id)
            continue
        fields.require(response, "group")
        groups.append(trajectories.finished_group_from_proto(response.group))
        names.append(groups[-1].group.group_id)
    return BatchProgress(None if any(ahead) or not names else tuple(names), tuple(groups))


def _by_size(messages: Sequence[Any]) -> Iterator[list[Any]]:
    """Runs of messages of about one chunk in all; at least one run, so that an empty call still asks for credits."""
    batch: list[Any] = []
    size = 0
    for message in messages:
        batch.append(message)
        size += message.ByteSize()
        if size >= CHUNK_BYTES:
            yield batch
            batch, size = [], 0
    if batch or not messages:
        yield batch


class FleetClient(_BlockingClient):
    """`FleetPort` over gRPC.

    Args:
        address: host:port of the hub.
        credentials: From `credentials.channel_credentials`; None for plaintext.
        max_message_bytes: Largest message sent; the hub refuses what exceeds its own limit.
        deadlines: Seconds that calls may take.
    """

    def __init__(
        self,
        address: str,
        credentials: grpc.ChannelCredentials | None = None,
        *,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        deadlines: Deadlines = DEADLINES,
    ) -> None:
        channel = open_channel(address, credentials, control_options(max_message_bytes))
        super().__init__(address, channel)
        self._stub: Any = fleet_service_pb2_grpc.FleetServiceStub(channel)
        self._deadline = deadlines.control

    def list_workers(self, *, include_gone: bool) -> tuple[WorkerSummary, ...]:
        """Workers by name."""
        request = fleet_service_pb2.ListWorkersRequest(include_gone=include_gone)
        response = self._call(self._stub.ListWorkers, request, "ListWorkers", self._deadline)
        return tuple(fleet.worker_summary_from_proto(worker) for worker in response.workers)

    def run_status(self) -> RunStatus:
        """The run at a glance."""
        request = fleet_service_pb2.GetRunStatusRequest()
        response = self._call(self._stub.GetRunStatus, request, "GetRunStatus", self._deadline)
        return fleet.run_status_from_proto(response)

    def list_events(self, after_sequence: int, limit: int = 0) -> tuple[Event, ...]:
        """What happened after a position, oldest first; limit 0 leaves it to the hub."""
        request = fleet_service_pb2.ListEventsRequest(after_sequence=after_sequence, limit=limit)
        response = self._call(self._stub.ListEvents, request, "ListEvents", self._deadline)
        return tuple(fleet.event_from_proto(event) for event in response.events)

    def drain_worker(self, worker_name: str) -> None:
        """Stops giving a worker new work."""
        request = fleet_service_pb2.DrainWorkerRequest(worker_name=worker_name)
        self._call(self._stub.DrainWorker, request, "DrainWorker", self._deadline)

    def quarantine_worker(self, worker_name: str, reason: str) -> None:
        """Stops trusting a worker."""
        request = fleet_service_pb2.QuarantineWorkerRequest(worker_name=worker_name, reason=reason)
        self._call(self._stub.QuarantineWorker, request, "QuarantineWorker", self._deadline)

    def readmit_worker(self, worker_name: str) -> None:
        """Ends a quarantine."""
        request = fleet_service_pb2.ReadmitWorkerRequest(worker_name=worker_name)
        self._call(self._stub.ReadmitWorker, request, "ReadmitWorker", self._deadline)

    def request_calibration(
        self, backends: Sequence[str], card: ProbeCard, weight_version: int
    ) -> tuple[str, ...]:
        """Asks workers of these backends, or of all, to score a card; returns one score id for each worker asked."""
        request = fleet_service_pb2.RequestCalibrationRequest(
            backends=backends, card=weights.probe_card_to_proto(card), weight_version=weight_version
        )
        response = self._call(self._stub.RequestCalibration, request, "RequestCalibration", self._deadline)
        return tuple(response.score_ids)

    def get_score(self, score_id: str) -> ScoreStatus:
        """What became of one of those scores."""
        request = fleet_service_pb2.GetScoreRequest(score_id=score_id)
        response = self._call(self._stub.GetScore, request, "GetScore", self._deadline)
        return fleet.score_status_from_proto(response)
