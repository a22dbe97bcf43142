"""`RolloutService`: what a worker calls."""

import asyncio
from collections.abc import Iterable

from hetero_rl.errors import HeteroRLError, InvalidMessageError
from hetero_rl.hub.core import HubCore
from hetero_rl.hub.handlers.context import HubContext, Topic
from hetero_rl.hub.handlers.leasing import lease_work
from hetero_rl.hub.handlers.results import submit_results
from hetero_rl.hub.handlers.runs import describe_run
from hetero_rl.hub.handlers.workers import heartbeat, join, leave, report_probe
from hetero_rl.hub.servicers.authorization import check_acts_as
from hetero_rl.hub.servicers.calls import RpcContext, poll, refusing, unpack
from hetero_rl.telemetry.tracing import record_groups
from hetero_rl.v1 import rollout_service_pb2 as pb
from hetero_rl.wire.convert import fields, run, submissions, weights, workers
from hetero_rl.wire.invalid import invalid
from hetero_rl.wire.messages import (
    GenerateWork,
    LeaseGrant,
    NoWorkReason,
    Submission,
    SubmissionReceipt,
    TrajectoryBatch,
    WorkerIdentity,
)

__all__ = ["RolloutServicer"]

_MOST_SECONDS = 30.0
_THREAD_BYTES = 2**20  # decoding that much takes 2 to 6 ms; more would hold up heartbeats on the event loop
_BYTES_PER_TOKEN = 8
_FINAL = {NoWorkReason.WEIGHTS_TOO_OLD, NoWorkReason.DRAINING, NoWorkReason.RUN_COMPLETE}


