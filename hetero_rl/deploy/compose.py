"""Compose files: the one for any host, with profiles, and one per host of an inventory. Pure functions to plain data and text."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hetero_rl import __version__
from hetero_rl.deploy.inventory import Host, Inventory
from hetero_rl.deploy.monitoring import METRICS_LISTEN, grafana_service, prometheus_service
from hetero_rl.deploy.needs import ContainerNeeds
from hetero_rl.deploy.services import (
    HUB_PORT,
    RELAY_PORT,
    Place,
    Service,
    credentials_service,
    hub_service,
    relay_service,
    trainer_service,
    worker_service,
)
from hetero_rl.errors import ConfigError
from hetero_rl.worker.backend import Backend

__all__ = ["compose_for_any_host", "compose_for_host", "env_for_host", "to_yaml"]

Compose = dict[str, Any]
_VOLUMES = ("runs", "credentials", "authority", "cache", "relay-cache", "prometheus", "grafana")
_CONFIGS = ("${HETERO_RL_CONFIG_DIR:-../configs}:/configs:ro",)
_VENDORS = ("cuda", "rocm", "ascend")
_READY = {"credentials": "service_completed_successfully"}
_SERVED = {**_READY, "hub": "service_healthy"}
_USER = "${HETERO_RL_UID:-1000}:${HETERO_RL_GID:-1000}"


def compose_for_any_host(backends: Mapping[str, Backend]) -> Compose:
    """`docker/compose.yaml`: each role and vendor behind a profile, settings from `.env`.

    Args:
        backends: Installed backends by name; cuda, rocm and ascend must be among them.
    """
    return {
        "name": "hetero-rl",
        "services": {
            **_own_services(backends),
            **_vendor_workers(backends),
            "relay": relay_service(
                _remote_place("relay"),
                publish=f"${{HETERO_RL_RELAY_PORT:-{RELAY_PORT}}}:{RELAY_PORT}",
                flags=METRICS_LISTEN,
            ),
            "prometheus": prometheus_service(Place(profiles=("monitoring",), depends_on=_READY)),
            "grafana": grafana_service(Place(profiles=("monitoring",))),
        },
        "volumes": {name: {} for name in _VOLUMES},
    }


def _own_services(backends: Mapping[str, Backend]) -> dict[str, Service]:
    """What runs on the host of the hub: credentials, hub, trainers, and a worker without a device."""
    return {
        "credentials": credentials_service(Place(profiles=("hub", "cpu"))),
        "hub": hub_service(
            Place(profiles=("hub", "cpu"), depends_on=_READY),
            publish=f"${{HETERO_RL_HUB_PORT:-{HUB_PORT}}}:{HUB_PORT}",
            runs="runs",
            registry="/authority/registry.json",
            authority="authority",
            flags=METRICS_LISTEN,
        ),
        "trainer": trainer_service(
            Place(profiles=("trainer",), depends_on=_SERVED),
            runs="runs",
            configuration="${HETERO_RL_CONFIG:-/configs/quickstart.toml}",
            needs=_needs(backends, "cuda"),
            devices=("${HETERO_RL_TRAINER_DEVICE:-0}",),
            mounts=_CONFIGS,
            flags=METRICS_LISTEN,
        ),
        "trainer-cpu": trainer_service(
            Place(profiles=("cpu",), depends_on=_SERVED),
            runs="runs",
            configuration="${HETERO_RL_CONFIG:-/configs/quickstart.toml}",
            needs=None,
            mounts=_CONFIGS,
            flags=METRICS_LISTEN,
        ),
        "worker-cpu": worker_service(
            Place(profiles=("cpu",), depends_on=_SERVED),
            backend="cpu",
            name="worker-cpu-0",
            bundle="worker.credentials",
            needs=None,
            flags=(*METRICS_LISTEN, "--set", "inference.worker.threads=${HETERO_RL_WORKER_THREADS:-0}"),
        ),
    }


def _vendor_workers(backends: Mapping[str, Backend]) -> dict[str, Service]:
    """A worker of each vendor, for whatever host has its devices."""
    return {
        f"worker-{vendor}": worker_service(
            _remote_place(vendor),
            backend=vendor,
            name="${HETERO_RL_WORKER:-worker}",
            bundle="${HETERO_RL_BUNDLE:-worker.credentials}",
            needs=_needs(backends, vendor),
            devices=("${HETERO_RL_DEVICE:-0}",),
            flags=METRICS_LISTEN,
        )
        for vendor in _VENDORS
    }


def _remote_place(profile: str) -> Place:
    """A host that may be another one than the hub's."""
    return Place(
        hub=f"${{HETERO_RL_HUB:-hub:{HUB_PORT}}}",
        credentials="${HETERO_RL_CREDENTIALS_DIR:-./credentials}",
        profiles=(profile,),
    )


