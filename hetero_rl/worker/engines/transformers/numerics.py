"""What the numbers of this engine depend on, read from the running process."""

import os

import torch
import transformers

from hetero_rl.wire.messages import NumericsRecord
from hetero_rl.worker.emulations import Emulation
from hetero_rl.worker.processor import cpu_name

__all__ = ["numerics_record"]

# Environment variables that change which kernels run or how they add up.
_ENVIRONMENT = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_MAX_CPU_ISA",
    "TORCH_BLAS_PREFER_HIPBLASLT",
)


def numerics_record(
    device: torch.device, dtype: str, attention: str, emulation: Emulation | None = None
) -> NumericsRecord:
    """Describes the numerics of a model on a device; call it on the thread that computes.

    An emulated record names the device that computes, never the chip that is imitated.
    """
    vendor, name, driver, runtime = _device(device)
    return NumericsRecord(
        engine="transformers",
        engine_version=transformers.__version__,
        torch_version=torch.__version__,
        device_vendor=vendor,
        device_name=name,
        driver_version=driver,
        runtime_version=runtime,
        data_type=dtype,
        attention_backend=attention,
        log_probs_mode="processed",
        knobs={**_knobs(device), **({"emulate": emulation.name} if emulation else {})},
        emulated=emulation is not None,
    )


def _device(device: torch.device) -> tuple[str, str, str, str]:
    """Vendor, device name, driver version and runtime version."""
    if device.type == "cpu":
        return "cpu", cpu_name(), "", ""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        if torch.version.hip:
            return "amd", name, "", torch.version.hip
        return "nvidia", name, "", torch.version.cuda or ""
    if device.type == "npu":
        return "ascend", "npu", "", ""
    return device.type, device.type, "", ""


def _knobs(device: torch.device) -> dict[str, str]:
    knobs = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    knobs["float32_matmul_precision"] = torch.get_float32_matmul_precision()
    if device.type == "cpu":
        knobs["threads"] = str(torch.get_num_threads())
        knobs["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
        knobs["mkldnn"] = str(torch.backends.mkldnn.enabled)
    return knobs
