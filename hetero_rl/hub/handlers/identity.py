"""Who a calling worker is, and whether it is still the one under its name."""

import dataclasses

from hetero_rl.errors import FencedError, RefusedError
from hetero_rl.hub.handlers.context import HubContext, Topic
from hetero_rl.hub.stores.records import WorkerRow
from hetero_rl.wire.messages import WorkerIdentity, WorkerState

__all__ = ["current_worker", "state_alive"]


def state_alive(worker: WorkerRow) -> WorkerState:
    """State of a worker that is heard again."""
    return WorkerState.DRAINING if worker.draining else WorkerState.ACTIVE


def current_worker(context: HubContext, identity: WorkerIdentity, *, alive: bool = True) -> WorkerRow:
    """The worker that calls; a call is a sign of life and revives one that was declared dead.

    Args:
        context: The hub.
        identity: Name and epoch of the caller.
        alive: False for a repetition by the hub itself, which proves nothing.

    Raises:
        RefusedError: NOT_FOUND, nobody joined under that name, or it left.
        FencedError: A newer process joined under that name.
    """
    worker = context.store.worker(identity.worker_name)
    if worker is None or identity.worker_epoch > worker.worker_epoch:
        raise RefusedError(
            f"worker {identity.worker_name!r} with epoch {identity.worker_epoch} never joined: join first",
            "NOT_FOUND",
        )
    if identity.worker_epoch < worker.worker_epoch:
        raise FencedError(
            f"epoch {identity.worker_epoch} of worker {identity.worker_name!r} is over, epoch {worker.worker_epoch} has "
            "taken the name: stop this process"
        )
    if not alive:
        return worker
    if worker.state is WorkerState.LEFT:
        raise RefusedError(f"worker {identity.worker_name!r} left: join again", "NOT_FOUND")
    context.liveness.seen[identity.worker_name] = context.clock.monotonic()
    if worker.state is WorkerState.DEAD:
        worker = dataclasses.replace(worker, state=state_alive(worker), state_reason="")
        context.store.put_worker(worker)
        context.event("worker_returned", "heard again after it was declared dead", identity.worker_name)
        context.notify(Topic.WORK)
    return worker
