"""`hetero-rl calibrate`: how far each backend is from the trainer, why, and up to what length that can be trained on."""

import dataclasses
import json
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero_rl.cli.logs import quiet_libraries
from hetero_rl.cli.options import Credentials, HubAddress, JsonOutput, Overrides, credential_flags
from hetero_rl.config import Config, load_config
from hetero_rl.errors import ConfigError, UnreachableError
from hetero_rl.launch.checks import STARTER, check_model

if TYPE_CHECKING:
    from hetero_rl.calibration.plan import Plan
    from hetero_rl.calibration.record import Calibration
    from hetero_rl.calibration.thresholds import Thresholds
    from hetero_rl.reports.findings import Verdict

__all__ = ["app"]

app = typer.Typer(no_args_is_help=False, invoke_without_command=True)

ALL = "all"
"""Without --backends: every backend of a running hub, or the CPU of this machine."""
FAIL_EXIT_CODE = 3
"""A verdict at or beyond --fail-on."""


@app.callback()
def calibrate(
    context: typer.Context,
    backends: Annotated[
        str,
        typer.Option(
            "--backends",
            metavar="NAME[:KEY=VALUE],...",
            help="Backends, each with settings of its worker if wanted, such as cpu:dtype=bfloat16; all of a running hub.",
        ),
    ] = ALL,
    against: Annotated[
        str,
        typer.Option("--against", help='"trainer", or "none" to compare the backends with each other only.'),
    ] = "trainer",
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL_DIR", help="The model; model.path if not given."),
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--config", metavar="CONFIG.toml", help="Settings of the run that the verdict is about."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where calibration.json and calibration.html go.")
    ] = Path("calibration"),
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="RUN", help="A run: its settings, and its directory keeps a copy."),
    ] = None,
    hub: HubAddress = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A tenth of the tokens: shows that it works, proves little.")
    ] = False,
    prompts: Annotated[int | None, typer.Option("--prompts", min=2, help="Prompts to complete.")] = None,
    tokens: Annotated[
        int | None, typer.Option("--tokens", min=8, help="Most tokens of a completion.")
    ] = None,
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            "--threshold", metavar="NAME=VALUE", help="What counts as too much, such as ess_floor=0.7."
        ),
    ] = None,
    fail_on: Annotated[
        str | None, typer.Option("--fail-on", help="caution or unusable: exit code 3 from there on.")
    ] = None,
    credentials: Credentials = None,
    overrides: Overrides = None,
) -> None:
    """Measure how far backends are from the trainer, name the cause, and say up to what length that is usable.

    Starts a hub and a worker for each backend, gives all of them the same weights by digest, and lets everybody score what
    everybody wrote. With --hub, the workers of a running hub score instead, at its newest weights.
    """
    if context.invoked_subcommand is not None:
        return
    config = _config(files or [], run, model, [*(overrides or []), *credential_flags(credentials)])
    from hetero_rl.calibration.thresholds import thresholds_from

    quiet_libraries()
    thresholds = thresholds_from(threshold or [])
    plan = _plan(quick=quick, prompts=prompts, tokens=tokens)
    worst, rivals = _fail_level(fail_on), _against(against)
    address = hub
    if address is None and run is not None:
        address = _running_hub(run)
    command, say = shlex.join(["hetero-rl", *sys.argv[1:]]), lambda text: typer.echo(text, err=True)
    if address is not None:
        from hetero_rl.launch.live_calibration import calibrate_live

        names = [] if backends == ALL else [name.strip() for name in backends.split(",")]
        directory = _model_directory(config)
        calibration, decode = calibrate_live(
            config, address, names, directory, plan=plan, thresholds=thresholds, command=command, report=say
        )
    else:
        calibration, decode = _own_hubs(config, backends, plan, thresholds, rivals, command, say)
    _write(calibration, decode, out, run)
    from hetero_rl.reports.findings import worst_verdict

    if worst is not None and worst_verdict(calibration.findings) >= worst:
        raise typer.Exit(FAIL_EXIT_CODE)


def _own_hubs(
    config: Config,
    backends: str,
    plan: "Plan",
    thresholds: "Thresholds",
    against: tuple[str, ...],
    command: str,
    say: Callable[[str], None],
) -> "tuple[Calibration, Callable[[int], str]]":
    """Calibrates with hubs and workers started here."""
    from hetero_rl.launch.calibration import calibrate as measure_all
    from hetero_rl.launch.calibration import parse_backends

    choices = parse_backends("cpu" if backends == ALL else backends)
    directory = _model_directory(config)
    with tempfile.TemporaryDirectory(prefix="hetero-rl-calibrate-") as work:
        return measure_all(
            config,
            choices,
            directory,
            plan=plan,
            thresholds=thresholds,
            against=against,
            work_dir=Path(work),
            command=command,
            report=say,
        )


