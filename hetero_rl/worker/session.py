"""What the loops of a worker share while it is joined. Everything is touched on the event loop only.

Invariants: a lease is in `running` from its grant until its results are in the outbox, and in `unacknowledged` from then
until the hub has them on disk or refused them. Heartbeats name both, so a lease ends only when nothing of it is left.
"""

import asyncio
import dataclasses
import logging
from collections import Counter, deque
from collections.abc import Sequence

from hetero_rl.wire.messages import (
    GenerateWork,
    Lease,
    RunDescription,
    ScoreBatch,
    TrajectoryBatch,
    WeightSync,
)
from hetero_rl.wire.ports import WeightPort
from hetero_rl.worker.ask_ahead import AskAhead
from hetero_rl.worker.engine_keeper import EngineKeeper
from hetero_rl.worker.gate import ServingGate
from hetero_rl.worker.link import Link
from hetero_rl.worker.resend import Pacing
from hetero_rl.worker.tally import Tally

__all__ = ["Parcel", "Session"]

_logger = logging.getLogger(__name__)

_BACKLOG = 4  # times the engine's capacity: finished completions that may wait for the hub before no more are asked for

_UNREPORTED_SYNCS = 256  # a hub that is away for longer loses the oldest of these measurements

_ASKING_SHARE = 4  # work is asked for once a quarter of the engine is free


@dataclasses.dataclass(frozen=True, slots=True)
class Parcel:
    """Results on their way to the hub; the sequence number stays the same however often they are sent."""

    lease_id: str
    sequence: int
    final: bool
    results: TrajectoryBatch | ScoreBatch

    @property
    def completions(self) -> int:
        """Completions inside."""
        return len(self.results.lengths) if isinstance(self.results, TrajectoryBatch) else 0


class Session:
    """One worker between joining and leaving.

    Args:
        link: The hub, as the worker that joined.
        weights: Where weights come from.
        keeper: The engine.
        run: What the hub said about the run.
        pacing: Durations.
        ask_ahead: Whether more work is held than the engine decodes.
    """

    def __init__(
        self,
        link: Link,
        weights: WeightPort,
        keeper: EngineKeeper,
        run: RunDescription,
        pacing: Pacing,
        *,
        ask_ahead: bool = False,
    ) -> None:
        self.link = link
        self.weights = weights
        self.keeper = keeper
        self.run = run
        self.pacing = pacing
        self.gate = ServingGate()
        self.running: dict[str, asyncio.Task[None]] = {}
        self.unacknowledged: Counter[str] = Counter()
        self.weight_syncs: deque[WeightSync] = deque(maxlen=_UNREPORTED_SYNCS)
        """Versions that this worker came to and that no heartbeat has reported yet."""
        self.tally = Tally()
        self.outbox: asyncio.Queue[Parcel] = asyncio.Queue()
        self.stopping = asyncio.Event()
        self.stop_reason = ""
        self.capacity = keeper.engine.capabilities().max_concurrent_sequences
        self.largest_lease = 1
        self.ahead = AskAhead(self.capacity, enabled=ask_ahead)
        self.numerics_id = keeper.engine.numerics().numerics_id
        self._next_sequence = 1
        self._waiting_completions = 0

    def stop(self, reason: str) -> None:
        """Asks the worker to finish what it has and leave."""
        if not self.stopping.is_set():
            _logger.info("stopping: %s", reason)
            self.stop_reason = reason
            self.stopping.set()

    @property
    def room(self) -> int:
        """Completions that may be asked for now; 0 while the engine has enough to do or the hub is behind."""
        if self._waiting_completions >= _BACKLOG * self.capacity:
            return 0
        # Fewer than a group has would only make the hub wait; a question for each group alone would cost more than the
        # short completions of a small model do.
        worthwhile = min(max(self.largest_lease, self.capacity // _ASKING_SHARE), self.capacity)
        most = self.capacity + self.ahead.held(worthwhile)
        free = most - self.keeper.engine.unfinished_sequences
        return free if free >= worthwhile else 0

    @property
    def lease_ids(self) -> tuple[str, ...]:
        """Leases that are still worked on or on their way."""
        return tuple(dict.fromkeys([*self.running, *self.unacknowledged]))

    def note_lease(self, lease: Lease) -> None:
        """Remembers how large leases are."""
        if isinstance(lease.work, GenerateWork):
            self.largest_lease = max(self.largest_lease, len(lease.work.sample_indices))

    def hand_in(self, lease_id: str, results: Sequence[TrajectoryBatch | ScoreBatch]) -> None:
        """Puts all results of a lease into the outbox."""
        for position, batch in enumerate(results, start=1):
            parcel = Parcel(lease_id, self._next_sequence, position == len(results), batch)
            self._next_sequence += 1
            self.unacknowledged[lease_id] += 1
            self._waiting_completions += parcel.completions
            self.tally.completions += parcel.completions
            self.outbox.put_nowait(parcel)

    def acknowledged(self, parcel: Parcel) -> None:
        """Forgets results that the hub has, or does not want."""
        self._waiting_completions -= parcel.completions
        self.unacknowledged[parcel.lease_id] -= 1
        if self.unacknowledged[parcel.lease_id] <= 0:
            del self.unacknowledged[parcel.lease_id]

    def drop_leases(self, lease_ids: Sequence[str], why: str) -> None:
        """Stops working on leases that are no longer this worker's."""
        for lease_id in lease_ids:
            if lease_id in self.running:
                _logger.warning("lease %s is dropped: %s", lease_id, why)
                self.running[lease_id].cancel()
