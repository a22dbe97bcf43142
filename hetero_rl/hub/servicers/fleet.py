"""`FleetService`: what people and dashboards call."""

from hetero_rl.hub.core import HubCore
from hetero_rl.hub.handlers.fleet import list_events, list_workers, run_status
from hetero_rl.hub.handlers.scoring import get_score, request_calibration
from hetero_rl.hub.handlers.workers import drain, quarantine, readmit
from hetero_rl.hub.servicers.calls import RpcContext, refusing, unpack
from hetero_rl.v1 import fleet_service_pb2 as pb
from hetero_rl.wire.convert import fleet

__all__ = ["FleetServicer"]


class FleetServicer:
    """Translates between messages and handlers."""

    def __init__(self, core: HubCore) -> None:
        self.core = core

    @refusing
    async def ListWorkers(
        self, request: pb.ListWorkersRequest, context: RpcContext
    ) -> pb.ListWorkersResponse:
        """See the protocol."""
        workers = await self.core.run(list_workers, include_gone=request.include_gone)
        return pb.ListWorkersResponse(workers=[fleet.worker_summary_to_proto(worker) for worker in workers])

    @refusing
    async def GetRunStatus(
        self, request: pb.GetRunStatusRequest, context: RpcContext
    ) -> pb.GetRunStatusResponse:
        """See the protocol."""
        return fleet.run_status_to_proto(await self.core.run(run_status))

    @refusing
    async def ListEvents(self, request: pb.ListEventsRequest, context: RpcContext) -> pb.ListEventsResponse:
        """See the protocol."""
        events = await self.core.run(list_events, request.after_sequence, request.limit)
        return pb.ListEventsResponse(events=[fleet.event_to_proto(event) for event in events])

    @refusing
    async def DrainWorker(
        self, request: pb.DrainWorkerRequest, context: RpcContext
    ) -> pb.DrainWorkerResponse:
        """See the protocol."""
        await self.core.run(drain, request.worker_name)
        return pb.DrainWorkerResponse()

    @refusing
    async def QuarantineWorker(
        self, request: pb.QuarantineWorkerRequest, context: RpcContext
    ) -> pb.QuarantineWorkerResponse:
        """See the protocol."""
        await self.core.run(quarantine, request.worker_name, request.reason[:1000])
        return pb.QuarantineWorkerResponse()

    @refusing
    async def ReadmitWorker(
        self, request: pb.ReadmitWorkerRequest, context: RpcContext
    ) -> pb.ReadmitWorkerResponse:
        """See the protocol."""
        await self.core.run(readmit, request.worker_name)
        return pb.ReadmitWorkerResponse()

    @refusing
    async def RequestCalibration(
        self, request: pb.RequestCalibrationRequest, context: RpcContext
    ) -> pb.RequestCalibrationResponse:
        """See the protocol."""
        score_ids = await self.core.run(
            request_calibration,
            frozenset(request.backends),
            unpack(fleet.calibration_card_from_proto, request),
            request.weight_version,
        )
        return pb.RequestCalibrationResponse(score_ids=score_ids)

    @refusing
    async def GetScore(self, request: pb.GetScoreRequest, context: RpcContext) -> pb.GetScoreResponse:
        """See the protocol."""
        return fleet.score_status_to_proto(await self.core.run(get_score, request.score_id))
