"""What a worker has done since it joined, as sums. Touched on the event loop only."""

import dataclasses

from hetero_rl.wire.messages import WeightSync

__all__ = ["SyncSeconds", "Tally"]


@dataclasses.dataclass(slots=True)
class SyncSeconds:
    """Where the time of weight versions went."""

    fetch: float = 0.0
    decode: float = 0.0
    verify: float = 0.0
    pause: float = 0.0
    """The engine loaded weights and did nothing else."""


@dataclasses.dataclass(slots=True)
class Tally:
    """Sums that only grow."""

    completions: int = 0
    syncs: int = 0
    fetched_bytes: int = 0
    fallbacks: int = 0
    relay_bypasses: int = 0
    seconds: SyncSeconds = dataclasses.field(default_factory=SyncSeconds)

    def note_sync(self, sync: WeightSync) -> None:
        """Adds the way to one version."""
        self.syncs += 1
        self.fetched_bytes += sync.fetched_bytes
        self.fallbacks += sync.fallbacks
        self.relay_bypasses += sync.relay_bypasses
        self.seconds.fetch += sync.fetch_seconds
        self.seconds.decode += sync.decode_seconds
        self.seconds.verify += sync.verify_seconds
        self.seconds.pause += sync.pause_seconds
