"""Holds an inventory against what `hetero-rl doctor --json` said on each host.

Each host's record is a file HOST.json, copied here by whoever deploys. What does not fit is a finding with the line to change. Pure.
"""

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetero_rl import __version__
from hetero_rl.deploy.doctor import NO_DEVICE
from hetero_rl.deploy.inventory import Host, Inventory
from hetero_rl.errors import ConfigError
from hetero_rl.worker.backend import Backend

__all__ = ["Finding", "check_cluster", "read_records"]

_MOST_SKEW_SECONDS = 300.0

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that would keep a host from working."""

    host: str
    problem: str
    change: str
    """What to change, and where."""


def read_records(directory: Path, inventory: Inventory) -> dict[str, Record]:
    """The records of the hosts that have one.

    Raises:
        ConfigError: A file is no record of the doctor.
    """
    records: dict[str, Record] = {}
    for host in inventory.hosts:
        path = directory / f"{host.name}.json"
        if not path.exists():
            continue
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        if not isinstance(record, dict) or "backends" not in record:
            raise ConfigError(f"{path} is no record of `hetero-rl doctor --json`")
        records[host.name] = record
    return records


def check_cluster(
    inventory: Inventory,
    records: Mapping[str, Record],
    backends: Mapping[str, Backend],
    now: dt.datetime | None = None,
) -> list[Finding]:
    """What does not fit.

    Args:
        inventory: The cluster.
        records: By host.
        backends: Installed backends by name; their container needs say what a host must have.
        now: Time of this machine, for the clocks of the hosts; None does not compare.
    """
    return [
        finding
        for host in inventory.hosts
        for finding in _check_host(inventory, host, records.get(host.name), backends, now)
    ]


def _check_host(
    inventory: Inventory,
    host: Host,
    record: Record | None,
    backends: Mapping[str, Backend],
    now: dt.datetime | None,
) -> Iterator[Finding]:
    if record is None:
        yield Finding(
            host.name,
            "there is no record of it",
            f"on {host.name}: hetero-rl doctor --json > {host.name}.json",
        )
        return
    yield from _version(host, record)
    yield from _clock(host, record, now)
    yield from _ports(inventory, host, record)
    if not host.devices:
        return
    found = next((entry for entry in record["backends"] if entry.get("name") == host.backend), None)
    if found is None:
        yield Finding(
            host.name,
            f"the backend {host.backend!r} is not installed there",
            f"on {host.name}: pip install hetero-rl-backend-{host.backend}",
        )
        return
    yield from _devices(host, found)
    yield from _container(host, found, backends.get(host.backend))


def _version(host: Host, record: Record) -> Iterator[Finding]:
    version = str(record.get("host", {}).get("hetero_rl", ""))
    if version and version != __version__:
        yield Finding(
            host.name,
            f"hetero-rl {version} is installed there, {__version__} here",
            f"set cluster.version to one version and install it on {host.name}",
        )


def _clock(host: Host, record: Record, now: dt.datetime | None) -> Iterator[Finding]:
    if now is None or "created_at" not in record:
        return
    skew = dt.datetime.fromisoformat(str(record["created_at"])).timestamp() - now.timestamp()
    # A record is made before it is read, so only a clock that is ahead can be told from an old record.
    if skew > _MOST_SKEW_SECONDS:
        yield Finding(
            host.name,
            f"its clock is at least {skew:.0f} s ahead, so certificates made here are not yet valid there",
            f"on {host.name}: switch NTP on (timedatectl set-ntp true)",
        )


def _ports(inventory: Inventory, host: Host, record: Record) -> Iterator[Finding]:
    taken = {int(port) for port in record.get("host", {}).get("listening_ports", ())}
    for role, key, port in (
        ("hub", "hub_port", inventory.cluster.hub_port),
        ("relay", "relay_port", inventory.cluster.relay_port),
    ):
        if role in host.roles and port in taken:
            yield Finding(
                host.name,
                f"port {port} of the {role} was taken when the doctor looked",
                f"the line `{key}` of [cluster] in the inventory, or stop what listens there; if it is this cluster's own "
                f"{role}, all is well",
            )


def _devices(host: Host, found: Record) -> Iterator[Finding]:
    visible = {str(device) for device in found.get("device_ids", ())}
    missing = [device for device in host.devices if device not in visible]
    # A driver that is not loaded, or a group that the user is not in, is no mistake of the inventory.
    why = next((problem for problem in found.get("problems", ()) if problem.get("name") == NO_DEVICE), None)
    if missing and why is not None:
        yield Finding(host.name, str(why.get("problem")), f"on {host.name}: {why.get('advice')}")
    elif missing:
        yield Finding(
            host.name,
            f"devices {', '.join(missing)} are not visible there; there are: {', '.join(sorted(visible)) or 'none'}",
            f'the line `devices` of host "{host.name}" in the inventory',
        )
    for problem in found.get("problems", ()):
        if problem.get("name") not in {NO_DEVICE, "no-engine"}:
            yield Finding(host.name, str(problem.get("problem")), str(problem.get("advice")))


def _container(host: Host, found: Record, backend: Backend | None) -> Iterator[Finding]:
    if backend is None or backend.container is None:
        return
    access = host.access or backend.container.default_access
    try:
        way = backend.container.access_by(access or None)
    except ConfigError as error:
        yield Finding(host.name, str(error), f'the line `access` of host "{host.name}" in the inventory')
        return
    lacking = found.get("missing_for_containers", {}).get(access, ())
    if lacking and way is not None:
        others = [
            name
            for name, what in found.get("missing_for_containers", {}).items()
            if not what and name != access
        ]
        needs = "; ".join(way.host_needs) or "its driver"
        other = f', or set access = "{others[0]}" for it' if others else ""
        yield Finding(
            host.name, f"{', '.join(lacking)} are missing there", f"on {host.name}: install {needs}{other}"
        )
