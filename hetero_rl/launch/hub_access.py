"""From `--hub`, `--run` or nothing to a connected client of the hub."""

import contextlib
from collections.abc import Generator, Sequence
from pathlib import Path

from hetero_rl.config import Config, load_config
from hetero_rl.errors import ConfigError, UnreachableError
from hetero_rl.launch.rundir import RunDirectory
from hetero_rl.wire.ports import FleetPort

__all__ = ["client_config", "connect_fleet", "find_run", "hub_of", "probe_hub"]

RUNS = Path("runs")
PROBE_SECONDS = 5.0


def find_run(run: Path | None) -> RunDirectory:
    """The run directory that was named, or the newest below ./runs; raises ConfigError when there is none."""
    if run is not None:
        found = RunDirectory(run)
        if not found.config.exists():
            raise ConfigError(f"{run}: holds no run; give the directory that run.dir named")
        return found
    used = [found for found in map(RunDirectory, RUNS.glob("*")) if found.config.exists()]
    if not used:
        raise ConfigError(f"no run was named and ./{RUNS} holds none; give --run RUN or --hub HOST:PORT")
    return max(used, key=lambda found: found.config.stat().st_mtime)


def hub_of(run: RunDirectory) -> str:
    """The address of the hub of a run; raises UnreachableError when none runs."""
    config = load_config([run.config]) if run.config.exists() else Config()
    if config.hub.address is not None:
        return config.hub.address
    try:
        return run.hub_address.read_text(encoding="utf-8").strip()
    except OSError:
        raise UnreachableError(f"no hub of the run in {run.root} is running") from None


def probe_hub(address: str, config: Config) -> None:
    """Raises UnreachableError while no hub serves at an address, and RefusedError when it never will."""
    from hetero_rl.wire.credentials import channel_credentials
    from hetero_rl.wire.preflight import preflight

    preflight(address, channel_credentials(config.security), PROBE_SECONDS)


@contextlib.contextmanager
def connect_fleet(address: str, config: Config) -> Generator[FleetPort]:
    """A client of the fleet service for the length of a block."""
    from hetero_rl.wire.blocking_clients import FleetClient
    from hetero_rl.wire.credentials import channel_credentials

    credentials = channel_credentials(config.security)
    with FleetClient(address, credentials, max_message_bytes=config.hub.max_message_bytes) as client:
        yield client


def client_config(run: RunDirectory | None, overrides: Sequence[str]) -> Config:
    """Settings that a client needs: those of the run, if one is known, under `--set`."""
    files = [run.config] if run is not None and run.config.exists() else []
    return load_config(files, overrides)
