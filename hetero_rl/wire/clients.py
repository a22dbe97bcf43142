"""The asyncio clients of a worker: work and results, and weights.

    event loop ── heartbeat, lease ──► control channel ──► hub
       │ └─────── submit ────────────► bulk channel    ──► hub
       └───────── weights ───────────► bulk channel of WeightClient ──► hub or relay

Every call has a deadline and none is repeated here. `close` cancels what is under way; its callers then get
`UnreachableError`. Cancelling a task cancels its call. Messages of the hub are converted like any other input:
`InvalidMessageError` means that the hub speaks another dialect.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from hetero_rl.errors import (
    FencedError,
    HeteroRLError,
    InvalidMessageError,
    RefusedError,
    UnreachableError,
)
from hetero_rl.v1 import (
    rollout_service_pb2,
    rollout_service_pb2_grpc,
    weight_service_pb2,
    weight_service_pb2_grpc,
)
from hetero_rl.wire.channels import (
    DEADLINES,
    DEFAULT_MAX_MESSAGE_BYTES,
    Deadlines,
    bulk_options,
    control_options,
    is_loopback,
    open_async_channel,
)
from hetero_rl.wire.chunks import decode_chunk, decode_following
from hetero_rl.wire.column_codec import ColumnEncoding
from hetero_rl.wire.convert import fields, run, submissions, weights, workers
from hetero_rl.wire.following import News, VersionFollower
from hetero_rl.wire.messages import (
    Heartbeat,
    HeartbeatReply,
    JoinGrant,
    JoinRequest,
    LeaseGrant,
    ProbeResult,
    RunDescription,
    Submission,
    SubmissionReceipt,
    WeightEncoding,
    WeightManifest,
    WorkerIdentity,
)
from hetero_rl.wire.refusal import from_rpc_error

__all__ = ["RolloutClient", "WeightClient", "default_encoding"]


def default_encoding(address: str) -> ColumnEncoding:
    """RAW on this machine, where copying is cheaper than coding; BYTE_PLANES across a network."""
    return ColumnEncoding.RAW if is_loopback(address) else ColumnEncoding.BYTE_PLANES


class _AsyncClient:
    """Channels that are closed together, and one way to call."""

    def __init__(self, address: str, *channels: grpc.aio.Channel) -> None:
        self._address = address
        self._channels = channels

    async def close(self) -> None:
        """Ends the connections; running calls are cancelled."""
        for channel in self._channels:
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(
        self, method: Callable[..., Awaitable[Any]], request: object, name: str, deadline: float
    ) -> Any:
        try:
            return await method(request, timeout=deadline)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, f"{name} at {self._address}") from error


class RolloutClient(_AsyncClient):
    """`RolloutPort` over gRPC.

    Args:
        address: host:port of the hub.
        credentials: From `credentials.channel_credentials`; None for plaintext.
        encoding: Layout of submitted columns; None chooses by address.
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
        control = open_async_channel(address, credentials, control_options(max_message_bytes))
        bulk = open_async_channel(address, credentials, bulk_options(max_message_bytes))
        super().__init__(address, control, bulk)
        self._stub: Any = rollout_service_pb2_grpc.RolloutServiceStub(control)
        self._bulk_stub: Any = rollout_service_pb2_grpc.RolloutServiceStub(bulk)
        self._encoding = encoding or default_encoding(address)
        self._deadlines = deadlines
        self._hub_takes_batches = True

    async def get_run(self) -> RunDescription:
        """What a worker must know before it loads a model."""
        request = rollout_service_pb2.GetRunRequest()
        response = await self._call(self._stub.GetRun, request, "GetRun", self._deadlines.control)
        fields.require(response, "run")
        return run.run_description_from_proto(response.run)

    async def join(self, request: JoinRequest) -> JoinGrant:
        """Makes the worker known; safe to repeat with the same boot id."""
        message = workers.join_request_to_proto(request)
        response = await self._call(self._stub.Join, message, "Join", self._deadlines.control)
        return workers.join_grant_from_proto(response)

    async def lease_work(
        self, worker: WorkerIdentity, *, loaded_weight_version: int, free_sequences: int, wait: float
    ) -> LeaseGrant:
        """Asks for work and waits up to `wait` seconds for it."""
        request = rollout_service_pb2.LeaseWorkRequest(
            worker=workers.identity_to_proto(worker),
            loaded_weight_version=loaded_weight_version,
            free_sequences=free_sequences,
            wait=fields.duration_to_proto(wait),
        )
        deadline = wait + self._deadlines.control
        response = await self._call(self._stub.LeaseWork, request, "LeaseWork", deadline)
        return workers.lease_grant_from_proto(response)

    async def submit_results(self, submission: Submission) -> SubmissionReceipt:
        """Hands in results; the receipt means that they are on disk."""
        message = workers.submission_to_proto(submission, self._encoding)
        response = await self._call(
            self._bulk_stub.SubmitResults, message, "SubmitResults", self._deadlines.submit
        )
        return workers.receipt_from_proto(response)

    async def submit_batch(
        self, sequence: Sequence[Submission]
    ) -> tuple[SubmissionReceipt | HeteroRLError, ...]:
        """Hands in several results at once; a receipt or a refusal for each, in their order.

        An older hub that takes them only one by one gets them so.
        """
        if self._hub_takes_batches:
            message = submissions.batch_to_proto(sequence, self._encoding)
            try:
                response = await self._bulk_stub.SubmitBatch(message, timeout=self._deadlines.submit)
                return submissions.outcomes_from_proto(response, len(sequence))
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise from_rpc_error(error, f"SubmitBatch at {self._address}") from error
                self._hub_takes_batches = False
        return tuple(await asyncio.gather(*map(self._outcome, sequence)))

    async def _outcome(self, submission: Submission) -> SubmissionReceipt | HeteroRLError:
        try:
            return await self.submit_results(submission)
        except (RefusedError, FencedError) as error:
            return error

    async def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Renews the worker and the leases it names."""
        message = workers.heartbeat_to_proto(heartbeat)
        response = await self._call(self._stub.Heartbeat, message, "Heartbeat", self._deadlines.control)
        return workers.heartbeat_reply_from_proto(response)

    async def report_probe(self, worker: WorkerIdentity, result: ProbeResult, numerics_id: str) -> bool:
        """Reports a probe card's outcome; False means that the worker is in quarantine now."""
        request = rollout_service_pb2.ReportProbeRequest(
            worker=workers.identity_to_proto(worker),
            result=weights.probe_result_to_proto(result),
            numerics_id=numerics_id,
        )
        response = await self._call(self._stub.ReportProbe, request, "ReportProbe", self._deadlines.control)
        return bool(response.accepted)

    async def leave(self, worker: WorkerIdentity, reason: str) -> None:
        """Gives back leases and says goodbye."""
        request = rollout_service_pb2.LeaveRequest(worker=workers.identity_to_proto(worker), reason=reason)
        await self._call(self._stub.Leave, request, "Leave", self._deadlines.control)


