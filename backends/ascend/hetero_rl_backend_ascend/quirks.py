"""Environment, determinism knobs and known defects of vLLM Ascend.

Read in the sources and documents of vllm-ascend 0.23.0, torch_npu and CANN 9; nothing here was run on an NPU.
"""

from collections.abc import Mapping

from hetero_rl.deploy.host import version_tuple
from hetero_rl.worker.backend import KnownBad, Profile, Quirk

__all__ = ["ENVIRONMENT", "KNOWN_BAD", "PROFILES", "QUIRKS", "SAMPLING"]

SAMPLING = (
    "vLLM Ascend ignores logprobs_mode: its sampler reports log-probabilities from before temperature, top_p and top_k, so "
    "with anything but temperature 1, top_p 1, top_k 0 they would not be those of the distribution sampled from"
)

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # The in-tree runner; the second one is opt-in on Ascend in 0.23.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    # Ray must not narrow down devices a second time.
    "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES": "1",
}

QUIRKS = (
    Quirk(
        name="nz-layout",
        symptom="Weights in FRACTAL_NZ layout: new weights are refused, and sleep mode cannot wake up.",
        fix="The layout is off, by the variable that the check reads and by the option that the loader reads.",
        applies_to="vllm-ascend 0.23",
        evidence="read in source: the update check reads the environment whatever additional_config says",
        environment={"VLLM_ASCEND_ENABLE_NZ": "0"},
        engine_options={"vllm": {"additional_config": {"weight_nz_mode": 0}}},
    ),
    Quirk(
        name="reduce-sample",
        symptom="enable_reduce_sample gives wrong log-probabilities without saying so.",
        fix="The option is off.",
        applies_to="vllm-ascend 0.23",
        evidence="documented",
        engine_options={"vllm": {"additional_config": {"enable_reduce_sample": False}}},
    ),
    Quirk(
        name="raw-log-probs",
        symptom="logprobs_mode is ignored: log-probabilities are those before temperature and truncation.",
        fix="Only temperature 1, top_p 1, top_k 0 is sampled; anything else is refused with this reason.",
        applies_to="vllm-ascend 0.23.0 to 0.26 release candidates",
        evidence="read in source: the sampler is built without the mode",
    ),
    Quirk(
        name="reload-on-the-runner",
        symptom="The worker has no reload_weights of its own; the call fails.",
        fix="The worker extension calls the model runner's reload_weights, which every version has.",
        applies_to="vllm-ascend 0.23",
        evidence="read in source",
    ),
    Quirk(
        name="capacity-drop",
        symptom="The fused expert kernel drops tokens above mega_moe_max_tokens.",
        fix="Not switched on here. Leave it off for a calibrated backend.",
        applies_to="vllm-ascend 0.23, mixture-of-experts models",
        evidence="read in source",
    ),
    Quirk(
        name="physical-experts",
        symptom="Routed experts come back as physical ids when the load balancer maps experts.",
        fix="Keep the balancer (EPLB) off when experts are recorded.",
        applies_to="vllm-ascend before 0.26",
        evidence="reported: vllm-ascend pull request 13882",
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
        description="Graph mode, the vendor's kernels as they come.",
        engine_options={"vllm": {"enforce_eager": False}},
    ),
    "reproducible": Profile(
        description=(
            "Batch-invariant operators and ordered reductions, eager mode: the same request gives the same numbers whatever "
            "runs beside it. Slower; Atlas A2 and A3 only."
        ),
        environment={
            "VLLM_BATCH_INVARIANT": "1",
            "HCCL_DETERMINISTIC": "true",
            "LCCL_DETERMINISTIC": "1",
            "ATB_MATMUL_SHUFFLE_K_ENABLE": "0",
            "ATB_LLM_LCOC_ENABLE": "0",
        },
        engine_options={"vllm": {"enforce_eager": True}},
    ),
}


def _torch_npu_without_cann(versions: Mapping[str, str]) -> bool:
    return "torch-npu" in versions and "cann" not in versions


def _torch_for_cuda(versions: Mapping[str, str]) -> bool:
    return "torch-npu" in versions and "+cu" in versions.get("torch", "")


def _torch_of_another_version(versions: Mapping[str, str]) -> bool:
    torch, npu = version_tuple(versions.get("torch", "")), version_tuple(versions.get("torch-npu", ""))
    return bool(torch and npu) and torch[:2] != npu[:2]


def _vllm_of_another_version(versions: Mapping[str, str]) -> bool:
    vllm, ascend = version_tuple(versions.get("vllm", "")), version_tuple(versions.get("vllm-ascend", ""))
    return bool(vllm and ascend) and vllm[:2] != ascend[:2]


def _python_too_new(versions: Mapping[str, str]) -> bool:
    return "vllm-ascend" in versions and version_tuple(versions["python"]) >= (3, 13)


def _cann_too_old(versions: Mapping[str, str]) -> bool:
    ascend, cann = version_tuple(versions.get("vllm-ascend", "")), version_tuple(versions.get("cann", ""))
    return bool(cann) and ascend[:2] >= (0, 23) and cann < (9,)


KNOWN_BAD = (
    KnownBad(
        name="torch-npu-without-cann",
        found=_torch_npu_without_cann,
        problem="torch_npu is installed, CANN is not: `import torch` fails in this environment.",
        advice="Uninstall torch_npu here, or install CANN and source its set_env.sh. TORCH_DEVICE_BACKEND_AUTOLOAD=0 lets "
        "torch be imported without the NPU.",
    ),
    KnownBad(
        name="torch-for-cuda",
        found=_torch_for_cuda,
        problem="torch_npu refuses a torch built for CUDA: two accelerators cannot be used in one process.",
        advice="Use the CPU build of torch that the image has. A CUDA trainer and an NPU worker need two environments.",
    ),
    KnownBad(
        name="torch-npu-version",
        found=_torch_of_another_version,
        problem="torch_npu X.Y works with torch X.Y only.",
        advice="Reinstall with --constraint backends/ascend/image-constraints.txt.",
    ),
    KnownBad(
        name="vllm-ascend-version",
        found=_vllm_of_another_version,
        problem="vllm-ascend X.Y works with vllm X.Y only.",
        advice="Reinstall with --constraint backends/ascend/image-constraints.txt.",
    ),
    KnownBad(
        name="python-version",
        found=_python_too_new,
        problem="vllm-ascend 0.23 runs on Python 3.10 to 3.12.",
        advice="Use the image's Python 3.12.",
    ),
    KnownBad(
        name="cann-version",
        found=_cann_too_old,
        problem="vllm-ascend 0.23 needs CANN 9.1.",
        advice="Use the image v0.23.0, which has CANN 9.1.0, with a driver that supports it.",
    ),
)
