"""`hetero-rl train`: the main job."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero_rl.cli.logs import log_to_file, quiet_libraries
from hetero_rl.cli.options import (
    ConfigFiles,
    Credentials,
    HubAddress,
    MetricsListen,
    Overrides,
    credential_flags,
    metrics_flags,
)
from hetero_rl.cli.reporting import INTERRUPTED_EXIT_CODE
from hetero_rl.config import Config, load_config, show_config
from hetero_rl.errors import HeteroRLError
from hetero_rl.launch import checks
from hetero_rl.launch.hub_access import probe_hub
from hetero_rl.launch.plan import planned_workers
from hetero_rl.launch.rundir import RunDirectory
from hetero_rl.worker.backend import Backend

if TYPE_CHECKING:
    from hetero_rl.observe.summary import RunResult
    from hetero_rl.observe.view import View

__all__ = ["train"]


def train(
    files: ConfigFiles = None,
    infer_backend: Annotated[
        str | None,
        typer.Option(
            "--infer-backend",
            metavar="NAME[,NAME]",
            help="Backends that generate, such as cpu or ascend; NAME:CHIP emulates the numerics of a chip.",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=0, help="Workers of each backend to start on this machine.")
    ] = None,
    hub: HubAddress = None,
    credentials: Credentials = None,
    metrics_listen: MetricsListen = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in run.dir.")] = False,
    auto_resume: Annotated[
        bool,
        typer.Option(
            "--auto-resume",
            help="Continue the run in run.dir if one was begun: for whoever restarts it unasked.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the resolved settings, start nothing.")
    ] = False,
    overrides: Overrides = None,
) -> None:
    """Train a model: starts a hub and workers on this machine unless told of others, and shows how it goes.

    Ctrl-C stops after the step under way, with a checkpoint; --resume goes on from there.
    """
    flags = [
        *_flags(infer_backend, workers, hub),
        *credential_flags(credentials),
        *metrics_flags(metrics_listen),
    ]
    config = load_config(files or (), [*(overrides or ()), *flags])
    resume = resume or (auto_resume and RunDirectory(config.run.dir).trained)
    if int(os.environ.get("RANK", "0")):  # torchrun started this process to compute for the first one
        _follow(config, resume=resume)
        return
    backends = _check(config, resume=resume, dry_run=dry_run)
    if dry_run:
        typer.echo(_plan(config, backends))
        typer.echo(show_config(config).rstrip("\n"))
        return
    code = _run(config, backends, resume=resume)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from hetero_rl.trainer.ranks import end_process

        end_process(code)
    if code:
        raise typer.Exit(code)


def _follow(config: Config, *, resume: bool) -> None:
    from hetero_rl.trainer.ranks import end_process
    from hetero_rl.trainer.session import follow_rank

    quiet_libraries()
    follow_rank(config, resume=resume)
    end_process()


def _flags(infer_backend: str | None, workers: int | None, hub: str | None) -> list[str]:
    """Short options as the settings that they stand for; they win over --set."""
    flags = []
    if infer_backend is not None:
        flags += _backend_flags([name.strip() for name in infer_backend.split(",")], workers)
    if workers is not None:
        flags.append(f"inference.workers={workers}")
    if hub is not None:
        flags.append(f"hub.address='{hub}'")
    return flags


def _backend_flags(names: list[str], workers: int | None) -> list[str]:
    """NAME,NAME is a list of backends; NAME:EMULATION in it makes it a fleet, whose members differ in settings."""
    if not any(":" in name for name in names):
        return [f"inference.backends=[{', '.join(repr(name) for name in names)}]"]
    members = []
    for name in names:
        backend, _, emulate = name.partition(":")
        settings = f", worker = {{emulate = {emulate!r}}}" if emulate else ""
        members.append(f"{{backend = {backend!r}, workers = {max(1, workers or 1)}{settings}}}")
    return [f"inference.fleet=[{', '.join(members)}]"]


def _check(config: Config, *, resume: bool, dry_run: bool) -> dict[str, Backend]:
    """Everything that can be known to be wrong before anything is started, cheapest first."""
    checks.check_run_directory(config, resume=resume)
    on_cluster = config.launcher.kind == "ray"
    if on_cluster:
        from hetero_rl.launch.ray_cluster import check_ray

        check_ray()
    backends = checks.check_backends(config, detect=not on_cluster)
    checks.check_model(config.model.path)
    if config.hub.address is None:
        checks.check_port(config.hub.listen)
    else:
        checks.split_address(config.hub.address, "hub.address")
        if not dry_run:
            probe_hub(config.hub.address, config)
    # These know the estimators and tasks, and import torch for it.
    from hetero_rl.tasks import open_task
    from hetero_rl.trainer.session import check_settings

    check_settings(config)
    open_task(config.task, seed=config.run.seed, held_out=config.evaluation.prompts)
    return backends


def _plan(config: Config, backends: Mapping[str, Backend]) -> str:
    hub = f"hub at {config.hub.address}" if config.hub.address else f"start a hub on {config.hub.listen}"
    planned = planned_workers(config)
    here = [worker.name for worker in planned if worker.backend in backends]
    elsewhere = [worker.name for worker in planned if worker.backend not in backends]
    cluster = "" if config.launcher.kind == "local" else f" on the Ray cluster {config.launcher.address}"
    parts = [f"start workers {', '.join(here)}{cluster}"] if here else []
    if cluster:
        parts.append(f"start {config.launcher.trainer_ranks} trainer ranks{cluster}")
    if config.inference.workers == 0:
        parts.append("wait for remote workers")
    elif elsewhere:
        parts.append(f"wait for {', '.join(elsewhere)} of another machine, as this one has no such device")
    return f"# would use {config.run.dir}, {hub}, {', '.join(parts)}"


def _run(config: Config, backends: dict[str, Backend], *, resume: bool) -> int:
    """Trains; returns the exit code."""
    from hetero_rl.observe.summary import closing_summary
    from hetero_rl.observe.view import choose_view

    run = RunDirectory(config.run.dir)
    run.prepare()
    quiet_libraries()
    log_to_file(config, run.log("trainer"))
    try:
        with choose_view(_title(config), config.run.steps, live=config.logging.live) as view:
            result = _execute(config, backends, view, resume=resume)
    except HeteroRLError:
        if run.used:
            typer.echo(f"The run can go on with: hetero-rl train {run.config} --resume", err=True)
        raise
    audit = _audit(run) if config.logging.audit else ""
    typer.echo(closing_summary(run, result, tensorboard=config.logging.tensorboard) + audit)
    return 0 if result.complete else INTERRUPTED_EXIT_CODE


def _execute(config: Config, backends: dict[str, Backend], view: "View", *, resume: bool) -> "RunResult":
    if config.launcher.kind == "local":
        from hetero_rl.launch.local_run import LocalRun

        return LocalRun(config, backends, view, resume=resume).execute()
    from hetero_rl.launch.placement import cpus_in_all
    from hetero_rl.launch.ray_cluster import joined_cluster
    from hetero_rl.launch.ray_run import RayRun

    with joined_cluster(config.launcher, own_cpus=cpus_in_all(config)) as cluster:
        return RayRun(config, backends, view, cluster, resume=resume).execute()


def _audit(run: RunDirectory) -> str:
    """Writes the audit of the run; a run whose audit cannot be written is no less complete."""
    from hetero_rl.launch.audit import make_audit

    if not run.journal.exists():
        return f"\n\naudit        on the hub's machine: hetero-rl audit {run.root}"
    try:
        made, _ = make_audit(run, html=run.root / "audit.html", json_file=run.root / "audit.json")
    except (HeteroRLError, OSError) as error:
        return f"\n\naudit        not written: {error}"
    return f"\n\naudit        {made.first_line}\n             {run.root / 'audit.html'}"


def _title(config: Config) -> str:
    model = Path(config.model.path).name
    parts = (config.run.name, model, config.estimator.name, f"max lag {config.staleness.max_lag}")
    return "hetero-rl  " + " · ".join(parts)
