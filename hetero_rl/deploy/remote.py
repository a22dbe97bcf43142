"""Commands over ssh for the hosts of a cluster, as argument lists: shown first, then run."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from hetero_rl.deploy.inventory import Host, Inventory

__all__ = ["commands"]


def commands(
    action: str, inventory: Inventory, out: Path, hosts: tuple[str, ...] = ()
) -> Iterator[list[str]]:
    """What `hetero-rl cluster up|down|status` runs, in order: the hub's host first, and last when going down.

    Args:
        action: "up", "down" or "status".
        inventory: The cluster.
        out: Where `render` wrote.
        hosts: Names of hosts; none means all.
    """
    chosen = [inventory.host(name) for name in hosts] if hosts else list(inventory.hosts)
    chosen.sort(key=lambda host: host.name != inventory.cluster.hub, reverse=action == "down")
    for host in chosen:
        if action == "up":
            yield ["ssh", _target(host), f"mkdir -p {shlex.quote(host.directory)}"]
            # The dot copies hidden files too; -p keeps the mode of the credentials.
            yield ["scp", "-pr", f"{out / host.name}/.", f"{_target(host)}:{shlex.quote(host.directory)}/"]
        yield [
            "ssh",
            _target(host),
            _compose(host, {"up": "up -d --wait", "down": "down", "status": "ps"}[action]),
        ]


def _target(host: Host) -> str:
    return host.ssh or host.address


def _compose(host: Host, rest: str) -> str:
    return f"docker compose --project-directory {shlex.quote(host.directory)} {rest}"