class WeightClient(_AsyncClient):
    """`WeightPort` over gRPC, on a channel of its own.

    Args:
        address: host:port of the hub or of a relay.
        credentials: From `credentials.channel_credentials`; None for plaintext.
        max_message_bytes: Largest message sent; the hub refuses what exceeds its own limit.
        deadlines: Seconds that calls may take.
        follow: Whether the bytes of a new version are asked for together with its news.
    """

    def __init__(
        self,
        address: str,
        credentials: grpc.ChannelCredentials | None = None,
        *,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        deadlines: Deadlines = DEADLINES,
        follow: bool = True,
    ) -> None:
        channel = open_async_channel(address, credentials, bulk_options(max_message_bytes))
        super().__init__(address, channel)
        self._stub: Any = weight_service_pb2_grpc.WeightServiceStub(channel)
        # Its responses stay bytes: an object for each would copy them once more.
        self._fetch_blob: Any = channel.unary_stream(
            "/hetero_rl.v1.WeightService/FetchBlob",
            request_serializer=weight_service_pb2.FetchBlobRequest.SerializeToString,
        )
        self._follower = VersionFollower(channel, address) if follow else None
        self._deadlines = deadlines
        self._encodings: Sequence[WeightEncoding] = ()
        """Those of the last plan; the next news of a version comes with a plan for them."""
        self._told: tuple[int, tuple[WeightManifest, ...]] | None = None
        """A plan that came with such news and was not asked for yet, and the version that it begins at."""

    async def get_plan(
        self, *, held_version: int, wanted_version: int, encodings: Sequence[WeightEncoding]
    ) -> tuple[WeightManifest, ...]:
        """Manifests to apply in order; empty when up to date. Version 0 holds nothing, or wants the latest.

        A plan that came with the news of a version answers the first question after it, without a call.
        """
        told, self._told = self._told, None
        if told is not None and (told[0], 0, self._encodings) == (held_version, wanted_version, encodings):
            return told[1]
        self._encodings = encodings
        if self._follower is not None:  # its bytes belong to another way
            self._follower.drop()
        request = weight_service_pb2.GetPlanRequest(
            held_version=held_version,
            wanted_version=wanted_version,
            encodings=weights.weight_encodings_to_proto(encodings),
        )
        response = await self._call(self._stub.GetPlan, request, "GetPlan", self._deadlines.submit)
        return tuple(weights.manifest_from_proto(manifest) for manifest in response.manifests)

    async def fetch_blob(self, digest: str, offset: int) -> AsyncIterator[bytes | memoryview]:
        """Bytes of a blob from an offset, chunk by chunk; the deadline is for each chunk.

        Args:
            digest: SHA-256 of the blob, hexadecimal.
            offset: First byte wanted.

        Raises:
            InvalidMessageError: A chunk does not follow the one before it.
        """
        name, decode = f"FetchBlob at {self._address}", decode_following
        call = self._follower.take(digest, offset) if self._follower else None
        if call is None:
            call = self._fetch_blob(weight_service_pb2.FetchBlobRequest(digest=digest, offset=offset))
            decode = decode_chunk
        try:
            while (chunk := await self._next_chunk(call, name, decode)) is not None:
                start, data = chunk
                if start != offset:
                    raise InvalidMessageError(
                        f"FetchBlobResponse.offset of blob {digest} is {start}, expected {offset}"
                    )
                offset += len(data)
                yield data
        finally:
            call.cancel()

    async def await_version(self, after_version: int, wait: float) -> int:
        """Waits up to `wait` seconds for a version above the given one; returns the latest either way."""
        latest, plan = await self._news(after_version, wait, wait + self._deadlines.control)
        self._told = (after_version, plan) if plan else None
        return latest

    async def _news(self, after_version: int, wait: float, deadline: float) -> News:
        if self._follower is not None and self._encodings:
            news = await self._follower.news(after_version, wait, self._encodings, deadline)
            if news is not None:
                return news
        request = weight_service_pb2.AwaitVersionRequest(
            after_version=after_version,
            wait=fields.duration_to_proto(wait),
            encodings=weights.weight_encodings_to_proto(self._encodings),
        )
        response = await self._call(self._stub.AwaitVersion, request, "AwaitVersion", deadline)
        plan = tuple(weights.manifest_from_proto(manifest) for manifest in response.manifests)
        return int(response.latest_weight_version), plan

    async def _next_chunk(
        self, call: Any, name: str, decode: Callable[[bytes], tuple[int, memoryview]]
    ) -> tuple[int, memoryview] | None:
        try:
            async with asyncio.timeout(self._deadlines.chunk):
                response = await call.read()
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, name) from error
        except TimeoutError as error:
            raise UnreachableError(f"{name}: no chunk for {self._deadlines.chunk} s") from error
        if response is grpc.aio.EOF:
            await self._check_status(call, name)
            return None
        return decode(response)

    @staticmethod
    async def _check_status(call: Any, name: str) -> None:
        """A stream that was cut ends like one that is complete; only its status tells them apart."""
        if (status := await call.code()) is not grpc.StatusCode.OK:
            raise UnreachableError(f"{name}: the stream ended with {status.name}: {await call.details()}")
