"""`hetero-rl doctor`: what is installed, which devices are there, what never works together, what to do next."""

import asyncio
import datetime as dt
import getpass
import os
import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hetero_rl.cli.logs import quiet_libraries
from hetero_rl.cli.options import Overrides
from hetero_rl.config import Config, load_config
from hetero_rl.deploy.doctor import SCHEMA_VERSION, BackendDiagnosis, diagnose, doctor_record
from hetero_rl.errors import BackendError, ConfigError
from hetero_rl.reports.record import record_text
from hetero_rl.worker.backend import find_backend, installed_backends
from hetero_rl.worker.emulations import labelled_backend
from hetero_rl.worker.engine import EngineSettings

if TYPE_CHECKING:
    from hetero_rl.certify.runner import CheckOutcome
    from hetero_rl.certify.subject import Subject

__all__ = ["doctor"]

UNHEALTHY_EXIT_CODE = 1


def doctor(
    backend: Annotated[
        str | None,
        typer.Option("--backend", metavar="NAME", help="Look at this backend only; it must then be usable."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, which `cluster check` reads from each host.")
    ] = False,
    certify: Annotated[
        bool,
        typer.Option("--certify", help="Run every rule of an engine on the real device; writes a record."),
    ] = False,
    engine: Annotated[
        str | None, typer.Option("--engine", help="Engine to certify; the backend's own choice if not given.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", metavar="DIR", help="Model to certify with; a tiny one is made if not given."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where the record of a certification goes.")
    ] = Path("certification"),
    sign_off: Annotated[
        str | None,
        typer.Option("--sign-off", metavar="WHO", help="Who answers for it; user@host if not given."),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Say per backend what is installed and which devices are there, and what to do next.

    --certify runs the contract of an engine on the device: generation, log-probabilities, scoring, weight updates,
    pausing, determinism, probe card. `--set inference.worker.dtype=bfloat16` and its neighbours choose how it runs.
    """
    if certify:
        _certify(backend, engine, model, out, sign_off, load_config((), overrides or ()))
        return
    names = [backend] if backend is not None else sorted(installed_backends())
    diagnoses = [diagnose(find_backend(name)) for name in names]
    if as_json:
        typer.echo(record_text("doctor", SCHEMA_VERSION, doctor_record(diagnoses, _now())), nl=False)
    else:
        Console(soft_wrap=True).print(_report(diagnoses))
    usable = [diagnosis.usable for diagnosis in diagnoses]
    if not (all(usable) if backend is not None else any(usable)):
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


def _report(diagnoses: list[BackendDiagnosis]) -> RenderableType:
    if not diagnoses:
        return Text("No backend is installed. Install one with: pip install hetero-rl-backend-cpu")
    parts: list[RenderableType] = []
    for diagnosis in diagnoses:
        parts += [*_backend_lines(diagnosis), Text()]
    return Group(*parts[:-1])


def _backend_lines(diagnosis: BackendDiagnosis) -> list[RenderableType]:
    backend, report = diagnosis.backend, diagnosis.report
    state = "[green]usable here[/]" if diagnosis.usable else "[yellow]not usable here[/]"
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    engines = [f"{name}{'' if there else ' (not installed)'}" for name, there in diagnosis.engines.items()]
    rows = [
        ("devices", ", ".join(report.devices) or "none"),
        ("versions", ", ".join(f"{name} {found}" for name, found in sorted(diagnosis.versions.items()))),
        ("engines", ", ".join(engines)),
        *(("problem", f"{problem.problem} {problem.advice}") for problem in diagnosis.problems),
        *(("warning", warning) for warning in report.warnings),
        ("next", diagnosis.next_step),
    ]
    for name, text in rows:
        table.add_row(name, escape(text))
    return [Text.from_markup(f"[bold]{backend.name}[/]  {escape(backend.description)}: {state}"), table]


def _certify(
    backend_name: str | None,
    engine_name: str | None,
    model: Path | None,
    out: Path,
    sign_off: str | None,
    config: Config,
) -> None:
    if backend_name is None:
        raise ConfigError(
            "name the backend to certify with --backend NAME; `hetero-rl doctor` lists those installed"
        )
    worker = config.inference.worker
    engine_name = engine_name or worker.engine
    backend = find_backend(backend_name)
    diagnosis = diagnose(backend)
    if not diagnosis.report.available:
        raise BackendError(f"backend {backend.name!r} finds no device here. {diagnosis.report.advice}")
    for name, value in backend.process_environment(worker.profile).items():
        os.environ.setdefault(name, value)
    quiet_libraries()
    from hetero_rl.certify.record import Circumstances, write_certification
    from hetero_rl.certify.runner import certify

    console = Console(soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="hetero-rl-certify-") as scratch:
        settings = EngineSettings(
            model_dir=Path(scratch),
            dtype=worker.dtype,
            max_concurrent_sequences=worker.max_concurrent_sequences,
            threads=worker.threads,
            device=backend.torch_device,
            options=backend.engine_options(engine_name, worker.profile, worker.engine_options),
            emulate=worker.emulate or "",
        )
        subject = _subject(backend_name, engine_name, model, settings)
        result = asyncio.run(certify(subject, lambda outcome: console.print(_outcome_line(outcome))))
    circumstances = Circumstances(
        backend=labelled_backend(backend.name, worker.emulate),
        engine=engine_name or backend.default_engine,
        profile=worker.profile,
        model=str(model) if model is not None else "tiny Qwen3, random weights",
        data_type=result.numerics.data_type if result.numerics else worker.dtype,
        tolerance=subject.tolerance,
        devices=diagnosis.report.devices,
        versions=diagnosis.versions,
        signed_off_by=sign_off or f"{getpass.getuser()}@{platform.node()}",
        created_at=_now(),
    )
    files = write_certification(out, result, circumstances)
    verdict = "[green]certified[/]" if result.passed else "[red]not certified[/]"
    console.print(f"{verdict} in {result.seconds:.0f} s; record: {', '.join(map(str, files))}")
    if not result.passed:
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


def _subject(backend: str, engine: str | None, model: Path | None, settings: EngineSettings) -> "Subject":
    from hetero_rl.certify.models import directory_subject, tiny_subject

    engine_class = find_backend(backend).engine_class(engine)
    if model is not None:
        return directory_subject(engine_class, model, settings)
    return tiny_subject(engine_class, settings.model_dir, settings)


def _outcome_line(outcome: "CheckOutcome") -> Text:
    figures = "  ".join(f"{name} {value:.3g}" for name, value in outcome.figures.items())
    state = ("passed", "green") if outcome.passed else ("FAILED", "red")
    detail = figures if outcome.passed else outcome.message
    return Text.assemble(state, f"  {outcome.name:24} {outcome.seconds:6.1f} s  ", (detail, "dim"))


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
