"""Which devices of this host a process may use."""

import os

from hetero_rl.worker.backend import Backend

__all__ = ["usable_ids"]


def usable_ids(backend: Backend) -> tuple[str, ...]:
    """Ids of the devices that a backend finds here, narrowed down by its variable when that is set."""
    narrowed = os.environ.get(backend.visible_devices) if backend.visible_devices else None
    if narrowed is not None:
        return tuple(part.strip() for part in narrowed.split(",") if part.strip())
    return backend.detect().ids
