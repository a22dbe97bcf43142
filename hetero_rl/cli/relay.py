"""`hetero-rl relay`: a cache of weights for the workers of one site."""

import os
from pathlib import Path
from typing import Annotated

import typer

from hetero_rl.cli.logs import log_to_stderr
from hetero_rl.cli.options import (
    ConfigFiles,
    Credentials,
    MetricsListen,
    Overrides,
    credential_flags,
    metrics_flags,
)
from hetero_rl.config import load_config
from hetero_rl.errors import ConfigError
from hetero_rl.launch.checks import split_address

__all__ = ["relay"]


def relay(
    files: ConfigFiles = None,
    hub: Annotated[
        str | None,
        typer.Option("--hub", metavar="HOST:PORT", help="The hub; hub.address if not given."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", metavar="HOST:PORT", help="Address to listen on; relay.listen if not given."
        ),
    ] = None,
    cache_dir: Annotated[
        Path | None, typer.Option("--cache-dir", help="Where weights are kept; relay.cache_dir if not given.")
    ] = None,
    cache_bytes: Annotated[
        int | None, typer.Option("--cache-bytes", min=0, help="Bytes kept; relay.cache_bytes if not given.")
    ] = None,
    credentials: Credentials = None,
    metrics_listen: MetricsListen = None,
    overrides: Overrides = None,
) -> None:
    """Fetch each weight blob of a hub once and serve it to the workers of this site, until SIGTERM or Ctrl-C.

    Workers name it with `hetero-rl worker --hub HUB --relay RELAY`; when it is gone they fetch from the hub.
    """
    flags = [*credential_flags(credentials), *metrics_flags(metrics_listen)]
    if listen is not None:
        flags.append(f"relay.listen='{listen}'")
    if cache_dir is not None:
        flags.append(f"relay.cache_dir='{cache_dir.absolute()}'")
    if cache_bytes is not None:
        flags.append(f"relay.cache_bytes={cache_bytes}")
    config = load_config(files or (), [*(overrides or ()), *flags])
    address = hub or config.hub.address
    if address is None:
        raise ConfigError("name the hub with --hub HOST:PORT; `hetero-rl status` shows a run's")
    split_address(address, "--hub")
    log_to_stderr(config, "relay")
    from hetero_rl.relay.server import serve

    serve(config, address, config.relay.cache_dir or _user_cache_dir())


def _user_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hetero-rl" / "relay"
