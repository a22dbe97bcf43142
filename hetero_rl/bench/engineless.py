"""A worker that has joined and generates nothing: what benchmarks and fault tests of the hub put in place of a whole worker.

Joins, leases, heartbeats, the outbox and the submit loop are the worker's own; completions come from whoever uses the session.
"""

from types import SimpleNamespace
from typing import cast

from hetero_rl.wire.messages import Capabilities, JoinRequest, NumericsRecord
from hetero_rl.wire.ports import RolloutPort, WeightPort
from hetero_rl.worker.engine_keeper import EngineKeeper
from hetero_rl.worker.link import Link
from hetero_rl.worker.resend import Pacing
from hetero_rl.worker.session import Session

__all__ = ["NUMERICS", "join_without_engine"]

NUMERICS = NumericsRecord(
    engine="none",
    engine_version="",
    torch_version="",
    device_vendor="cpu",
    device_name="",
    driver_version="",
    runtime_version="",
    data_type="float32",
    attention_backend="",
    log_probs_mode="raw",
)
_MOST_TOKENS = 2**20


async def join_without_engine(
    rollout: RolloutPort,
    weights: WeightPort,
    *,
    name: str,
    capacity: int,
    boot_id: str = "boot",
    pacing: Pacing | None = None,
) -> Session:
    """The session of a worker that has joined the hub's run, whatever model it has.

    Args:
        rollout: The hub.
        weights: The hub, or a relay.
        name: Of the worker.
        capacity: Completions that it takes at once.
        boot_id: Of its process.
        pacing: Durations; the product's own without.
    """
    pacing = pacing or Pacing()
    capabilities = Capabilities(
        max_concurrent_sequences=capacity,
        max_sequence_tokens=_MOST_TOKENS,
        scoring=False,
        in_flight_update=False,
        processed_log_probs=False,
    )
    link = Link(rollout, pacing)
    run = await link.repeat("get run", rollout.get_run)
    request = JoinRequest(
        run_id=run.run_id,
        worker_name=name,
        boot_id=boot_id,
        backend="none",
        software_version="0",
        capabilities=capabilities,
        numerics=NUMERICS,
        model_digests=run.model_digests,
    )
    await link.join(request)
    # All that a session and its heartbeats ask of an engine.
    engine = SimpleNamespace(capabilities=lambda: capabilities, numerics=lambda: NUMERICS)
    keeper = SimpleNamespace(engine=engine, generated_tokens=0, busy_seconds=0.0)
    return Session(link, weights, cast("EngineKeeper", keeper), run, pacing)
