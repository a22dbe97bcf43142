"""News of a weight version with the bytes that come behind it on the same stream, which saves a round trip.

    await_version ── FollowVersion ──► peer          peer ── news, the way ──► await_version: done
    fetch_blob(the way's first blob, 0) ◄── the rest of the same stream ◄── bytes, as far as the window lets them
        any other question ──► the stream is cancelled, `FetchBlob` is asked

One stream at a time: the next wait ends the one before. A peer that does not know the call is not asked again.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from hetero_rl.errors import InvalidMessageError, UnreachableError
from hetero_rl.v1 import weight_service_pb2 as pb
from hetero_rl.wire.convert import fields, weights
from hetero_rl.wire.messages import WeightEncoding, WeightManifest
from hetero_rl.wire.refusal import from_rpc_error

__all__ = ["News", "VersionFollower"]

News = tuple[int, tuple[WeightManifest, ...]]
"""The latest version, and the way to it."""


class VersionFollower:
    """Asks for news, and keeps the stream that they came on.

    Args:
        channel: To the hub or a relay.
        address: Of the peer, for messages.
    """

    def __init__(self, channel: grpc.aio.Channel, address: str) -> None:
        # Responses stay bytes: an object for each would copy them once more.
        self._call: Any = channel.unary_stream(
            "/hetero_rl.v1.WeightService/FollowVersion",
            request_serializer=pb.FollowVersionRequest.SerializeToString,
        )
        self._name = f"FollowVersion at {address}"
        self._known = True
        self._kept: tuple[str, Any] | None = None
        """A stream whose news were told, and the blob of which it has the bytes."""

    async def news(
        self, after_version: int, wait: float, encodings: Sequence[WeightEncoding], deadline: float
    ) -> News | None:
        """Waits for a version above the given one; None when the peer does not know the call.

        Args:
            after_version: What the caller holds.
            wait: Seconds.
            encodings: What it decodes.
            deadline: Seconds after which the peer counts as unreachable.
        """
        self.drop()
        if not self._known:
            return None
        request = pb.FollowVersionRequest(
            after_version=after_version,
            wait=fields.duration_to_proto(wait),
            encodings=weights.weight_encodings_to_proto(encodings),
        )
        call = self._call(request)
        kept = False
        try:
            first = await self._first(call, deadline)
            if first is None:
                self._known = False
                return None
            way = tuple(weights.manifest_from_proto(manifest) for manifest in first.manifests)
            if way and way[0].blobs:
                self._kept, kept = (way[0].blobs[0].digest, call), True
            return int(first.latest_weight_version), way
        finally:
            if not kept:
                call.cancel()

    def take(self, digest: str, offset: int) -> Any | None:
        """The stream with the bytes of a blob, once; None when there is none. Whoever takes it cancels it."""
        if self._kept is None or self._kept[0] != digest:
            return None
        if offset:  # the caller has a part of it already
            self.drop()
            return None
        (_, call), self._kept = self._kept, None
        return call

    def drop(self) -> None:
        """Ends the stream that is kept."""
        if self._kept is not None:
            self._kept[1].cancel()
            self._kept = None

    async def _first(self, call: Any, deadline: float) -> pb.FollowVersionResponse | None:
        """The news; None when the peer does not know the call."""
        try:
            async with asyncio.timeout(deadline):
                message = await call.read()
                status = await call.code() if message is grpc.aio.EOF else None
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return None
            raise from_rpc_error(error, self._name) from error
        except TimeoutError as error:
            raise UnreachableError(f"{self._name}: no answer for {deadline} s") from error
        if status is grpc.StatusCode.UNIMPLEMENTED:
            return None
        if status is not None:
            raise UnreachableError(f"{self._name}: the stream ended with {status.name} before the news")
        try:
            return pb.FollowVersionResponse.FromString(message)
        except DecodeError as error:
            raise InvalidMessageError(f"{len(message)} bytes are no FollowVersionResponse") from error
