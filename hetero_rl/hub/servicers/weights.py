"""`WeightService`: what workers and relays fetch weights from. Bulk: bytes never pass through the core."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from hetero_rl.errors import DamagedError, RefusedError
from hetero_rl.hub.blobs import BlobStore
from hetero_rl.hub.core import HubCore
from hetero_rl.hub.handlers.context import HubContext, Topic
from hetero_rl.hub.handlers.versions import get_plan, latest_version, note_damaged
from hetero_rl.hub.recent_chunks import RecentChunks
from hetero_rl.hub.servicers.calls import RpcContext, poll, refusing, unpack
from hetero_rl.v1 import weight_service_pb2 as pb
from hetero_rl.wire.channels import chunk_bytes
from hetero_rl.wire.chunks import encode_chunk, encode_following
from hetero_rl.wire.convert import fields, weights
from hetero_rl.wire.invalid import invalid

__all__ = ["WeightServicer"]

_NewsRequest = pb.AwaitVersionRequest | pb.FollowVersionRequest

_MOST_SECONDS = 30.0
_NOTE_SECONDS = 60.0
_RECENT_BYTES = 96 * 2**20


def _note_fetch(context: HubContext, digest: str) -> None:
    context.liveness.blob_asked[digest] = context.clock.monotonic()


def _check_offset(request: pb.FetchBlobRequest, *, size: int) -> None:
    if request.offset > size:
        raise invalid("FetchBlobRequest.offset", f"is {request.offset}, the blob has {size} bytes")


def _chunk(piece: Callable[[int, int], bytes | memoryview], offset: int, size: int) -> bytes:
    return encode_chunk(offset, piece(offset, size))


class WeightServicer:
    """Translates between messages, handlers and blobs.

    Args:
        core: Runs the handlers.
        blobs: Where the bytes are.
    """

    def __init__(self, core: HubCore, blobs: BlobStore) -> None:
        self.core = core
        self._blobs = blobs
        self._recent = RecentChunks(_RECENT_BYTES)
        self._proofs: dict[str, asyncio.Task[None]] = {}
        """Blobs that are being hashed, once however many ask."""

    @refusing
    async def GetPlan(self, request: pb.GetPlanRequest, context: RpcContext) -> pb.GetPlanResponse:
        """See the protocol."""
        encodings = unpack(weights.weight_encodings_from_proto, request.encodings)
        manifests = await self.core.run(
            get_plan, request.held_version, request.wanted_version, frozenset(encodings)
        )
        return pb.GetPlanResponse(manifests=[weights.manifest_to_proto(manifest) for manifest in manifests])

    @refusing
    async def FetchBlob(self, request: pb.FetchBlobRequest, context: RpcContext) -> None:
        """See the protocol."""
        await self._prove(request.digest)
        unpack(_check_offset, request, size=self._blobs.size(request.digest))
        await self._send(request.digest, request.offset, context.write)

    async def _send(self, digest: str, offset: int, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Writes the coded chunks of a proven blob."""
        size = self._blobs.size(digest)
        loop = asyncio.get_running_loop()
        noted, most = float("-inf"), chunk_bytes(size)
        with self._blobs.opened(digest) as piece:
            while offset < size:
                if loop.time() - noted > _NOTE_SECONDS:  # says that the blob is still needed
                    await self.core.run(_note_fetch, digest)
                    noted = loop.time()
                message = self._recent.get(digest, offset)
                if message is None:
                    message = await asyncio.to_thread(_chunk, piece, offset, most)
                    self._recent.put(digest, offset, message)
                await write(message)
                offset += min(most, size - offset)

    async def _prove(self, digest: str) -> None:
        """Raises DamagedError, and says so in the run's history, when a blob's bytes are not what they were."""
        self._blobs.size(digest)
        if self._blobs.is_proven(digest):
            return
        proof = self._proofs.get(digest)
        if proof is None:
            proof = self._proofs[digest] = asyncio.create_task(self._hash(digest), name=f"hash {digest[:12]}")
            proof.add_done_callback(lambda _: self._proofs.pop(digest))
        await asyncio.shield(proof)

    async def _hash(self, digest: str) -> None:
        try:
            await asyncio.to_thread(self._blobs.prove, digest)
        except DamagedError as error:
            await self.core.run(note_damaged, str(error))
            raise

    @refusing
    async def AwaitVersion(
        self, request: pb.AwaitVersionRequest, context: RpcContext
    ) -> pb.AwaitVersionResponse:
        """See the protocol."""
        latest, manifests = await self._news(request)
        return pb.AwaitVersionResponse(latest_weight_version=latest, manifests=manifests)

    @refusing
    async def FollowVersion(self, request: pb.FollowVersionRequest, context: RpcContext) -> None:
        """See the protocol."""
        latest, manifests = await self._news(request)
        await context.write(pb.FollowVersionResponse(latest_weight_version=latest, manifests=manifests))
        if manifests and manifests[0].blobs:
            digest = manifests[0].blobs[0].digest
            await self._prove(digest)
            await self._send(digest, 0, lambda chunk: context.write(encode_following(chunk)))

    async def _news(self, request: _NewsRequest) -> tuple[int, list[Any]]:
        """The latest version, once it is above the caller's or its wait is over, and the way to it."""
        wait = unpack(fields.seconds_of, request, field="wait")

        async def attempt(_repeated: bool) -> int:
            return await self.core.run(latest_version)

        latest = await poll(
            self.core,
            Topic.VERSIONS,
            min(wait, _MOST_SECONDS),
            attempt,
            lambda version: version > request.after_version,
        )
        return latest, await self._way(request, latest)

    async def _way(self, request: _NewsRequest, latest: int) -> list[Any]:
        """The way that goes with the news of a version, for a caller that wants it; none where there is none."""
        if not request.encodings or latest <= request.after_version:
            return []
        encodings = unpack(weights.weight_encodings_from_proto, request.encodings)
        try:
            way = await self.core.run(get_plan, request.after_version, 0, frozenset(encodings))
        except RefusedError:  # to be told when the caller asks for it
            return []
        return [weights.manifest_to_proto(manifest) for manifest in way]
