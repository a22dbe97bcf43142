"""`hetero-rl certs`: an authority of your own, one bundle file for each host, revocation without a restart."""

import datetime as dt
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from hetero_rl.errors import ConfigError
from hetero_rl.wire.bundle import read_bundle, unpack_bundle, write_bundle
from hetero_rl.wire.roles import Role

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True, help="Issue and revoke the credentials of hub, trainer, workers and people."
)

_WARNING_DAYS = 14
Directory = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Directory of the authority.")]
_DEFAULT = Path("certs")


@app.callback()
def _certs() -> None:
    """Issue and revoke the credentials of hub, trainer, workers and people."""


@app.command()
def init(
    directory: Directory = _DEFAULT,
    hub_host: Annotated[
        list[str] | None,
        typer.Option(
            "--hub-host", metavar="HOST", help="Name or IP address under which workers dial the hub."
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="How long the authority lasts.")] = 3650,
    bundles: Annotated[
        Path | None, typer.Option("--bundles", metavar="DIR", help="Where the bundles go; DIR if not given.")
    ] = None,
) -> None:
    """Make an authority, and the bundles of the hub and the trainer."""
    from hetero_rl.deploy.authority import Authority

    _need_cryptography()
    authority = Authority.create(directory, days)
    place = bundles or directory
    hosts = ["localhost", "127.0.0.1", *(hub_host or ())]
    for name, role, names in (("hub", Role.HUB, hosts), ("trainer", Role.TRAINER, [])):
        path = place / f"{name}.credentials"
        write_bundle(authority.issue(name, role, names, min(days, 365)), path)
        typer.echo(f"wrote {path}")
    typer.echo(
        f"\nHub:      hetero-rl hub --set security.credentials={place}/hub.credentials"
        f" --set security.registry={authority.registry} --set hub.listen=0.0.0.0:7077"
        f"\nTrainer:  hetero-rl train ... --set security.credentials={place}/trainer.credentials"
        f"\nA worker: hetero-rl certs issue ascend-0 --dir {directory}"
    )
    if not hub_host:
        typer.echo(
            "The hub's certificate covers this machine only; give --hub-host HOST for others, or issue it again."
        )


@app.command()
def issue(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Worker, relay or person that gets credentials.")
    ],
    role: Annotated[Role, typer.Option(help="What the holder may do.")] = Role.WORKER,
    directory: Directory = _DEFAULT,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="HOST", help="Name or IP address under which peers dial it (hub, relay)."
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="How long the credentials last.")] = 90,
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write; DIR/NAME.credentials if not given.")
    ] = None,
) -> None:
    """Write one bundle file to copy to a host; earlier bundles of the name stay valid until revoked."""
    from hetero_rl.deploy.authority import Authority

    _need_cryptography()
    path = out or directory / f"{name}.credentials"
    write_bundle(Authority(directory).issue(name, role, host or (), days), path)
    typer.echo(f"wrote {path}; copy it to its host and set security.credentials to it there")


@app.command()
def unpack(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle of `issue`.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the files go.")],
    group_readable: Annotated[
        bool, typer.Option("--group-readable", help="Let the group of the files read them too.")
    ] = False,
) -> None:
    """Write what is in a bundle as files, for programs such as Prometheus: ca.pem, certificate.pem, key.pem, token."""
    files = unpack_bundle(read_bundle(bundle), out, group_readable=group_readable)
    typer.echo(f"wrote {', '.join(files)} to {out}")


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose credentials end now.")],
    directory: Directory = _DEFAULT,
    keep_newest: Annotated[
        bool, typer.Option("--keep-newest", help="Revoke all but those issued last, after a rotation.")
    ] = False,
) -> None:
    """Revoke credentials; a hub that reads this registry refuses their next call."""
    from hetero_rl.deploy.authority import Authority

    _need_cryptography()
    count = Authority(directory).revoke(name, keep_newest=keep_newest)
    typer.echo(f"revoked {count} credential{'' if count == 1 else 's'} of {name}")


@app.command("list")
def list_issued(directory: Directory = _DEFAULT) -> None:
    """List what was issued, and what ends soon."""
    from hetero_rl.deploy.authority import Authority

    _need_cryptography()
    table = Table("name", "role", "ends", "state", box=None, pad_edge=False)
    now = dt.datetime.now(dt.UTC)
    for issued in Authority(directory).issued():
        credential = issued.credential
        end = dt.datetime.fromisoformat(credential.not_after)
        table.add_row(
            credential.caller.name,
            credential.caller.role.value,
            f"{end:%Y-%m-%d}",
            _state(end - now, revoked=credential.revoked),
        )
    Console().print(table)


def _state(left: dt.timedelta, *, revoked: bool) -> str:
    if revoked:
        return "revoked"
    if left.total_seconds() <= 0:
        return "ended"
    return f"ends in {left.days} days" if left.days < _WARNING_DAYS else "valid"


def _need_cryptography() -> None:
    try:
        import cryptography  # ruff: ignore[unused-import] only whether it is there
    except ImportError:
        raise ConfigError(
            "certificates need the package cryptography: pip install 'hetero-rl[certs]'"
        ) from None
