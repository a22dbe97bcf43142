"""Writes a cluster's files: one directory per host with everything to copy there, and the authority that stays here.

    OUT/authority/                   the authority; its key never goes to a host
    OUT/HOST/compose.yaml, .env      what runs there
    OUT/HOST/credentials/            the bundles of its roles, mode 0600; on the hub's host the registry too
    OUT/HOST/runs/                   of the hub and the trainer; on the trainer's host with config.toml, the settings of the run
    OUT/HOST/monitoring/             where Prometheus and Grafana run: their files, those of docker/monitoring

Rendering again keeps the authority and the bundles that are there, so hosts that run already go on; a host whose address was changed
gets a bundle for the new one.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from hetero_rl.deploy.authority import Authority
from hetero_rl.deploy.certificates import certificate_hosts
from hetero_rl.deploy.compose import compose_for_host, env_for_host, to_yaml
from hetero_rl.deploy.inventory import Host, Inventory
from hetero_rl.errors import ConfigError
from hetero_rl.files import write_whole
from hetero_rl.wire.bundle import read_bundle, unpack_bundle, write_bundle
from hetero_rl.wire.roles import Role
from hetero_rl.worker.backend import Backend

__all__ = ["render"]

_AUTHORITY_DAYS = 3650
_BUNDLE_DAYS = 365


def render(
    inventory: Inventory,
    source: Path,
    out: Path,
    backends: Mapping[str, Backend],
    monitoring: Path = Path("docker/monitoring"),
) -> list[Path]:
    """Writes the files of every host; returns their directories.

    Args:
        inventory: The cluster.
        source: The inventory's file; `cluster.config` is relative to it.
        out: Directory to write to.
        backends: Installed backends by name.
        monitoring: What Prometheus and Grafana are given, where a host has the role.

    Raises:
        ConfigError: The settings of the run cannot be read, a backend package is missing, or `out` cannot be written.
    """
    settings = _read(source.parent / inventory.cluster.config)
    authority = _authority(out / "authority")
    directories = []
    for host in inventory.hosts:
        directory = out / host.name
        directories.append(directory)
        comment = f"Host {host.name} of {source.name}; written by `hetero-rl cluster render`: change the inventory, not this file."
        text = to_yaml(compose_for_host(inventory, host, backends), comment)
        credentials = directory / "credentials"
        credentials.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(directory / "compose.yaml", text, 0o644)
        write_whole(directory / ".env", env_for_host(inventory, host, os.getuid(), os.getgid()), 0o644)
        for name, role, names in _bundles(host):
            path = credentials / f"{name}.credentials"
            if not path.exists() or not _names_all(path, names):
                write_bundle(authority.issue(name, role, names, _BUNDLE_DAYS), path)
        if {"hub", "trainer"} & set(host.roles):
            # The engine would make it root's.
            (directory / "runs").mkdir(exist_ok=True)
        if "trainer" in host.roles:
            write_whole(directory / "runs" / "config.toml", settings, 0o644)
        if "monitoring" in host.roles:
            _add_monitoring(directory, monitoring)
    registry = authority.registry.read_text(encoding="utf-8")
    write_whole(out / inventory.cluster.hub / "credentials" / "registry.json", registry, 0o644)
    return directories


def _bundles(host: Host) -> Iterator[tuple[str, Role, list[str]]]:
    """(name, role, host names) of the bundles of a host; a name is unique in the cluster, except for the hub's and trainer's."""
    if "hub" in host.roles:
        yield "hub", Role.HUB, ["hub", "localhost", "127.0.0.1", host.address]
    if "trainer" in host.roles:
        yield "trainer", Role.TRAINER, ["trainer"]
    if "relay" in host.roles:
        # Its file has the same name on every host; the name inside tells sites apart.
        yield "relay", Role.RELAY, ["relay", "localhost", "127.0.0.1", host.address]
    if "worker" in host.roles:
        # Metrics are answered under this name.
        yield host.name, Role.WORKER, ["worker"]
    if "monitoring" in host.roles:
        yield "prometheus", Role.OBSERVER, []


def _add_monitoring(directory: Path, source: Path) -> None:
    """Copies the files, and writes what is in Prometheus's bundle as the files that it reads."""
    if not (source / "prometheus.yml").exists():
        raise ConfigError(
            f"{source} has no prometheus.yml: name docker/monitoring of a checkout with --monitoring"
        )
    shutil.copytree(source, directory / "monitoring", dirs_exist_ok=True)
    credentials = directory / "credentials"
    unpack_bundle(
        read_bundle(credentials / "prometheus.credentials"), credentials / "prometheus", group_readable=True
    )


def _names_all(path: Path, hosts: list[str]) -> bool:
    """Whether a bundle's certificate names every host that its holder is dialed under: one that moved needs another."""
    return set(hosts) <= set(certificate_hosts(read_bundle(path).certificate))


def _authority(directory: Path) -> Authority:
    if (directory / "authority.key").exists():
        return Authority(directory)
    return Authority.create(directory, _AUTHORITY_DAYS)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cluster.config is {path}, which cannot be read: {error}") from error
