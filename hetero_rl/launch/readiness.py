"""Waiting for a process to be of use, with a bound and an error that shows its log."""

import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from hetero_rl.errors import LaunchError, ProtocolError, UnreachableError
from hetero_rl.launch.keeper import Keeper, Kept
from hetero_rl.wire.messages import WorkerState
from hetero_rl.wire.ports import FleetPort

__all__ = ["await_backends", "await_first_worker", "await_hub", "start_error"]

POLL_SECONDS = 0.1


def await_hub(hub: Keeper, address_file: Path, probe: Callable[[str], None], timeout: float) -> str:
    """The address of a started hub that answers.

    Args:
        hub: What keeps it.
        address_file: Where it writes its address.
        probe: Raises UnreachableError while the hub at an address does not serve.
        timeout: Seconds to wait.

    Raises:
        LaunchError: It ended or did not answer in time; the end of its log is in the message.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if hub.ended:
            break
        if (address := _read_address(address_file)) is not None and _answers(address, probe):
            return address
        time.sleep(POLL_SECONDS)
    raise start_error(hub, f"did not answer within {timeout:g} s")


def start_error(keeper: Kept, complaint: str) -> LaunchError:
    """An error about a kept process with the end of its log."""
    return LaunchError(keeper.describe(complaint))


def await_first_worker(fleet: FleetPort, timeout: float, cancelled: threading.Event) -> bool:
    """Whether a worker is at work within `timeout` seconds of the run being opened; True when cancelled, too."""
    deadline: float | None = None
    while not cancelled.wait(POLL_SECONDS * 5):
        try:
            if deadline is None and fleet.run_status().run is not None:
                deadline = time.monotonic() + timeout
            if any(worker.state is WorkerState.ACTIVE for worker in fleet.list_workers(include_gone=False)):
                return True
        except ProtocolError:
            # The hub may be on its way back; its keeper decides when that is hopeless.
            continue
        if deadline is not None and time.monotonic() > deadline:
            return False
    return True


def await_backends(
    fleet: FleetPort,
    wanted: Collection[str],
    timeout: float,
    cancelled: threading.Event,
    joined: Callable[[str], None],
) -> set[str]:
    """Waits until a worker of each backend is at work; returns the backends without one.

    Args:
        fleet: The hub.
        wanted: Backends as the hub sees them.
        timeout: Seconds to wait.
        cancelled: Ends the wait.
        joined: Takes a sentence for people when a worker of such a backend is there.
    """
    missing = set(wanted)
    deadline = time.monotonic() + timeout
    while missing and time.monotonic() < deadline and not cancelled.wait(POLL_SECONDS * 5):
        try:
            workers = fleet.list_workers(include_gone=False)
        except ProtocolError:
            # The hub may be on its way back; its keeper decides when that is hopeless.
            continue
        for worker in workers:
            if worker.state is WorkerState.ACTIVE and worker.backend in missing:
                missing.discard(worker.backend)
                joined(f"{worker.worker_name} ({worker.backend}) has joined")
    return missing


def _read_address(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _answers(address: str, probe: Callable[[str], None]) -> bool:
    try:
        probe(address)
    except UnreachableError:
        return False
    return True
