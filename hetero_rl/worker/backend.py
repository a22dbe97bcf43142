"""What a vendor's backend distribution declares. Found by the entry point group `hetero_rl.backends`.

A backend is mostly data. The code that differs between vendors is small: how to see the devices without importing a
vendor module in the wrong place, and which engine class to start.

    what is there     detect() ─► DeviceReport: devices, versions of driver and toolkit, what to do next
    how it runs       environment, profiles ("default", "reproducible"), quirks with their fixes
    what never works  known_bad: combinations of versions, each with advice
    where it runs     container: image, device nodes, mounts, groups; scheduler: resource and labels (`hetero_rl.deploy.needs`)
"""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points

from hetero_rl.deploy.needs import ContainerNeeds, SchedulerNeeds
from hetero_rl.errors import BackendNotFoundError, ConfigError, EngineError
from hetero_rl.worker.engine import Engine, EngineSettings

__all__ = [
    "DEFAULT_PROFILE",
    "ENTRY_POINT_GROUP",
    "Backend",
    "DeviceReport",
    "KnownBad",
    "Profile",
    "Quirk",
    "find_backend",
    "installed_backends",
]

ENTRY_POINT_GROUP = "hetero_rl.backends"

DEFAULT_PROFILE = "default"
_CPUS_ONLY = SchedulerNeeds()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """What a backend found on this host, without starting an engine."""

    available: bool
    devices: tuple[str, ...]
    """Names as the driver reports them."""
    advice: str
    """What to do next when not available; empty otherwise."""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Versions of driver, firmware and toolkit by name, such as "driver" or "cann", as far as they can be read."""
    ids: tuple[str, ...] = ()
    """Id of each device as containers and the visibility variable count them; empty where there is one of its kind."""
    warnings: tuple[str, ...] = ()
    """What is odd although the devices can be used, or why they cannot, in words."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Knobs that change numbers or their repeatability, chosen together by `inference.worker.profile`."""

    description: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Variables of the worker process, above those of the backend."""
    engine_options: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)
    """Engine name to options by the engine's own names, such as {"vllm": {"enforce_eager": True}}."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Quirk:
    """A known defect or surprise of a vendor's stack, and what this backend does about it."""

    name: str
    """Short and fixed, such as "nz-layout"."""
    symptom: str
    fix: str
    """What is done about it, or what is refused."""
    applies_to: str
    """Versions or devices."""
    evidence: str
    """How it is known: "run", "read in source", "documented" or "reported", and where."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Variables that are the fix, or part of it."""
    engine_options: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)
    """Engine options that are the fix, or part of it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KnownBad:
    """A combination of versions that is known not to work."""

    name: str
    found: Callable[[Mapping[str, str]], bool]
    """Whether it is there; takes versions by name: those of the device report, of Python and of distributions."""
    problem: str
    advice: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One vendor's inference backend."""

    name: str
    """What `--infer-backend` says."""
    vendor: str
    """Vendor: "cpu", "nvidia", "amd" or "ascend"."""
    description: str
    engines: Mapping[str, str]
    """Engine name to "module:Class"; the class takes `EngineSettings`."""
    default_engine: str
    detect: Callable[[], DeviceReport]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Environment variables of the worker process, set before anything heavy is imported."""
    profiles: Mapping[str, Profile] = dataclasses.field(default_factory=dict)
    """Named sets of knobs; "default" is always there, with no knobs unless it is given."""
    quirks: tuple[Quirk, ...] = ()
    known_bad: tuple[KnownBad, ...] = ()
    container: ContainerNeeds | None = None
    scheduler: SchedulerNeeds = _CPUS_ONLY
    """What its processes ask of a scheduler that places them."""
    torch_device: str = ""
    """Device that engines on plain torch compute on, such as "cuda"; empty is the CPU."""
    visible_devices: str = ""
    """Variable that narrows down the devices of a process, such as "CUDA_VISIBLE_DEVICES"; empty for none."""
    portable_sampling_only: str = ""
    """Why nothing but temperature 1, top_p 1, top_k 0 can be sampled here; empty where more can be."""
    distributions: tuple[str, ...] = ()
    """Python distributions whose versions matter here, for `hetero-rl doctor`."""
    engine_install: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Engine name to how its packages come onto this machine, for the message when they are missing."""

    def process_environment(self, profile: str = DEFAULT_PROFILE) -> dict[str, str]:
        """Variables of a worker process: the backend's, then those of its quirks, then those of the profile."""
        chosen = self.profile(profile)
        merged = dict(self.environment)
        for quirk in self.quirks:
            merged.update(quirk.environment)
        return {**merged, **chosen.environment}

    def engine_options(
        self,
        engine: str | None = None,
        profile: str = DEFAULT_PROFILE,
        own: Mapping[str, object] | None = None,
    ) -> dict[str, object]:
        """Options of an engine by its own names: those of the quirks, of the profile, then a user's own; tables are merged."""
        name = engine or self.default_engine
        declared = (*(quirk.engine_options for quirk in self.quirks), self.profile(profile).engine_options)
        merged: dict[str, object] = {}
        for source in (*(options.get(name, {}) for options in declared), own or {}):
            for key, value in source.items():
                before = merged.get(key)
                both = isinstance(before, Mapping) and isinstance(value, Mapping)
                merged[key] = {**before, **value} if both else value  # type: ignore[dict-item]  # both are mappings
        return merged

    def profile(self, name: str) -> Profile:
        """The profile of that name; raises ConfigError naming those there are."""
        profiles = {
            DEFAULT_PROFILE: Profile(description="Nothing beyond the backend's own environment."),
            **self.profiles,
        }
        if name not in profiles:
            raise ConfigError(
                f"backend {self.name!r} has no profile {name!r}; it has {', '.join(sorted(profiles))}"
            )
        return profiles[name]

    def engine_class(self, name: str | None = None) -> Callable[[EngineSettings], Engine]:
        """The engine class of that name, or the default one.

        Raises:
            ConfigError: There is no such engine; the message names those there are.
            EngineError: Its packages are not installed; the message says how they are.
        """
        wanted = name or self.default_engine
        if wanted not in self.engines:
            raise ConfigError(
                f"backend {self.name!r} has no engine {wanted!r}; it has {sorted(self.engines)}"
            )
        module, _, attribute = self.engines[wanted].partition(":")
        try:
            found: Callable[[EngineSettings], Engine] = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            how = self.engine_install.get(wanted, f"pip install 'hetero-rl-backend-{self.name}'")
            raise EngineError(
                f"engine {wanted!r} of backend {self.name!r} needs the Python package {error.name!r}, which is not installed. "
                f"To install it: {how}"
            ) from error
        return found


def installed_backends() -> dict[str, Callable[[], object]]:
    """Loaders of the installed backends by name; nothing is imported until one is called."""
    return {point.name: point.load for point in entry_points(group=ENTRY_POINT_GROUP)}


def find_backend(name: str) -> Backend:
    """The installed backend of that name; raises BackendNotFoundError listing those installed."""
    loaders = installed_backends()
    if name not in loaders:
        raise BackendNotFoundError(
            f"no installed backend is called {name!r}; installed: {', '.join(sorted(loaders)) or 'none'}. "
            f"Install one with: pip install hetero-rl-backend-{name}"
        )
    declared = loaders[name]()
    if not isinstance(declared, Backend):
        raise BackendNotFoundError(
            f"entry point {name!r} of group {ENTRY_POINT_GROUP} is not a Backend: {declared!r}"
        )
    return declared
