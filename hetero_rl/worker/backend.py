"""What a vendor's backend distribution declares. Found by the entry point group `hetero_rl.backends`.

A backend is mostly data. The code that differs between vendors is small: how to see the devices without importing a
vendor module in the wrong place, and which engine class to start.
"""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points

from hetero_rl.errors import BackendNotFoundError, ConfigError
from hetero_rl.worker.engine import Engine, EngineSettings

__all__ = ["ENTRY_POINT_GROUP", "Backend", "DeviceReport", "find_backend", "installed_backends"]

ENTRY_POINT_GROUP = "hetero_rl.backends"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """What a backend found on this host, without starting an engine."""

    available: bool
    devices: tuple[str, ...]
    """Names as the driver reports them."""
    advice: str
    """What to do next when not available; empty otherwise."""


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

    def engine_class(self, name: str | None = None) -> Callable[[EngineSettings], Engine]:
        """The engine class of that name, or the default one; raises ConfigError naming those there are."""
        wanted = name or self.default_engine
        if wanted not in self.engines:
            raise ConfigError(
                f"backend {self.name!r} has no engine {wanted!r}; it has {sorted(self.engines)}"
            )
        module, _, attribute = self.engines[wanted].partition(":")
        found: Callable[[EngineSettings], Engine] = getattr(importlib.import_module(module), attribute)
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
