"""The hub's metrics: pure functions from what `FleetService` answers, and the object that asks at each scrape.

    scrape ──► FleetReadings.collect ──► hub: status, workers, events since the last scrape ──► readings

A hub asks its own core; a trainer that started the hub asks over the wire. The events are counted from the beginning of the journal,
so the counts go on where they were when the hub starts again.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hetero_rl.hub.syncing import SyncTally
from hetero_rl.metrics.catalogue import MOST_WORKERS, Reading, declare
from hetero_rl.observe.scaling import ScaleHint, scale_hint
from hetero_rl.wire.messages import Event, QueueCounts, RunStatus, WorkerSummary
from hetero_rl.wire.ports import FleetPort

__all__ = ["EVENT_PAGE", "FleetReadings", "FleetState", "fleet_readings", "state_of"]

EVENT_PAGE = 1000
_MOST_KINDS = 200
_WORKER = ("worker", "backend")

_UPTIME = declare("hetero_rl_hub_uptime_seconds", "Seconds since the hub started.")
_WRITABLE = declare("hetero_rl_hub_journal_writable", "1 while the journal takes writes.")
_SYNCS = declare(
    "hetero_rl_hub_journal_syncs_total", "Syncs of the journal; all commits that wait share one."
)
_SYNC_SECONDS = declare(
    "hetero_rl_hub_journal_sync_seconds_total", "Seconds of these syncs; acknowledgements wait for them."
)
_CONNECTED = declare("hetero_rl_hub_trainer_connected", "1 while a trainer is connected.")
_RUN = declare("hetero_rl_run_info", "1 for the run that is open.", ["run_id"])
_STEP = declare("hetero_rl_run_step", "Optimizer steps committed.")
_STEPS = declare("hetero_rl_run_target_steps", "Optimizer steps of the whole run.")
_MAX_LAG = declare("hetero_rl_run_max_lag_steps", "Largest lag that the run trains on, in optimizer steps.")
_VERSION = declare("hetero_rl_run_weight_version", "Newest weight version published.")
_GROUPS = declare("hetero_rl_hub_groups", "Prompt groups in each stage.", ["purpose", "state"])
_WORKERS = declare(
    "hetero_rl_hub_workers", "Workers known, those that left or died too.", ["backend", "state"]
)
_HINT = declare(
    "hetero_rl_hub_scale_hint", "1 for what the run waits for now, 0 for everything else.", ["hint"]
)
_INCIDENTS = declare("hetero_rl_hub_incidents_total", "Refusals and mishaps that the hub counted.", ["kind"])
_EVENTS = declare("hetero_rl_hub_events_total", "Entries of the run's history.", ["kind"])
_TOKENS = declare(
    "hetero_rl_hub_worker_generated_tokens_total", "Completion tokens that a worker reported.", _WORKER
)
_BUSY = declare(
    "hetero_rl_hub_worker_busy_seconds_total", "Seconds that a worker's engine generated.", _WORKER
)
_COMPLETIONS = declare(
    "hetero_rl_hub_worker_completions_total", "Completions that a worker handed in.", _WORKER
)
_LEASES = declare("hetero_rl_hub_worker_leases", "Leases that a worker holds.", _WORKER)
_LOADED = declare("hetero_rl_hub_worker_weight_version", "Weight version that a worker serves.", _WORKER)
_SILENCE = declare("hetero_rl_hub_worker_silence_seconds", "Seconds since a worker's last call.", _WORKER)
_GAP = declare(
    "hetero_rl_hub_worker_probe_gap_nats", "Mean |log pi - log mu| of a worker's last probe card.", _WORKER
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetState:
    """What a hub answers at one moment."""

    status: RunStatus
    workers: tuple[WorkerSummary, ...]
    """Those that died or left too."""
    events: tuple[Event, ...] = ()
    """After the position that was asked for, oldest first; all of them."""
    writable: bool | None = None
    """Whether the journal takes writes; None where only the hub itself knows."""
    syncs: SyncTally | None = None
    """What syncs of the journal have cost; likewise."""


def state_of(fleet: FleetPort, after_sequence: int) -> FleetState:
    """Asks a hub over the wire."""
    events: list[Event] = []
    while page := fleet.list_events(events[-1].sequence if events else after_sequence, EVENT_PAGE):
        events += page
        if len(page) < EVENT_PAGE:
            break
    return FleetState(
        status=fleet.run_status(), workers=fleet.list_workers(include_gone=True), events=tuple(events)
    )


class FleetReadings:
    """What a scrape of the hub shows.

    Args:
        ask: Returns the hub's state, with the events after a sequence number. Called on the thread of the scrape.
    """

    def __init__(self, ask: Callable[[int], FleetState]) -> None:
        self._ask = ask
        self._counted_to = 0
        self._kinds: Counter[str] = Counter()

    def collect(self) -> Iterator[Reading]:
        """Asks the hub; raises what the hub refuses with."""
        state = self._ask(self._counted_to)
        for event in state.events:
            # Two scrapes at once may bring the same event twice.
            if event.sequence > self._counted_to:
                self._kinds[event.kind] += 1
                self._counted_to = event.sequence
        return fleet_readings(state, dict(self._kinds))


def fleet_readings(state: FleetState, event_kinds: Mapping[str, int]) -> Iterator[Reading]:
    """All of a hub's readings.

    Args:
        state: What the hub answered.
        event_kinds: Number of events of each kind since the run began.
    """
    status = state.status
    yield _UPTIME(status.uptime)
    if state.writable is not None:
        yield _WRITABLE(state.writable)
    if state.syncs is not None:
        yield _SYNCS(state.syncs.syncs)
        yield _SYNC_SECONDS(state.syncs.seconds)
    yield _CONNECTED(status.trainer_connected)
    if status.run is not None:
        yield _RUN(1, status.run.run_id)
        yield _VERSION(status.run.latest_weight_version)
    yield _STEP(status.step)
    yield _STEPS(status.total_steps)
    yield _MAX_LAG(status.max_lag)
    yield from _group_readings("training", status.training)
    yield from _group_readings("evaluation", status.evaluation)
    hint = scale_hint(status, state.workers)
    yield from (_HINT(each is hint, each.value) for each in ScaleHint)
    yield from (_INCIDENTS(count, kind) for kind, count in sorted(status.counters.items())[:_MOST_KINDS])
    yield from (_EVENTS(count, kind) for kind, count in sorted(event_kinds.items())[:_MOST_KINDS])
    yield from _worker_readings(state.workers)


def _group_readings(purpose: str, counts: QueueCounts) -> Iterator[Reading]:
    for stage in ("queued", "leased", "finished", "taken", "committed"):
        yield _GROUPS(getattr(counts, stage), purpose, stage)


def _worker_readings(workers: Sequence[WorkerSummary]) -> Iterator[Reading]:
    known = Counter((worker.backend, worker.state) for worker in workers)
    yield from (
        _WORKERS(count, backend, state.name.lower()) for (backend, state), count in sorted(known.items())
    )
    alive = [worker for worker in workers if worker.state.name not in {"DEAD", "LEFT"}]
    for worker in alive[:MOST_WORKERS]:
        who = (worker.worker_name, worker.backend)
        yield _TOKENS(worker.generated_tokens, *who)
        yield _BUSY(worker.busy_seconds, *who)
        yield _COMPLETIONS(worker.completions, *who)
        yield _LEASES(worker.leases, *who)
        yield _LOADED(worker.loaded_weight_version, *who)
        yield _SILENCE(worker.silence, *who)
        if worker.last_probe is not None:
            yield _GAP(worker.last_probe.mean_absolute_difference, *who)
