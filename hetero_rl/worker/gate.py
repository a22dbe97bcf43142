"""Whether this worker serves now, and with which weights it is trusted.

    closed ──open(version)──► open: leases are asked for, results are handed in
      ▲                         │
      └──────── close ──────────┘  weights are being replaced, the engine died, or the hub does not trust the worker

Results that contain tokens of a version wait until the version's probe card has passed; the gate is closed meanwhile.
The weight loop alone opens the gate.
"""

import asyncio

__all__ = ["ServingGate"]


class ServingGate:
    """Opened and closed by the weight loop; waited for by everybody else."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self.version = 0
        """The newest version that passed its probe card; 0 before the first."""
        self.quarantined = False
        """Whether the hub has stopped trusting this worker."""
        self.hub_trusts = True
        """Whether the hub's last word was that this worker is active."""
        self.attention = asyncio.Event()
        """Set when the weight loop has something to do besides waiting for a version."""
        self.changed = asyncio.Event()
        """Set at every opening; whoever looks for changes clears it."""

    @property
    def is_open(self) -> bool:
        """Whether work may be done."""
        return self._open.is_set()

    def open(self, version: int) -> None:
        """Lets work be done with `version` and what came before it."""
        self.version = version
        self.quarantined = False
        self._open.set()
        self.changed.set()

    def close(self) -> None:
        """Stops asking for work and holds results back."""
        self._open.clear()

    def quarantine(self) -> None:
        """The hub trusts this worker no longer."""
        self.quarantined = True
        self.hub_trusts = False
        self.close()

    async def wait_open(self) -> None:
        """Returns when work may be done."""
        await self._open.wait()
