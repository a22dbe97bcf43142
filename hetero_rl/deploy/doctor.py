"""What is installed and what is to be seen on this machine, per backend, and what to do next. Imports nothing heavy.

backend ─► detect() ─► devices, driver and toolkit versions, what is missing
        ├► versions of its distributions ─► combinations that never work
        ├► engines whose packages are there
        └► container needs ─► device nodes and driver files that this host lacks, for each way of access
"""

import dataclasses
import importlib.util
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

import hetero_rl
from hetero_rl.deploy.host import Host
from hetero_rl.deploy.needs import DeviceAccess
from hetero_rl.worker.backend import Backend, DeviceReport

__all__ = ["SCHEMA_VERSION", "BackendDiagnosis", "Problem", "diagnose", "doctor_record", "installed_versions"]

SCHEMA_VERSION = 1
NO_DEVICE = "no-device"
_ENGINE_SETTINGS = "/etc/docker/daemon.json"

_ENGINE_MODULES: Mapping[str, tuple[str, ...]] = {
    "vllm": ("vllm",),
    "transformers": ("torch", "transformers"),
    "scripted": (),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps a backend from working, and what to do about it."""

    name: str
    problem: str
    advice: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BackendDiagnosis:
    """What was found out about one backend."""

    backend: Backend
    report: DeviceReport
    versions: Mapping[str, str]
    """Of driver and toolkit, of Python, and of the distributions that matter here."""
    engines: Mapping[str, bool]
    """Engine name to whether its packages are installed."""
    problems: tuple[Problem, ...]
    missing: Mapping[str, tuple[str, ...]]
    """Way of access of a container to nodes and files that this host lacks; ways that lack nothing are empty."""

    @property
    def usable(self) -> bool:
        """Whether a worker of this backend can be started here."""
        return not self.problems

    @property
    def next_step(self) -> str:
        """What to do now, one sentence."""
        if self.problems and self.problems[0].name == NO_DEVICE:
            return (
                f"{self.problems[0].advice}. To use one of another machine: hetero-rl train --infer-backend "
                f"{self.backend.name}, which waits for a worker there and says what to type"
            )
        if self.problems:
            return self.problems[0].advice
        return f"hetero-rl doctor --certify --backend {self.backend.name}"


def installed_versions(distributions: Sequence[str]) -> dict[str, str]:
    """Versions of those that are installed."""
    found = {}
    for name in distributions:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def diagnose(
    backend: Backend,
    host: Host | None = None,
    *,
    versions: Callable[[Sequence[str]], Mapping[str, str]] = installed_versions,
    has_module: Callable[[str], bool] = lambda name: importlib.util.find_spec(name) is not None,
) -> BackendDiagnosis:
    """Looks at this machine for one backend.

    Args:
        backend: Installed backend.
        host: The machine whose nodes and files are looked at for containers.
        versions: Gives the versions of distributions.
        has_module: Says whether a module can be imported, without importing it.
    """
    report = backend.detect()
    known = {
        **report.versions,
        "python": platform.python_version(),
        **versions((*backend.distributions, "hetero-rl", f"hetero-rl-backend-{backend.name}")),
    }
    engines = {name: all(map(has_module, _ENGINE_MODULES.get(name, ()))) for name in backend.engines}
    access = backend.container.access if backend.container else {}
    return BackendDiagnosis(
        backend=backend,
        report=report,
        versions=known,
        engines=engines,
        problems=tuple(_problems(backend, report, known, engines)),
        missing={name: _missing(way, report.ids, host or Host()) for name, way in access.items()},
    )


def _problems(
    backend: Backend, report: DeviceReport, versions: Mapping[str, str], engines: Mapping[str, bool]
) -> list[Problem]:
    found = [
        Problem(known.name, known.problem, known.advice)
        for known in backend.known_bad
        if known.found(versions)
    ]
    if not report.available:
        found.insert(0, Problem(NO_DEVICE, "No device can be used here.", report.advice))
    if not any(there for name, there in engines.items() if name != "scripted"):
        default = backend.default_engine
        advice = backend.engine_install.get(default, f"pip install 'hetero-rl-backend-{backend.name}'")
        found.append(Problem("no-engine", f"The packages of engine {default!r} are not installed.", advice))
    return found


def _missing(access: DeviceAccess, ids: Sequence[str], host: Host) -> tuple[str, ...]:
    """Device nodes, driver files, programs and runtimes that a container would need, but that are not there."""
    nodes = [entry for entry in access.devices_for(ids or ("0",)) if entry.startswith("/")]
    files = [mount.path for mount in access.mounts if mount.required]
    lacking = [path for path in (*nodes, *files) if not host.exists(path)]
    if access.programs and not any(map(host.has_program, access.programs)):
        lacking.append(f"{access.programs[0]} (a program)")
    if access.runtime and access.runtime not in _runtimes(host):
        lacking.append(f"runtime {access.runtime!r} in {_ENGINE_SETTINGS}")
    return tuple(lacking)


def _runtimes(host: Host) -> Mapping[str, object]:
    """Container runtimes that the engine's settings name."""
    try:
        runtimes = json.loads(host.read(_ENGINE_SETTINGS)).get("runtimes", {})
    except (ValueError, AttributeError):
        return {}
    return runtimes if isinstance(runtimes, dict) else {}


def doctor_record(
    diagnoses: Sequence[BackendDiagnosis], created_at: str, host: Host | None = None
) -> dict[str, object]:
    """The body of the JSON record that `cluster check` reads from each host.

    Args:
        diagnoses: One for each backend.
        created_at: ISO 8601, UTC, by this host's clock.
        host: The machine whose listening ports are told.
    """
    return {
        "created_at": created_at,
        "host": {
            "name": platform.node(),
            "machine": platform.machine(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "hetero_rl": hetero_rl.__version__,
            "listening_ports": list((host or Host()).listening_ports()),
        },
        "backends": [_backend_record(diagnosis) for diagnosis in diagnoses],
    }


def _backend_record(diagnosis: BackendDiagnosis) -> dict[str, object]:
    backend, report = diagnosis.backend, diagnosis.report
    return {
        "name": backend.name,
        "vendor": backend.vendor,
        "description": backend.description,
        "usable": diagnosis.usable,
        "devices": list(report.devices),
        "device_ids": list(report.ids),
        "versions": dict(diagnosis.versions),
        "engines": {
            name: {"installed": there, "default": name == backend.default_engine}
            for name, there in diagnosis.engines.items()
        },
        "profiles": sorted({"default", *backend.profiles}),
        "quirks": [quirk.name for quirk in backend.quirks],
        "problems": [dataclasses.asdict(problem) for problem in diagnosis.problems],
        "warnings": list(report.warnings),
        "missing_for_containers": {name: list(paths) for name, paths in diagnosis.missing.items()},
        "next_step": diagnosis.next_step,
    }
