"""`WeightService`: what workers and relays fetch weights from. Bulk: bytes never pass through the core."""

import asyncio

from hetero_rl.hub.blobs import BlobStore
from hetero_rl.hub.core import HubCore
from hetero_rl.hub.handlers.context import HubContext, Topic
from hetero_rl.hub.handlers.versions import get_plan, latest_version
from hetero_rl.hub.servicers.calls import RpcContext, poll, refusing, unpack
from hetero_rl.v1 import weight_service_pb2 as pb
from hetero_rl.wire.channels import CHUNK_BYTES
from hetero_rl.wire.convert import fields, weights
from hetero_rl.wire.invalid import invalid

__all__ = ["WeightServicer"]

_MOST_SECONDS = 30.0
_NOTE_SECONDS = 60.0


def _note_fetch(context: HubContext, digest: str) -> None:
    context.liveness.blob_asked[digest] = context.clock.monotonic()


def _check_offset(request: pb.FetchBlobRequest, *, size: int) -> None:
    if request.offset > size:
        raise invalid("FetchBlobRequest.offset", f"is {request.offset}, the blob has {size} bytes")


class WeightServicer:
    """Translates between messages, handlers and blobs.

    Args:
        core: Runs the handlers.
        blobs: Where the bytes are.
    """

    def __init__(self, core: HubCore, blobs: BlobStore) -> None:
        self.core = core
        self._blobs = blobs

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
        size = self._blobs.size(request.digest)
        unpack(_check_offset, request, size=size)
        loop = asyncio.get_running_loop()
        noted, offset = float("-inf"), request.offset
        while offset < size:
            if loop.time() - noted > _NOTE_SECONDS:  # says that the blob is still needed
                await self.core.run(_note_fetch, request.digest)
                noted = loop.time()
            data = await asyncio.to_thread(self._blobs.read, request.digest, offset, CHUNK_BYTES)
            await context.write(pb.FetchBlobResponse(offset=offset, data=data))
            offset += len(data)

    @refusing
    async def AwaitVersion(
        self, request: pb.AwaitVersionRequest, context: RpcContext
    ) -> pb.AwaitVersionResponse:
        """See the protocol."""
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
        return pb.AwaitVersionResponse(latest_weight_version=latest)
