"""What a vendor's container needs of its host: image, devices, driver files, groups. Data only, declared by backends.

Compose rendering and `cluster check` read this; nothing of it is written twice. A vendor offers one or more ways of
access to its devices, such as plain device nodes or a container runtime of its own. In texts with placeholders,
`{id}` stands for one device id (the text is repeated for each device) and `{ids}` for all of them, separated by commas.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from hetero_rl.errors import ConfigError

__all__ = ["ContainerNeeds", "DeviceAccess", "Image", "Mount", "SchedulerNeeds"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The image that a vendor's worker image is built from."""

    reference: str
    """Registry, name and tag."""
    python: str
    """Python inside, such as "3.12"."""
    vllm: str
    """Version of vLLM inside; empty without one."""
    variants: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Other hardware or distributions to their references, such as "a3"."""
    setup: tuple[str, ...] = ()
    """Shell files that a non-interactive command has to source first."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or directory of the driver that is the host's and must appear inside."""

    path: str
    """The same path on both sides."""
    required: bool = True
    """Whether the devices are of no use without it."""
    purpose: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAccess:
    """One way for a container to reach its devices."""

    description: str
    devices: tuple[str, ...] = ()
    """Entries of `devices:` in a compose file: device nodes, or CDI names such as "nvidia.com/gpu={id}"."""
    mounts: tuple[Mount, ...] = ()
    groups: tuple[str, ...] = ()
    """Entries of `group_add:`."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    reservation_driver: str = ""
    """Driver of `deploy.resources.reservations.devices`; its device_ids are the ids. Empty for none."""
    reservation_capabilities: tuple[str, ...] = ()
    runtime: str = ""
    """`runtime:` of the service; empty for the engine's own choice."""
    programs: tuple[str, ...] = ()
    """Programs of the host, any one of which shows that what serves this way of access is installed."""
    host_needs: tuple[str, ...] = ()
    """What has to be installed on the host, in words."""

    def devices_for(self, ids: Sequence[str]) -> tuple[str, ...]:
        """Entries of `devices:` for these device ids, each once."""
        entries = (
            entry.format(id=device_id)
            for entry in self.devices
            for device_id in (ids if "{id}" in entry else ("",))
        )
        return tuple(dict.fromkeys(entries))

    def environment_for(self, ids: Sequence[str]) -> dict[str, str]:
        """Variables for these device ids."""
        return {name: value.format(ids=",".join(ids)) for name, value in self.environment.items()}

    def reservation_for(self, ids: Sequence[str]) -> dict[str, object] | None:
        """One entry of `deploy.resources.reservations.devices`; None when this way of access has none."""
        if not self.reservation_driver:
            return None
        return {
            "driver": self.reservation_driver,
            "device_ids": list(ids),
            "capabilities": list(self.reservation_capabilities),
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerNeeds:
    """What a vendor's processes ask of a scheduler such as Ray, inside one island of that vendor."""

    resource: str = ""
    """Name that one device has there, such as "GPU" or "NPU"; empty asks for CPUs only."""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Labels that a node must have: they tell vendors apart whose devices have one name."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ContainerNeeds:
    """Everything that a vendor's worker container needs of its host."""

    image: Image
    access: Mapping[str, DeviceAccess] = dataclasses.field(default_factory=dict)
    """Ways of access by name; empty where there are no devices."""
    default_access: str = ""
    ipc: str = ""
    """`ipc:` of the service."""
    shm_size: str = ""
    """`shm_size:` of the service, where `ipc` is not the host's."""
    cap_add: tuple[str, ...] = ()
    security_opt: tuple[str, ...] = ()
    ulimits: Mapping[str, int] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Variables of the container beside those of the backend's own processes."""
    devices_per_host: int = 0
    """Most device ids of one host, counted from 0; 0 sets no bound."""
    notes: tuple[str, ...] = ()
    """What a person should know before the first start."""

    def access_by(self, name: str | None = None) -> DeviceAccess | None:
        """The way of access of that name, or the default one; None where there are no devices.

        Raises:
            ConfigError: The vendor has no such way; the message names those there are.
        """
        wanted = name or self.default_access
        if not wanted and not self.access:
            return None
        if wanted not in self.access:
            raise ConfigError(
                f"device access {wanted!r} is unknown; there are: {', '.join(sorted(self.access)) or 'none'}"
            )
        return self.access[wanted]