def compose_for_host(inventory: Inventory, host: Host, backends: Mapping[str, Backend]) -> Compose:
    """The file of one host: just what runs there, with its own devices."""
    here = host.name == inventory.cluster.hub
    needs = _needs(backends, host.backend) if host.devices else None
    place = Place(
        hub=f"hub:{HUB_PORT}" if here else inventory.hub_address,
        relay=f"relay:{RELAY_PORT}" if "relay" in host.roles else None,
        credentials="./credentials",
        user=_USER,
        build=False,
        depends_on={"hub": "service_healthy"} if here else {},
    )
    beside_relay = {"relay": "service_healthy"} if "relay" in host.roles else {}
    services: dict[str, Service] = {}
    if "hub" in host.roles:
        services["hub"] = hub_service(
            Place(credentials="./credentials", user=_USER, build=False),
            publish=f"{inventory.cluster.hub_port}:{HUB_PORT}",
            runs="./runs",
            registry="/credentials/registry.json",
            flags=METRICS_LISTEN,
        )
    if "trainer" in host.roles:
        services["trainer"] = trainer_service(
            place,
            runs="./runs",
            configuration="/runs/config.toml",
            needs=needs if host.backend == "cuda" else None,
            devices=host.trainer_devices or host.devices,
            flags=METRICS_LISTEN,
        )
    if "relay" in host.roles:
        services["relay"] = relay_service(
            place, publish=f"{inventory.cluster.relay_port}:{RELAY_PORT}", flags=METRICS_LISTEN
        )
    for name, devices in host.worker_devices():
        services[f"worker-{name}"] = worker_service(
            replace(place, depends_on={**place.depends_on, **beside_relay}),
            backend=host.backend,
            name=name,
            bundle=f"{host.name}.credentials",
            needs=needs,
            devices=devices,
            access=host.access,
            alias=f"worker-{host.backend}",
            flags=METRICS_LISTEN,
        )
    if "monitoring" in host.roles:
        beside = replace(place, user=None, depends_on={})
        services["prometheus"] = prometheus_service(beside, group="${HETERO_RL_GID:-1000}")
        services["grafana"] = grafana_service(beside)
    volumes = ["cache"] if "worker" in host.roles else []
    volumes += ["relay-cache"] if "relay" in host.roles else []
    volumes += ["prometheus", "grafana"] if "monitoring" in host.roles else []
    compose: Compose = {"name": "hetero-rl", "services": services}
    return {**compose, "volumes": {name: {} for name in volumes}} if volumes else compose


def env_for_host(inventory: Inventory, host: Host, user: int, group: int) -> str:
    """The `.env` beside a host's file.

    Args:
        inventory: The cluster.
        host: Whose file it is.
        user: Id of who owns the files there, where the inventory does not say it.
        group: The same for the group.
    """
    cluster = inventory.cluster
    owner = host.user.split(":") if host.user else [user, group]
    values = {
        "HETERO_RL_REGISTRY": cluster.registry,
        "HETERO_RL_VERSION": cluster.version or __version__,
        "HETERO_RL_RUN": cluster.run,
        "HETERO_RL_UID": owner[0],
        "HETERO_RL_GID": owner[1],
    }
    return "".join(f"{name}={value}\n" for name, value in values.items())


def to_yaml(compose: Compose, comment: str) -> str:
    """A compose file as text; raises ConfigError without PyYAML."""
    try:
        import yaml
    except ImportError:
        raise ConfigError("compose files need PyYAML: pip install 'hetero-rl[deploy]'") from None
    # Through JSON first, so that nothing is written as an anchor.
    text: str = yaml.safe_dump(json.loads(json.dumps(compose)), sort_keys=False, width=120)
    return "".join(f"# {line}\n" for line in comment.splitlines()) + text


def _needs(backends: Mapping[str, Backend], name: str) -> ContainerNeeds | None:
    backend = backends.get(name)
    if backend is None:
        raise ConfigError(
            f"backend {name!r} is not installed here, and what its containers need is its package's to say: pip install "
            f"hetero-rl-backend-{name} (it brings no vendor software)"
        )
    return backend.container
