"""The CPU backend of hetero-rl: any machine that torch runs on, no accelerator."""

import os
import platform
from pathlib import Path

from hetero_rl.worker.backend import Backend, DeviceReport

__all__ = ["BACKEND"]


def _detect() -> DeviceReport:
    """A CPU is always there; what matters is which one and how many cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return DeviceReport(available=True, devices=(f"{_cpu_name()}, {cores} cores",), advice="")


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
)
"""What `--infer-backend cpu` starts."""
