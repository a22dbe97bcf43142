"""The hub process: lock, serve, stop on a signal or when the parent goes."""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from hetero_rl.config.tree import Config
from hetero_rl.freed_memory import keep_freed_memory
from hetero_rl.hub.lock import RunLock
from hetero_rl.hub.server import running_local_hub
from hetero_rl.metrics.exporter import exporting
from hetero_rl.metrics.hub import hub_readings

__all__ = ["serve"]

_logger = logging.getLogger(__name__)


def serve(config: Config, run_dir: Path, exit_with_parent: bool = False) -> None:
    """Serves a run directory until SIGTERM or SIGINT, then drains.

    Args:
        config: Sections `hub`, `security`, `observability` and `trainer` count.
        run_dir: The run directory; the hub owns its `hub` part.
        exit_with_parent: Whether the end of standard input, a pipe from the process that started this one, also stops it.

    Raises:
        ConfigError: The listen address is refused or in use.
        StorageError: Another hub holds the directory, or the journal cannot be used, or can no longer.
    """
    keep_freed_memory()
    directory = run_dir / "hub"
    with RunLock(directory):
        # A hub that was killed left its address behind.
        (directory / "address").unlink(missing_ok=True)
        asyncio.run(_serve(config, directory, exit_with_parent=exit_with_parent))


async def _serve(config: Config, directory: Path, *, exit_with_parent: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if exit_with_parent:
        _stop_at_end_of_input(loop, stop)
    async with running_local_hub(config, directory) as hub:
        hub.core.when_damaged = stop.set
        with exporting(config, "hub") as exporter:
            exporter.add(hub_readings(hub.core))
            _logger.info("the hub listens on %s", hub.address)
            await stop.wait()
        _logger.info("the hub is stopping")
    if hub.core.damage is not None:
        raise hub.core.damage


def _stop_at_end_of_input(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    descriptor = sys.stdin.fileno()

    def read() -> None:
        if not os.read(descriptor, 4096):
            loop.remove_reader(descriptor)
            stop.set()

    loop.add_reader(descriptor, read)
