"""Whether compiled loops can do what torch takes several passes for."""

import functools
import importlib
import importlib.util
from types import ModuleType

from torch import Tensor

__all__ = ["compiled_loops"]


def compiled_loops(column: Tensor) -> ModuleType | None:
    """The module `compiled` where the column lies on a CPU and numba is installed, else None."""
    return _loops() if column.device.type == "cpu" else None


@functools.cache
def _loops() -> ModuleType | None:
    if importlib.util.find_spec("numba") is None:
        return None
    return importlib.import_module("hetero_rl.estimators.stages.compiled")