def _running_hub(run: Path) -> str | None:
    """The address of the hub of a run; None when it does not run."""
    from hetero_rl.launch.hub_access import find_run, hub_of, probe_hub

    try:
        found = find_run(run)
        address = hub_of(found)
        probe_hub(address, load_config([found.config]))
    except UnreachableError:
        return None
    return address


def _write(calibration: "Calibration", decode: Callable[[int], str], out: Path, run: Path | None) -> None:
    from hetero_rl.calibration.record import calibration_text, summary_lines
    from hetero_rl.calibration.store import keep_calibration
    from hetero_rl.reports.calibration import calibration_page
    from hetero_rl.reports.page import render_page
    from hetero_rl.reports.record import write_text

    text = calibration_text(calibration)
    write_text(out / "calibration.json", text)
    write_text(out / "calibration.html", render_page(calibration_page(calibration, decode)))
    ids = {str(record["numerics_id"]) for record in calibration.numerics.values()}
    keep_calibration(text, calibration.model_digest, sorted(ids), run=run)
    for line in summary_lines(calibration):
        typer.echo(line)
    typer.echo(f"\n{out / 'calibration.html'}\n{out / 'calibration.json'}")


@app.command("diff")
def diff(
    before: Annotated[Path, typer.Argument(metavar="A.json", help="The earlier calibration.")],
    after: Annotated[Path, typer.Argument(metavar="B.json", help="The later one.")],
    as_json: JsonOutput = False,
    fail_on_change: Annotated[
        bool, typer.Option("--fail-on-change", help="Exit code 3 when something moved.")
    ] = False,
) -> None:
    """Say whether anything moved between two calibrations, such as an upgrade of a driver or an engine.

    Sequences are dealt anew between the files 2000 times, so that few tokens prove little.
    """
    from hetero_rl.calibration.compare import compare_calibrations
    from hetero_rl.calibration.record import read_calibration
    from hetero_rl.reports.text import format_number

    found = compare_calibrations(read_calibration(before), read_calibration(after))
    if as_json:
        body = {"first_line": found.first_line, "moved": found.moved, **dataclasses.asdict(found)}
        typer.echo(json.dumps(body, indent=2))
    else:
        typer.echo(found.first_line)
        for sentence in found.changed_numerics:
            typer.echo(f"  {sentence}")
        for name, tokens, mean, largest in found.fixed:
            typer.echo(
                f"  {name}: the same {tokens} tokens differ by {format_number(mean)} nats on average, {format_number(largest)} at most"
            )
        for one in found.numbers:
            mark = "moved" if one.moved else "as before"
            typer.echo(
                f"  {one.pair}: {one.number} {format_number(one.before)} -> {format_number(one.after)}, p = {one.p_value:.3g}, {mark}"
            )
        for name in found.only_in_one:
            typer.echo(f"  {name}: in one of the files only")
    if fail_on_change and found.moved:
        raise typer.Exit(FAIL_EXIT_CODE)


def _config(files: list[Path], run: Path | None, model: str | None, overrides: list[str]) -> Config:
    base = list(files)
    if run is not None:
        from hetero_rl.launch.hub_access import find_run

        base.insert(0, find_run(run).config)
    if model is not None:
        overrides = [*overrides, f"model.path='{model}'"]
    config = load_config(base, overrides)
    check_model(config.model.path)
    return config


def _model_directory(config: Config) -> Path:
    if config.model.path != STARTER:
        return Path(config.model.path).expanduser()
    from hetero_rl.starter import ensure_starter

    return ensure_starter(config)


def _against(text: str) -> tuple[str, ...]:
    if text not in {"trainer", "none"}:
        raise ConfigError(f'--against is {text!r}; give "trainer" or "none"')
    return (text,) if text == "trainer" else ()


def _plan(*, quick: bool, prompts: int | None, tokens: int | None) -> "Plan":
    from hetero_rl.calibration.plan import Plan

    plan = Plan()
    if quick:
        plan = dataclasses.replace(
            plan, prompts=4, group_size=2, max_new_tokens=48, text_tokens=96, checked=4
        )
    return dataclasses.replace(
        plan,
        prompts=plan.prompts if prompts is None else prompts,
        max_new_tokens=plan.max_new_tokens if tokens is None else tokens,
    )


def _fail_level(text: str | None) -> "Verdict | None":
    from hetero_rl.reports.findings import Verdict

    if text is None:
        return None
    if text not in {"caution", "unusable"}:
        raise ConfigError(f"--fail-on is {text!r}; give caution or unusable")
    return Verdict[text.upper()]
