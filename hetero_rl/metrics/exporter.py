"""`observability.metrics_listen`: opens the exporter of a process, and turns readings into what Prometheus reads.

A source is any object whose `collect()` gives readings; it is asked at each scrape, on the thread of the scrape.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar

import hetero_rl
from hetero_rl.config.tree import Config
from hetero_rl.errors import ConfigError, RefusedError
from hetero_rl.launch.checks import split_address
from hetero_rl.metrics.catalogue import Kind, Reading, declare
from hetero_rl.metrics.server import MetricsServer
from hetero_rl.wire.credentials import check_listen_address

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family

__all__ = ["Exporter", "Source", "exporting", "families", "on_loop"]

T = TypeVar("T")
SCRAPE_SECONDS = 8.0
_BUILD = declare("hetero_rl_build_info", "1 for the version that runs.", ["role", "version"])

_logger = logging.getLogger(__name__)


class Source(Protocol):
    """Where readings come from."""

    def collect(self) -> Iterable[Reading]:
        """What is so now; raises HeteroRLError or TimeoutError when it cannot be had."""


class Exporter:
    """What one process exports.

    Args:
        registry: Of prometheus_client; None exports nothing, so that callers need not ask whether metrics are on.
        address: host:port that is listened on.
    """

    def __init__(self, registry: "CollectorRegistry | None", address: str) -> None:
        self._registry = registry
        self.address = address

    def add(self, source: Source) -> None:
        """Exports a source from now on."""
        if self._registry is not None:
            self._registry.register(_Adapter(source))


class _Adapter:
    """A source as prometheus_client asks for it. Without `describe` it is not asked before the first scrape."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> "Iterator[Family]":
        """The families of this scrape."""
        return families(self._source.collect())


def families(readings: Iterable[Reading]) -> "Iterator[Family]":
    """Readings in families, as the text format wants them."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    def name(reading: Reading) -> str:
        return reading.metric.name

    for _, group in itertools.groupby(sorted(readings, key=name), key=name):
        members = list(group)
        metric = members[0].metric
        kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
        family = kind(metric.name.removesuffix("_total"), metric.help, labels=metric.labels)
        for reading in members:
            family.add_metric(reading.labels, reading.value)
        yield family


class _Build:
    def __init__(self, role: str) -> None:
        self._role = role

    def collect(self) -> list[Reading]:
        return [_BUILD(1, self._role, hetero_rl.__version__)]


@contextlib.contextmanager
def exporting(config: Config, role: str) -> Generator[Exporter]:
    """Serves the metrics of this process until the block ends; does nothing when none are asked for.

    Args:
        config: `observability.metrics_listen` and `security` count.
        role: hub, worker, relay or trainer.

    Raises:
        ConfigError: The address is not allowed or in use, or prometheus_client is missing.
    """
    listen = config.observability.metrics_listen
    if not listen:
        yield Exporter(None, "")
        return
    host, port = split_address(listen, "observability.metrics_listen")
    check_listen_address(listen, config.security, setting="observability.metrics_listen")
    registry = _new_registry()
    try:
        server = MetricsServer(host, port, _page_of(registry), config.security)
    except OSError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"observability.metrics_listen is {listen!r}, which cannot be listened on: {error.strerror or error}; choose "
            "another port, one for each process of a host"
        ) from error
    exporter = Exporter(registry, f"{listen.rpartition(':')[0]}:{server.server_address[1]}")
    exporter.add(_Build(role))
    server.start()
    _logger.info("metrics are at %s", exporter.address)
    try:
        yield exporter
    finally:
        server.close()


def _new_registry() -> "CollectorRegistry":
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector
    except ImportError:
        raise ConfigError(
            "observability.metrics_listen needs the package prometheus_client: pip install 'hetero-rl[metrics]'"
        ) from None
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


def _page_of(registry: "CollectorRegistry") -> Callable[[str], tuple[bytes, str]]:
    from prometheus_client.exposition import choose_encoder

    def page(accept: str) -> tuple[bytes, str]:
        encoder, kind = choose_encoder(accept)
        return encoder(registry), kind

    return page


def on_loop(loop: asyncio.AbstractEventLoop, ask: Callable[[], Awaitable[T]]) -> T:
    """Awaits something on another thread's event loop, which alone may look at what it owns.

    Raises:
        RefusedError: SHUTTING_DOWN when the loop has ended.
        TimeoutError: It took too long.
    """

    async def asked() -> T:
        return await asyncio.wait_for(ask(), SCRAPE_SECONDS)

    if loop.is_closed() or not loop.is_running():
        raise RefusedError("this process is shutting down", "SHUTTING_DOWN")
    return asyncio.run_coroutine_threadsafe(asked(), loop).result(SCRAPE_SECONDS + 1.0)
