"""What a relay process exports."""

from collections.abc import Iterator

from hetero_rl.metrics.catalogue import Reading, declare
from hetero_rl.relay.cache import RelayCache

__all__ = ["RelayReadings"]

_FETCHED = declare("hetero_rl_relay_fetched_bytes_total", "Bytes of weights that crossed the line.")
_KEPT = declare("hetero_rl_relay_kept_bytes", "Bytes of complete blobs on the relay's disk.")


class RelayReadings:
    """A source over a relay's cache; two numbers, which are whole at any moment."""

    def __init__(self, cache: RelayCache) -> None:
        self._cache = cache

    def collect(self) -> Iterator[Reading]:
        """What is so now."""
        yield _FETCHED(self._cache.fetched_bytes)
        yield _KEPT(self._cache.kept_bytes)
