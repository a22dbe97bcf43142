"""The inventory of a cluster: hosts, their devices, and which role runs where. One TOML file, checked as a whole.

[cluster]
hub = "train-0"                     # the host of hub and trainer
config = "my.toml"                  # settings of the run

[[hosts]]
name = "train-0"
address = "10.0.0.5"                # under which the other hosts dial it
roles = ["hub", "trainer", "monitoring"]
backend = "cuda"
devices = ["0", "1"]

[[hosts]]
name = "ascend-0"
address = "10.0.1.9"
roles = ["relay", "worker"]
backend = "ascend"
devices = ["0", "1", "2", "3"]
devices_per_worker = 2
"""

import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hetero_rl.deploy.services import HUB_PORT, RELAY_PORT
from hetero_rl.errors import ConfigError

__all__ = ["Host", "Inventory", "load_inventory"]

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$")]
Role = Literal["hub", "trainer", "worker", "relay", "monitoring"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Cluster(_Section):
    """What the hosts have in common."""

    hub: Name
    """Host of the hub."""
    config: Path
    """Settings of the run, relative to the inventory."""
    run: Name = "default"
    """Name of the run directory."""
    hub_port: int = Field(HUB_PORT, ge=1, le=65535)
    relay_port: int = Field(RELAY_PORT, ge=1, le=65535)
    registry: str = "hetero-rl"
    """Image registry and prefix."""
    version: str = ""
    """Tag of the images; empty is that of this installation."""


class Host(_Section):
    """One machine."""

    name: Name
    address: str = Field(min_length=1)
    """Host name or IP address under which the others dial it; also what `cluster up` gives to ssh."""
    ssh: str = ""
    """USER@HOST for ssh, where it is not `address`."""
    directory: str = "hetero-rl"
    """Directory on the host that its files are copied to."""
    user: str = Field("", pattern=r"^(\d+:\d+)?$")
    """UID:GID of who owns that directory on the host; empty for those of whoever renders."""
    roles: tuple[Role, ...] = Field(min_length=1)
    backend: str = "cpu"
    """Backend of its workers, and of its trainer's devices."""
    devices: tuple[str, ...] = ()
    devices_per_worker: int = Field(1, ge=1)
    trainer_devices: tuple[str, ...] = ()
    """Devices that the trainer has for itself, on a host that trains and generates."""
    access: str | None = None
    """Way of access of the backend package to its devices, such as "cdi"; None is its default."""
    workers: int = Field(1, ge=1)
    """Workers, where there are no devices to share out."""

    def worker_devices(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """(worker name, its devices) of every worker here."""
        if "worker" not in self.roles:
            return
        free = tuple(device for device in self.devices if device not in self.trainer_devices)
        if not free:
            yield from ((f"{self.name}-{index}", ()) for index in range(self.workers))
            return
        for index, start in enumerate(range(0, len(free), self.devices_per_worker)):
            yield f"{self.name}-{index}", free[start : start + self.devices_per_worker]


class Inventory(_Section):
    """The whole cluster."""

    cluster: Cluster
    hosts: tuple[Host, ...] = Field(min_length=1)

    def host(self, name: str) -> Host:
        """The host of that name; raises ConfigError naming those there are."""
        for host in self.hosts:
            if host.name == name:
                return host
        raise ConfigError(
            f"no host is named {name!r}; there are: {', '.join(host.name for host in self.hosts)}"
        )

    @property
    def hub_address(self) -> str:
        """host:port under which other hosts dial the hub."""
        return f"{self.host(self.cluster.hub).address}:{self.cluster.hub_port}"


def load_inventory(path: Path) -> Inventory:
    """Reads and checks an inventory.

    Raises:
        ConfigError: One line for each thing that is wrong, with the place to change.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    try:
        inventory = Inventory.model_validate(table)
    except ValidationError as error:
        lines = [f"{path}: {_place(problem['loc'])}: {problem['msg']}" for problem in error.errors()]
        raise ConfigError("\n".join(lines)) from None
    problems = list(_problems(inventory))
    if problems:
        raise ConfigError("\n".join(f"{path}: {problem}" for problem in problems))
    return inventory


def _place(parts: Sequence[str | int]) -> str:
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _problems(inventory: Inventory) -> Iterator[str]:
    yield from _repeated("hosts", "name", [host.name for host in inventory.hosts])
    yield from _repeated("hosts", "address", [host.address for host in inventory.hosts])
    named = {host.name for host in inventory.hosts}
    if inventory.cluster.hub not in named:
        yield f"cluster.hub is {inventory.cluster.hub!r}, which is no host; there are: {', '.join(sorted(named))}"
    for index, host in enumerate(inventory.hosts):
        yield from (f"hosts[{index}] ({host.name}): {problem}" for problem in _host_problems(inventory, host))
    if not any("trainer" in host.roles for host in inventory.hosts):
        yield 'no host has the role "trainer"'
    if not any("worker" in host.roles for host in inventory.hosts):
        yield 'no host has the role "worker"'


def _repeated(section: str, key: str, values: Sequence[str]) -> Iterator[str]:
    for value, count in Counter(values).items():
        if count > 1:
            yield f"{section}: {count} hosts have the {key} {value!r}"


def _host_problems(inventory: Inventory, host: Host) -> Iterator[str]:
    for device, count in Counter(host.devices).items():
        if count > 1:
            yield f"devices names {device!r} {count} times: a device serves one process"
    foreign = sorted(set(host.trainer_devices) - set(host.devices))
    if foreign:
        yield f"trainer_devices names {', '.join(foreign)}, which devices does not"
    yield from _role_problems(inventory, host)
    if "trainer" in host.roles and host.backend not in {"cpu", "cuda"}:
        yield f"trains on backend {host.backend!r}, but trainer images exist for cpu and cuda"
    if {"trainer", "worker"} <= set(host.roles) and host.devices and not host.trainer_devices:
        yield "trains and generates: name the trainer's own devices in trainer_devices"
    if "worker" in host.roles and host.devices and set(host.devices) == set(host.trainer_devices):
        yield "trainer_devices takes every device, and the workers have none left"
    free = len(host.devices) - len(host.trainer_devices)
    if "worker" in host.roles and free % host.devices_per_worker:
        yield f"devices_per_worker is {host.devices_per_worker}, which does not divide its {free} devices"


def _role_problems(inventory: Inventory, host: Host) -> Iterator[str]:
    """Roles that are the hub's host's alone."""
    if "hub" in host.roles and host.name != inventory.cluster.hub:
        yield f'has the role "hub", but cluster.hub is {inventory.cluster.hub!r}'
    if host.name == inventory.cluster.hub and "hub" not in host.roles:
        yield 'is cluster.hub, but its roles lack "hub"'
    if "monitoring" in host.roles and host.name != inventory.cluster.hub:
        yield f'has the role "monitoring", but metrics are read beside the hub: give it to {inventory.cluster.hub!r}'
