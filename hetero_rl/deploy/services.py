"""Services of compose files, as plain data: what each role runs, mounts, is checked by and is given of its host's devices.

One function per role; what a vendor's container needs comes from its backend package (`ContainerNeeds`) and is written nowhere else.
`compose.py` puts services together: into the file for any host, and into one file per host of an inventory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetero_rl.deploy.needs import ContainerNeeds, DeviceAccess

__all__ = [
    "CREDENTIALS_DIR",
    "HUB_PORT",
    "RELAY_PORT",
    "Place",
    "Service",
    "common",
    "credentials_service",
    "hub_service",
    "relay_service",
    "trainer_service",
    "worker_service",
]

Service = dict[str, Any]

HUB_PORT = 7077
RELAY_PORT = 7078
CREDENTIALS_DIR = "/credentials"
_GRACE_SECONDS = 60
_MAKE_CREDENTIALS = """\
test -e /authority/authority.key && exit 0
hetero-rl certs init --dir /authority --bundles /credentials --hub-host hub
hetero-rl certs issue trainer --role trainer --host trainer --dir /authority --out /credentials/trainer.credentials
hetero-rl certs issue worker --host worker --dir /authority --out /credentials/worker.credentials
hetero-rl certs issue relay --role relay --host relay --host localhost --host 127.0.0.1 --dir /authority --out /credentials/relay.credentials
hetero-rl certs issue prometheus --role observer --dir /authority --out /credentials/prometheus.credentials
hetero-rl certs unpack /credentials/prometheus.credentials --out /credentials/prometheus --group-readable
"""
_VERSION = "${HETERO_RL_VERSION:-0.1.0}"
_REGISTRY = "${HETERO_RL_REGISTRY:-hetero-rl}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a service runs and how it finds the others."""

    hub: str = f"hub:{HUB_PORT}"
    """host:port of the hub."""
    relay: str | None = None
    """host:port of the site's relay."""
    credentials: str = "credentials"
    """Volume or directory of this host that is mounted at /credentials."""
    user: str | None = None
    """`user:` of services that need no device; None takes the image's own."""
    profiles: tuple[str, ...] = ()
    depends_on: Mapping[str, str] = field(default_factory=dict)
    """Service to the condition that is waited for."""
    build: bool = True
    """Whether the images can be built here, from the checkout around the file."""


def credentials_service(place: Place) -> Service:
    """Makes an authority and the bundles of one machine, once; for trying everything on one host."""
    return {
        **_image("hub", place),
        "profiles": list(place.profiles),
        "entrypoint": ["sh", "-ec"],
        "command": [_MAKE_CREDENTIALS],
        "volumes": ["authority:/authority", f"{place.credentials}:{CREDENTIALS_DIR}"],
        "healthcheck": {"disable": True},
        "restart": "no",
    }


def hub_service(
    place: Place,
    *,
    publish: str,
    runs: str,
    registry: str,
    authority: str | None = None,
    flags: Sequence[str] = (),
) -> Service:
    """The hub.

    Args:
        place: Of the service.
        publish: Entry of `ports:`.
        runs: Volume or directory of the run directories.
        registry: Path of the registry inside.
        authority: Volume that holds the registry, mounted read-only; None when it lies beside the bundle.
        flags: Further arguments of the command.
    """
    mounts = [f"{runs}:/runs", f"{place.credentials}:{CREDENTIALS_DIR}:ro"]
    if authority is not None:
        mounts.append(f"{authority}:/authority:ro")
    bundle = f"{CREDENTIALS_DIR}/hub.credentials"
    return {
        **_image("hub", place),
        **common(place),
        "command": [
            *("hub", "--run-dir", "/runs/${HETERO_RL_RUN:-default}", "--listen", f"0.0.0.0:{HUB_PORT}"),
            *("--credentials", bundle, "--registry", registry, *flags),
        ],
        "ports": [publish],
        "volumes": mounts,
        "healthcheck": _health_check(HUB_PORT, bundle),
    }


def trainer_service(
    place: Place,
    *,
    runs: str,
    configuration: str,
    needs: ContainerNeeds | None,
    devices: Sequence[str] = (),
    mounts: Sequence[str] = (),
    flags: Sequence[str] = (),
) -> Service:
    """The trainer, which ends with the run.

    Args:
        place: Of the service.
        runs: Volume or directory of the run directories.
        configuration: Path of the settings inside.
        needs: Container needs of the devices to train on; None trains on CPUs.
        devices: Ids of those devices.
        mounts: Further entries of `volumes:`.
        flags: Further arguments of the command.
    """
    service = {
        **_image("trainer-cuda" if needs else "trainer-cpu", place),
        **common(place),
        "command": [
            *("train", configuration, "--set", "run.dir=/runs/${HETERO_RL_RUN:-default}"),
            *(
                "--hub",
                place.hub,
                "--workers",
                "0",
                "--credentials",
                f"{CREDENTIALS_DIR}/trainer.credentials",
                "--auto-resume",
            ),
            *flags,
            "${HETERO_RL_TRAIN_FLAGS:---set=logging.live=false}",
        ],
        "volumes": [f"{runs}:/runs", f"{place.credentials}:{CREDENTIALS_DIR}:ro", *mounts],
        # The run directory is the hub's as well, and a finished run needs no trainer.
        "restart": "on-failure:3",
    }
    if needs is not None:
        _give_access(service, needs.access_by(), devices)
    return service


