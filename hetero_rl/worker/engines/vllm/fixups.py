"""What vLLM's own layerwise reload leaves wrong on some platforms, put right after it. Imports nothing of vLLM.

| name            | where                        | what is wrong without it                                              |
| cpu-moe-repack  | CPU, unquantised experts     | the first load packs expert weights for its kernel, a reload does not:|
|                 | (0.32, 0.33)                 | plain weights are read as packed ones; log-probabilities are garbage  |
| cpu-head-repack | CPU, embedding used as head  | the head's kernel keeps a packed copy of the old weights               |
| ascend-nz-off   | Ascend                       | refused, not repaired: weights in the NZ layout cannot be replaced     |

Whether the experts need it is seen, not assumed: what the reload has packed itself is left alone, so a release that
mends it is not packed twice.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

__all__ = ["ReloadWatch", "check_platform", "watch_reload"]


def check_platform(device_type: str) -> None:
    """Raises RuntimeError when weights cannot be replaced in place on this platform as it is set up."""
    if device_type == "npu" and os.environ.get("VLLM_ASCEND_ENABLE_NZ") != "0":
        raise RuntimeError(
            "ascend-nz-off: weights in the NZ layout cannot be replaced in place; start the worker with "
            "VLLM_ASCEND_ENABLE_NZ=0"
        )


class ReloadWatch:
    """Sees which experts a reload packs, and does afterwards what it has left out.

    Args:
        model: The model inside vLLM's worker.
        device_type: "cpu", "cuda" or "npu".
    """

    def __init__(self, model: Any, device_type: str) -> None:
        self._model = model
        self._device_type = device_type
        self._packed: set[int] = set()

    def note(self, layer: Any) -> None:
        """Says that a layer's experts were packed."""
        self._packed.add(id(layer))

    def repair(self) -> list[str]:
        """Puts right what the reload has left; returns the names of the fix-ups that had something to do."""
        if self._device_type != "cpu":
            return []
        done = []
        experts = [layer for layer in self._model.modules() if _expert_kernel(layer) is not None]
        forgotten = [layer for layer in experts if id(layer) not in self._packed]
        for layer in forgotten:
            _expert_kernel(layer).process_weights_after_loading(layer)
        if forgotten:
            done.append("cpu-moe-repack")
        heads = [layer for layer in self._model.modules() if _is_packed_head(layer)]
        for layer in heads:
            layer.quant_method.process_weights_after_loading(layer)
        if heads:
            done.append("cpu-head-repack")
        return done


@contextmanager
def watch_reload(model: Any, device_type: str) -> Generator[ReloadWatch]:
    """Watches a reload of a model's weights."""
    watch = ReloadWatch(model, device_type)
    kernels = []
    for layer in model.modules():
        kernel = _expert_kernel(layer)
        if kernel is not None and "process_weights_after_loading" not in vars(kernel):
            kernel.process_weights_after_loading = _noting(watch, kernel.process_weights_after_loading)
            kernels.append(kernel)
    try:
        yield watch
    finally:
        for kernel in kernels:
            del kernel.process_weights_after_loading


def _noting(watch: ReloadWatch, original: Any) -> Any:
    def process(layer: Any) -> Any:
        watch.note(layer)
        return original(layer)

    return process


def _expert_kernel(layer: Any) -> Any:
    """What packs a layer's experts; None where nothing does."""
    kernel = getattr(getattr(layer, "quant_method", None), "moe_kernel", None)
    experts = getattr(kernel, "fused_experts", None)
    return experts if hasattr(experts, "process_weights_after_loading") else None


def _is_packed_head(layer: Any) -> bool:
    """Whether a layer is an embedding that also has a matrix product of its own over a packed copy."""
    method = getattr(layer, "quant_method", None)
    return (
        getattr(layer, "cpu_linear", None) is not None
        and hasattr(method, "embedding")
        and hasattr(method, "process_weights_after_loading")
    )
