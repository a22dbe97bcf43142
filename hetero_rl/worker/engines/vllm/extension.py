"""What runs inside vLLM's worker processes. vLLM mixes this class into its worker and calls it by name.

Only plain strings, numbers, lists and dictionaries come in and go out: anything else, even a subclass of str, ends the thread
of vLLM that sends answers.
"""

import json
import os
import platform
import signal
import threading
import time
from pathlib import Path
from typing import Any

from hetero_rl.worker.engines.vllm.fixups import check_platform, watch_reload

__all__ = ["WeightExtension", "node_identity"]

_LOOK_SECONDS = 2.0

_ENVIRONMENT_PREFIXES = (
    "VLLM_",
    "HCCL_",
    "LCCL_",
    "ATB_",
    "NCCL_",
    "CUBLAS_",
    "HIPBLAS",
    "TORCH_BLAS_",
    "NVIDIA_TF32",
)
_ENVIRONMENT_NAMES = (
    "TORCHDYNAMO_DISABLE",
    "ATEN_CPU_CAPABILITY",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_MAX_CPU_ISA",
    "MKL_CBWR",
)
# These name machines, sockets or habits, and change no number.
_NOT_NUMERIC = (
    "VLLM_ALLOW_INSECURE_SERIALIZATION",
    "VLLM_DIST_IDENT",
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    "VLLM_HOST_IP",
    "VLLM_LOGGING_LEVEL",
    "VLLM_NO_USAGE_STATS",
    "VLLM_WORKER_MULTIPROC_METHOD",
)


class WeightExtension:
    """Mixed into vLLM's worker, whose attributes it uses: `model_runner`, `vllm_config`, `device`."""

    model_runner: Any
    vllm_config: Any
    device: Any

    def hetero_rl_load(self, path: str) -> list[str]:
        """Replaces the weights by those of a safetensors file; returns the names of the fix-ups that were needed."""
        import torch
        from safetensors import safe_open
        from vllm.config import set_current_vllm_config

        device = torch.device(self.device)
        check_platform(device.type)
        model = self.model_runner.get_model()
        with (
            set_current_vllm_config(self.vllm_config),
            torch.device(device),
            torch.no_grad(),
            safe_open(path, framework="pt") as file,
            watch_reload(model, device.type) as watch,
        ):
            names = json.loads(file.metadata()["names"])
            self.model_runner.reload_weights(
                weights_iterator=((name, file.get_tensor(name)) for name in names)
            )
            return watch.repair()

    def hetero_rl_facts(self) -> dict[str, str]:
        """What this process computes with."""
        import torch

        device = torch.device(self.device)
        facts = {
            "torch": str(torch.__version__),
            "device_type": device.type,
            "hip": torch.version.hip or "",
            "cuda": torch.version.cuda or "",
            "attention": self._hetero_rl_attention(),
            "runner": type(self.model_runner).__module__.rpartition("vllm.")[2],
            "threads": str(torch.get_num_threads()),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "device_name": _device_name(device),
            "process": str(os.getpid()),
        }
        for name, value in os.environ.items():
            relevant = name.startswith(_ENVIRONMENT_PREFIXES) or name in _ENVIRONMENT_NAMES
            if relevant and name not in _NOT_NUMERIC:
                facts[f"env.{name}"] = value
        return facts

    @staticmethod
    def hetero_rl_follow(pid: int) -> None:
        """Ends this process and vLLM's engine process when the worker that started them is gone, however it went.

        vLLM's engine process does not look after its parent: it would hold the device for ever.
        """
        threading.Thread(target=_end_after, args=(pid, os.getppid()), daemon=True).start()

    @staticmethod
    def hetero_rl_follow_on(pid: int, node: str) -> None:
        """The same for processes that Ray started, on any node: those on the worker's own node end with it.

        Ray ends the others, because the engine that owns them fails. The parent here is Ray's own and is left alone.
        """
        if node == node_identity():
            threading.Thread(target=_end_after, args=(pid, pid), daemon=True).start()

    def _hetero_rl_attention(self) -> str:
        layers = self.vllm_config.compilation_config.static_forward_context.values()
        found = {
            layer.get_attn_backend().get_name() for layer in layers if hasattr(layer, "get_attn_backend")
        }
        return ",".join(sorted(found)) or "unknown"


def node_identity() -> str:
    """The same for two processes if, and only if, their process ids can be compared."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"


def _end_after(pid: int, parent: int) -> None:
    """Waits until a process is gone, then ends the parent, if that is vLLM's engine process, and this process."""
    while _is_alive(pid):
        time.sleep(_LOOK_SECONDS)
    # Without a process of its own for the engine, the parent was the worker itself.
    if parent != pid and os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)
    os._exit(1)


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has asked about yet does not."""
    try:
        status = Path("/proc", str(pid), "stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in {"Z", "X"}


def _device_name(device: Any) -> str:
    import torch

    module = getattr(torch, device.type, None)
    if device.type != "cpu" and module is not None and hasattr(module, "get_device_name"):
        return str(module.get_device_name(device))
    return platform.processor() or platform.machine()