def worker_service(
    place: Place,
    *,
    backend: str,
    name: str,
    bundle: str,
    needs: ContainerNeeds | None,
    devices: Sequence[str] = (),
    access: str | None = None,
    alias: str | None = None,
    flags: Sequence[str] = (),
) -> Service:
    """A worker.

    Args:
        place: Of the service.
        backend: As `--infer-backend` names it.
        name: Of the worker at the hub.
        bundle: File of its credentials below /credentials.
        needs: Of the backend; None for CPUs.
        devices: Ids of its devices.
        access: Way of access to them; None takes the vendor's default.
        alias: Further host name inside, under which Prometheus finds every worker of the backend here.
        flags: Further arguments of the command.
    """
    relay = ("--relay", place.relay) if place.relay else ()
    service = {
        **_image(f"worker-{backend}", place),
        **common(place),
        "command": [
            *("worker", "--hub", place.hub, "--infer-backend", backend, "--name", name, *relay),
            *("--credentials", f"{CREDENTIALS_DIR}/{bundle}", *flags),
        ],
        "volumes": [f"{place.credentials}:{CREDENTIALS_DIR}:ro", "cache:/home/hetero-rl/.cache"],
        # A worker ends by itself when its run is complete.
        "restart": "on-failure",
    }
    if alias is not None:
        service["networks"] = {"default": {"aliases": [alias]}}
    if needs is None:
        return service
    service.pop("user", None)
    service["volumes"] = [f"{place.credentials}:{CREDENTIALS_DIR}:ro", "cache:/root/.cache"]
    _give_needs(service, needs)
    _give_access(service, needs.access_by(access), devices)
    return service


def relay_service(place: Place, *, publish: str, flags: Sequence[str] = ()) -> Service:
    """A site's relay; `flags` are further arguments of its command."""
    bundle = f"{CREDENTIALS_DIR}/relay.credentials"
    return {
        **_image("worker-cpu", place),
        **common(place),
        "command": [
            *("relay", "--hub", place.hub, "--listen", f"0.0.0.0:{RELAY_PORT}", "--cache-dir", "/cache"),
            *("--credentials", bundle, *flags),
        ],
        "ports": [publish],
        "volumes": [f"{place.credentials}:{CREDENTIALS_DIR}:ro", "relay-cache:/cache"],
        "healthcheck": _health_check(RELAY_PORT, bundle),
    }


def _health_check(port: int, bundle: str) -> Service:
    """Asks the health service of what listens on a port of the container, with its own credentials."""
    return {
        "test": ["CMD", "hetero-rl", "health", "--hub", f"127.0.0.1:{port}", "--credentials", bundle],
        "interval": "15s",
        "timeout": "30s",
        "start_period": "60s",
        "retries": 4,
    }


def _image(role: str, place: Place) -> Service:
    image: Service = {"image": f"{_REGISTRY}/{role}:{_VERSION}"}
    if place.build:
        image["build"] = {"context": "..", "dockerfile": f"docker/{role}.Dockerfile"}
    return image


def common(place: Place) -> Service:
    """What every role has: a restart, time to drain, no more rights than it needs, bounded logs."""
    service: Service = {
        "restart": "unless-stopped",
        "init": True,
        "stop_grace_period": f"{_GRACE_SECONDS}s",
        "security_opt": ["no-new-privileges:true"],
        "logging": {"driver": "json-file", "options": {"max-size": "50m", "max-file": "3"}},
    }
    if place.profiles:
        service["profiles"] = list(place.profiles)
    if place.user is not None:
        service["user"] = place.user
    if place.depends_on:
        service["depends_on"] = {
            # A profile may be on without the one of the service that it would wait for.
            name: {"condition": condition, "required": False}
            for name, condition in place.depends_on.items()
        }
    return service


def _give_needs(service: Service, needs: ContainerNeeds) -> None:
    """What the vendor's container needs whichever way its devices come."""
    if needs.ipc:
        service["ipc"] = needs.ipc
    elif needs.shm_size:
        service["shm_size"] = needs.shm_size
    if needs.cap_add:
        service["cap_add"] = list(needs.cap_add)
    service["security_opt"] = [*service["security_opt"], *needs.security_opt]
    if needs.ulimits:
        service["ulimits"] = dict(needs.ulimits)
    environment = dict(needs.environment)
    if needs.image.setup:
        environment["HETERO_RL_SETUP"] = ":".join(needs.image.setup)
    if environment:
        service["environment"] = environment


def _give_access(service: Service, access: DeviceAccess | None, ids: Sequence[str]) -> None:
    if access is None:
        return
    if devices := access.devices_for(ids):
        service["devices"] = list(devices)
    if access.groups:
        service["group_add"] = list(access.groups)
    if access.runtime:
        service["runtime"] = access.runtime
    if environment := access.environment_for(ids):
        service["environment"] = {**service.get("environment", {}), **environment}
    mounts = [f"{mount.path}:{mount.path}:ro" for mount in access.mounts if mount.required]
    service["volumes"] = [*service["volumes"], *mounts]
    reservation = access.reservation_for(ids)
    if reservation is not None:
        service["deploy"] = {"resources": {"reservations": {"devices": [reservation]}}}
