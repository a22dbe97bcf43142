"""`TrainingService`: what the trainer calls.

TakeBatch ── which groups? (core, one short call) ──► for each group: read it (core) ── write ──► trainer
                                                      gRPC's flow control stops the reading when the trainer does
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc

from hetero_rl.errors import InvalidMessageError
from hetero_rl.hub.blobs import BlobStore, Upload
from hetero_rl.hub.core import HubCore
from hetero_rl.hub.handlers.context import HubContext, Topic
from hetero_rl.hub.handlers.queue import (
    commit_step,
    enqueue_groups,
    read_finished_groups,
    step_size,
    take_batch,
    take_batch_ahead,
    take_evaluation,
)
from hetero_rl.hub.handlers.retention import commit_checkpoint, prune_some
from hetero_rl.hub.handlers.runs import close_run, open_run
from hetero_rl.hub.handlers.versions import add_route, publish_version, wanted_bases
from hetero_rl.hub.servicers.calls import RpcContext, check_decoded, poll, refusing, unpack
from hetero_rl.hub.servicers.long_commit import LongCommit
from hetero_rl.telemetry.logs import describe_process
from hetero_rl.telemetry.tracing import record_groups, trace_run
from hetero_rl.v1 import training_service_pb2 as pb
from hetero_rl.wire.convert import fields, run, trajectories, weights, work
from hetero_rl.wire.messages import DataType, FinishedGroup
from hetero_rl.wire.validation import check_blob_reference

__all__ = ["TrainingServicer"]

_MOST_SECONDS = 60.0
_READ_TOGETHER = 16
_READ_BYTES = 1 << 20
"""A trip to the core costs as much as a small group does; what is read waits in memory until it is written."""


def _check_epoch(context: HubContext, trainer_epoch: int) -> None:
    context.trainer_run(trainer_epoch)


class TrainingServicer:
    """Translates between messages and handlers.

    Args:
        core: Runs the handlers.
        blobs: Where uploads go.
        max_message_bytes: Largest message; bounds what a compressed column may grow to.
    """

    def __init__(self, core: HubCore, blobs: BlobStore, max_message_bytes: int) -> None:
        self.core = core
        self._blobs = blobs
        self._max_tokens = max_message_bytes // 2

    @refusing
    async def OpenRun(self, request: pb.OpenRunRequest, context: RpcContext) -> pb.OpenRunResponse:
        """See the protocol."""
        asked = unpack(run.run_request_from_proto, request)
        grant = await self.core.run(open_run, asked)
        describe_process(run=asked.run_id)
        trace_run(asked.run_id)
        return run.run_grant_to_proto(grant)

    @refusing
    async def EnqueueGroups(
        self, request: pb.EnqueueGroupsRequest, context: RpcContext
    ) -> pb.EnqueueGroupsResponse:
        """See the protocol."""
        groups = [unpack(work.prompt_group_from_proto, group) for group in request.groups]
        receipt = await self.core.run(enqueue_groups, request.trainer_epoch, groups)
        record_groups("enqueued", [group.group_id for group in groups])
        return run.enqueue_receipt_to_proto(receipt)

    @refusing
    async def TakeBatch(self, request: pb.TakeBatchRequest, context: RpcContext) -> None:
        """See the protocol."""
        if request.groups_ahead:
            await self._stream_ahead(request, context)
            return

        async def attempt(_repeated: bool) -> tuple[str, ...] | None:
            return await self.core.run(take_batch, request.trainer_epoch, request.step)

        await self._stream(attempt, request, context, pb.TakeBatchResponse)

    @refusing
    async def TakeEvaluation(self, request: pb.TakeEvaluationRequest, context: RpcContext) -> None:
        """See the protocol."""
        group_ids = tuple(request.group_ids)

        async def attempt(_repeated: bool) -> tuple[str, ...] | None:
            return await self.core.run(take_evaluation, request.trainer_epoch, group_ids)

        await self._stream(attempt, request, context, pb.TakeEvaluationResponse)

    async def _stream(
        self,
        attempt: Callable[[bool], Awaitable[tuple[str, ...] | None]],
        request: pb.TakeBatchRequest | pb.TakeEvaluationRequest,
        context: RpcContext,
        response: Callable[..., Any],
    ) -> None:
        wait = min(unpack(fields.seconds_of, request, field="wait"), _MOST_SECONDS)
        group_ids = await poll(self.core, Topic.RESULTS, wait, attempt, lambda ids: ids is not None)
        record_groups("taken", group_ids or ())
        async for group in self._finished(group_ids or (), context):
            await context.write(response(group=trajectories.finished_group_to_proto(group)))

    async def _stream_ahead(self, request: pb.TakeBatchRequest, context: RpcContext) -> None:
        held, enough = frozenset(request.held_group_ids), request.groups_ahead

        async def look(at_least: int) -> tuple[bool, tuple[str, ...]]:
            return await self.core.run(take_batch_ahead, request.trainer_epoch, request.step, held, at_least)

        async def attempt(_repeated: bool) -> tuple[bool, tuple[str, ...]]:
            return await look(enough)

        wait = min(unpack(fields.seconds_of, request, field="wait"), _MOST_SECONDS)
        complete, group_ids = await poll(
            self.core, Topic.RESULTS, wait, attempt, lambda found: found[0] or len(found[1]) >= enough
        )
        if not group_ids:
            complete, group_ids = await look(1)
        if complete:
            record_groups("taken", group_ids)
        wanted = [group_id for group_id in group_ids if not (complete and group_id in held)]
        groups = self._finished(wanted, context)
        for group_id in group_ids:
            if complete and group_id in held:
                await context.write(pb.TakeBatchResponse(held_group_id=group_id))
                continue
            group = trajectories.finished_group_to_proto(await anext(groups))
            await context.write(pb.TakeBatchResponse(group=group, ahead=not complete))

    async def _finished(self, group_ids: Sequence[str], context: RpcContext) -> AsyncIterator[FinishedGroup]:
        """Reads groups, small ones together; ends the call, so that it is repeated, when one has to be generated again."""
        read = 0
        while read < len(group_ids):
            part = group_ids[read : read + _READ_TOGETHER]
            for group_id, group in zip(
                part, await self.core.run(read_finished_groups, part, _READ_BYTES), strict=False
            ):
                if group is None:
                    await context.abort(
                        grpc.StatusCode.UNAVAILABLE,
                        f"completions of group {group_id} were damaged; they are generated again",
                    )
                    raise AssertionError("abort returned")
                read += 1
                yield group

    @refusing
    async def CommitStep(self, request: pb.CommitStepRequest, context: RpcContext) -> pb.CommitStepResponse:
        """See the protocol."""
        outcomes = unpack(trajectories.outcomes_from_proto, request.outcomes)
        log_probs = unpack(
            fields.optional_column_of,
            request,
            field="log_probs",
            data_type=DataType.FLOAT32,
            max_elements=self._max_tokens,
        )
        duplicate = await self.core.run(commit_step, request.trainer_epoch, request.step, outcomes, log_probs)
        return pb.CommitStepResponse(duplicate=duplicate)

    @refusing
    async def CommitLongStep(
        self, requests: AsyncIterator[pb.CommitLongStepRequest], context: RpcContext
    ) -> pb.CommitLongStepResponse:
        """See the protocol."""
        first = await anext(requests, None)
        if first is None:
            raise InvalidMessageError(
                "the stream is empty: the first message names the step", "CommitLongStepRequest.part"
            )
        check_decoded(first)
        size = await self.core.run(step_size, first.part.trainer_epoch, first.part.step)
        if size is None:
            return pb.CommitLongStepResponse(duplicate=True)
        commit = LongCommit(first.part.trainer_epoch, first.part.step, size, self._max_tokens)
        unpack(commit.add, first.part)
        async for request in requests:
            check_decoded(request)
            unpack(commit.add, request.part)
        duplicate = await self.core.run(
            commit_step, commit.trainer_epoch, commit.step, commit.outcomes, commit.log_probs
        )
        return pb.CommitLongStepResponse(duplicate=duplicate)

    @refusing
    async def GetBlob(self, request: pb.GetBlobRequest, context: RpcContext) -> pb.GetBlobResponse:
        """See the protocol."""
        blob = unpack(weights.blob_from_proto, request.blob)
        unpack(check_blob_reference, blob)
        await self.core.run(_check_epoch, request.trainer_epoch)
        return pb.GetBlobResponse(held_bytes=await asyncio.to_thread(self._blobs.held_bytes, blob))

    @refusing
    async def PutBlob(
        self, requests: AsyncIterator[pb.PutBlobRequest], context: RpcContext
    ) -> pb.PutBlobResponse:
        """See the protocol."""
        first = await anext(requests, None)
        if first is None:
            raise InvalidMessageError(
                "the stream is empty: the first message names the blob", "PutBlobRequest.blob"
            )
        check_decoded(first)
        blob = unpack(weights.blob_from_proto, first.blob)
        unpack(check_blob_reference, blob)
        await self.core.run(_check_epoch, first.trainer_epoch)
        if not self._blobs.has(blob):
            upload = await asyncio.to_thread(self._blobs.open_upload, blob)
            try:
                await _receive(upload, first, requests)
            finally:
                await asyncio.to_thread(upload.close)
        # Trainers wait for model files and versions with whatever they do next; workers wait for model files.
        self.core.board.post(Topic.WORK)
        return pb.PutBlobResponse(held_bytes=blob.size)

    @refusing
    async def PublishVersion(
        self, request: pb.PublishVersionRequest, context: RpcContext
    ) -> pb.PublishVersionResponse:
        """See the protocol."""
        manifest = unpack(weights.manifest_from_proto, request.manifest)
        duplicate, unneeded = await self.core.run(publish_version, request.trainer_epoch, manifest)
        await self._delete(unneeded)
        bases = await self.core.run(wanted_bases)
        return pb.PublishVersionResponse(duplicate=duplicate, wanted_bases=bases)

    @refusing
    async def AddWeightRoute(
        self, request: pb.AddWeightRouteRequest, context: RpcContext
    ) -> pb.AddWeightRouteResponse:
        """See the protocol."""
        manifest = unpack(weights.manifest_from_proto, request.manifest)
        duplicate, unneeded = await self.core.run(add_route, request.trainer_epoch, manifest)
        await self._delete(unneeded)
        return pb.AddWeightRouteResponse(duplicate=duplicate)

    @refusing
    async def CommitCheckpoint(
        self, request: pb.CommitCheckpointRequest, context: RpcContext
    ) -> pb.CommitCheckpointResponse:
        """See the protocol."""
        unneeded = await self.core.run(
            commit_checkpoint, request.trainer_epoch, request.step, request.oldest_kept_step
        )
        await self._delete(unneeded)
        while await self.core.run(prune_some):
            pass  # a little at a time, so that other calls come in between
        return pb.CommitCheckpointResponse()

    @refusing
    async def CloseRun(self, request: pb.CloseRunRequest, context: RpcContext) -> pb.CloseRunResponse:
        """See the protocol."""
        await self.core.run(close_run, request.trainer_epoch, complete=request.complete)
        return pb.CloseRunResponse()

    async def _delete(self, digests: tuple[str, ...]) -> None:
        for digest in digests:
            await asyncio.to_thread(self._blobs.delete, digest)


async def _receive(
    upload: Upload, first: pb.PutBlobRequest, requests: AsyncIterator[pb.PutBlobRequest]
) -> None:
    """Writes the chunks of a stream and finishes the blob; one chunk is in memory at a time."""
    if first.data:
        await asyncio.to_thread(upload.write, first.offset, first.data)
    async for request in requests:
        check_decoded(request)
        await asyncio.to_thread(upload.write, request.offset, request.data)
    await asyncio.to_thread(upload.finish)
