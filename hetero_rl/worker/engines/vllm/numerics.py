"""What the numbers of vLLM depend on, as its own worker process reports it."""

from collections.abc import Mapping

from hetero_rl.wire.messages import NumericsRecord
from hetero_rl.worker.processor import cpu_name

__all__ = ["numerics_record"]

_NOT_KNOBS = frozenset({"torch", "device_type", "hip", "cuda", "attention", "device_name", "process"})


def numerics_record(
    facts: Mapping[str, str],
    *,
    version: str,
    dtype: str,
    mode: str,
    knobs: Mapping[str, str],
) -> NumericsRecord:
    """Describes the numerics of an engine.

    Args:
        facts: `WeightExtension.hetero_rl_facts` of one worker.
        version: Of vLLM.
        dtype: Data type of weights and activations.
        mode: "raw" or "processed", as measured.
        knobs: What the engine was started with.
    """
    vendor, name, runtime = _device(facts)
    own = {key: value for key, value in facts.items() if key not in _NOT_KNOBS}
    return NumericsRecord(
        engine="vllm",
        engine_version=version,
        torch_version=facts["torch"],
        device_vendor=vendor,
        device_name=name,
        driver_version="",
        runtime_version=runtime,
        data_type=dtype,
        attention_backend=facts["attention"],
        log_probs_mode=mode,
        knobs={**own, **knobs},
    )


def _device(facts: Mapping[str, str]) -> tuple[str, str, str]:
    """Vendor, device name and runtime version."""
    match facts["device_type"]:
        case "cpu":
            return "cpu", cpu_name(), ""
        case "npu":
            return "ascend", facts["device_name"], ""
        case "cuda" if facts["hip"]:
            return "amd", facts["device_name"], facts["hip"]
        case "cuda":
            return "nvidia", facts["device_name"], facts["cuda"]
        case other:
            return other, facts["device_name"], ""
