"""Environment, determinism knobs and known defects on ROCm. Read in sources and documents; not run on an AMD GPU."""

from collections.abc import Mapping

from hetero_rl.deploy.host import version_tuple
from hetero_rl.worker.backend import KnownBad, Profile, Quirk

__all__ = ["ENVIRONMENT", "KNOWN_BAD", "PROFILES", "QUIRKS"]

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES": "1",
}

QUIRKS = (
    Quirk(
        name="aiter",
        symptom="AITER kernels shuffle expert weights after loading; new weights have been corrupted by it.",
        fix="AITER is off, also where an image switches it on. Calibrate, then switch it on and compare.",
        applies_to="vLLM 0.14 and newer; reported and fixed around 0.14",
        evidence="reported: ROCm/vllm issue 849, vllm issue 31258",
        environment={"VLLM_ROCM_USE_AITER": "0"},
    ),
    Quirk(
        name="silent-quantisation",
        symptom="Some switches quantise products or reductions again without a word in the configuration.",
        fix="They are off.",
        applies_to="vLLM 0.23 to 0.33",
        evidence="read in source",
        environment={
            "VLLM_ROCM_USE_AITER_FP8BMM": "0",
            "VLLM_ROCM_USE_AITER_FP4BMM": "0",
            "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": "NONE",
        },
    ),
    Quirk(
        name="fp8-variant",
        symptom="MI300 has another 8-bit float format (FNUZ) than MI350 and NVIDIA (OCP).",
        fix="Weights travel in bfloat16, float16 or float32 only.",
        applies_to="gfx942",
        evidence="documented by AMD",
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
        description="Graphs and the vendor's matrix library, AITER off.",
        engine_options={"vllm": {"enforce_eager": False}},
    ),
    "reproducible": Profile(
        description=(
            "Batch-invariant kernels, no split-K products: the same request gives the same numbers whatever runs beside it. "
            "Slower; gfx90a, gfx942 and gfx950."
        ),
        environment={
            "VLLM_BATCH_INVARIANT": "1",
            "VLLM_ROCM_USE_SKINNY_GEMM": "0",
            "TORCH_BLAS_PREFER_HIPBLASLT": "0",
        },
    ),
}


def _torch_for_another_vendor(versions: Mapping[str, str]) -> bool:
    torch = versions.get("torch", "")
    return "rocm" in versions and ("+cu" in torch or "+cpu" in torch)


def _vllm_from_pypi(versions: Mapping[str, str]) -> bool:
    return "rocm" in versions and "vllm" in versions and "flashinfer-python" in versions


def _rocm_too_old(versions: Mapping[str, str]) -> bool:
    vllm, rocm = version_tuple(versions.get("vllm", "")), version_tuple(versions.get("rocm", ""))
    return bool(rocm) and vllm >= (0, 14) and rocm < (7,)


KNOWN_BAD = (
    KnownBad(
        name="torch-for-another-vendor",
        found=_torch_for_another_vendor,
        problem="This torch is not built for ROCm, so no engine here sees the GPU.",
        advice="Use the image's torch; reinstall with --constraint backends/rocm/image-constraints.txt.",
    ),
    KnownBad(
        name="vllm-from-pypi",
        found=_vllm_from_pypi,
        problem="This vLLM is the one from PyPI, which is built for CUDA; Python other than 3.12 gets it silently.",
        advice="Use an image, or Python 3.12 with the index wheels.vllm.ai/rocm.",
    ),
    KnownBad(
        name="rocm-version",
        found=_rocm_too_old,
        problem="vLLM's ROCm wheels since 0.14 are built for ROCm 7.",
        advice="Upgrade ROCm, or use an image whose ROCm fits the host's driver.",
    ),
)