class RolloutServicer:
    """Translates between messages and handlers.

    Args:
        core: Runs the handlers.
        max_message_bytes: Largest message; bounds what a compressed column may grow to.
    """

    def __init__(self, core: HubCore, max_message_bytes: int) -> None:
        self.core = core
        self._max_tokens = max_message_bytes // 2

    @refusing
    async def GetRun(self, request: pb.GetRunRequest, context: RpcContext) -> pb.GetRunResponse:
        """See the protocol."""
        description = await self.core.run(describe_run)
        return pb.GetRunResponse(run=run.run_description_to_proto(description))

    @refusing
    async def Join(self, request: pb.JoinRequest, context: RpcContext) -> pb.JoinResponse:
        """See the protocol."""
        join_request = unpack(workers.join_request_from_proto, request)
        check_acts_as(join_request.worker_name)
        grant = await self.core.run(join, join_request)
        return workers.join_grant_to_proto(grant)

    @refusing
    async def LeaseWork(self, request: pb.LeaseWorkRequest, context: RpcContext) -> pb.LeaseWorkResponse:
        """See the protocol."""
        identity = _sender(request.worker)
        wait = unpack(fields.seconds_of, request, field="wait")

        async def attempt(repeated: bool) -> LeaseGrant:
            return await self.core.run(
                lease_work,
                identity,
                loaded_weight_version=request.loaded_weight_version,
                free_sequences=request.free_sequences,
                waiting=repeated,
            )

        grant = await poll(self.core, Topic.WORK, min(wait, _MOST_SECONDS), attempt, _ends_waiting)
        record_groups("leased", _groups_of(grant), worker=identity.worker_name)
        return workers.lease_grant_to_proto(grant)

    @refusing
    async def SubmitResults(
        self, request: pb.SubmitResultsRequest, context: RpcContext
    ) -> pb.SubmitResultsResponse:
        """See the protocol."""
        check_acts_as(request.worker.worker_name)
        convert = workers.submission_from_proto
        if request.ByteSize() > _THREAD_BYTES:
            submission = await asyncio.to_thread(unpack, convert, request, max_tokens=self._max_tokens)
        else:
            submission = unpack(convert, request, max_tokens=self._max_tokens)
        receipt = await self.core.run(submit_results, submission)
        _record_stored([submission])
        return workers.receipt_to_proto(receipt)

    @refusing
    async def SubmitBatch(
        self, request: pb.SubmitBatchRequest, context: RpcContext
    ) -> pb.SubmitBatchResponse:
        """See the protocol."""
        unpack(_check_number, request)
        for submission in request.submissions:
            check_acts_as(submission.worker.worker_name)
        if request.ByteSize() > _THREAD_BYTES:
            items = await asyncio.to_thread(self._convert, request)
        else:
            items = self._convert(request)
        outcomes = await self.core.run_each(_submit, items)
        _record_stored(
            item
            for item, outcome in zip(items, outcomes, strict=True)
            if isinstance(item, Submission) and not isinstance(outcome, HeteroRLError)
        )
        return pb.SubmitBatchResponse(outcomes=map(submissions.outcome_to_proto, outcomes))

    def _convert(self, request: pb.SubmitBatchRequest) -> list[Submission | InvalidMessageError]:
        """All submissions together may take as much memory as one may: a few bytes can stand for very many."""
        left = self._max_tokens
        items = []
        for message in request.submissions:
            item = _submission_or_error(message, left)
            if isinstance(item, Submission):
                left = max(0, left - item.results.size // _BYTES_PER_TOKEN)
            items.append(item)
        return items

    @refusing
    async def Heartbeat(self, request: pb.HeartbeatRequest, context: RpcContext) -> pb.HeartbeatResponse:
        """See the protocol."""
        check_acts_as(request.worker.worker_name)
        reply = await self.core.run(heartbeat, unpack(workers.heartbeat_from_proto, request))
        return workers.heartbeat_reply_to_proto(reply)

    @refusing
    async def ReportProbe(
        self, request: pb.ReportProbeRequest, context: RpcContext
    ) -> pb.ReportProbeResponse:
        """See the protocol."""
        identity = _sender(request.worker)
        result = unpack(weights.probe_result_from_proto, request.result)
        accepted = await self.core.run(report_probe, identity, result, request.numerics_id)
        return pb.ReportProbeResponse(accepted=accepted)

    @refusing
    async def Leave(self, request: pb.LeaveRequest, context: RpcContext) -> pb.LeaveResponse:
        """See the protocol."""
        identity = _sender(request.worker)
        await self.core.run(leave, identity, request.reason[:1000])
        return pb.LeaveResponse()


def _check_number(request: pb.SubmitBatchRequest) -> None:
    number = len(request.submissions)
    if not 1 <= number <= submissions.MAX_SUBMISSIONS:
        raise invalid(
            "SubmitBatchRequest.submissions",
            f"has {number} elements, expected 1 to {submissions.MAX_SUBMISSIONS}",
            "TOO_LARGE" if number else "INVALID_FIELD",
        )


def _submission_or_error(
    message: pb.SubmitResultsRequest, max_tokens: int
) -> Submission | InvalidMessageError:
    try:
        return workers.submission_from_proto(message, max_tokens=max_tokens)
    except InvalidMessageError as error:
        return error


def _submit(context: HubContext, item: Submission | InvalidMessageError) -> SubmissionReceipt:
    """Stores one of several; one that could not be converted is refused here, so that it is counted like any other."""
    if isinstance(item, InvalidMessageError):
        raise item
    return submit_results(context, item)


# Failpoints and logs know both ways of handing in under one name.
_submit.__name__ = submit_results.__name__


def _groups_of(grant: LeaseGrant) -> list[str]:
    return [lease.work.group_id for lease in grant.leases if isinstance(lease.work, GenerateWork)]


def _record_stored(stored: Iterable[Submission]) -> None:
    for submission in stored:
        if isinstance(submission.results, TrajectoryBatch):
            record_groups("stored", [submission.results.group_id], worker=submission.worker.worker_name)


def _sender(worker: pb.WorkerIdentity) -> WorkerIdentity:
    identity = unpack(workers.identity_from_proto, worker)
    check_acts_as(identity.worker_name)
    return identity


def _ends_waiting(grant: LeaseGrant) -> bool:
    return bool(grant.leases) or grant.no_work_reason in _FINAL
