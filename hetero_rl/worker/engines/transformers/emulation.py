"""Makes a model compute with the numbers that another chip has (`hetero_rl.worker.emulations`)."""

from typing import Any

import torch

from hetero_rl.worker.emulations import Emulation

__all__ = ["emulate_activations", "round_mantissa", "round_weights", "saturated"]

_FLOAT32_MANTISSA = 23


def saturated(values: torch.Tensor) -> torch.Tensor:
    """Overflow as the largest number of the data type, NaN as 0."""
    largest = torch.finfo(values.dtype).max
    return values.nan_to_num(nan=0.0, posinf=largest, neginf=-largest)


def round_mantissa(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Rounds float32 to that many bits of mantissa, ties to even; Inf and NaN stay."""
    dropped = _FLOAT32_MANTISSA - bits
    pattern = values.contiguous().view(torch.int32)
    half = (1 << (dropped - 1)) - 1
    odd = (pattern >> dropped) & 1
    rounded = ((pattern + half + odd) >> dropped) << dropped
    return torch.where(values.isfinite(), rounded.view(torch.float32), values)


@torch.no_grad()
def round_weights(model: torch.nn.Module, emulation: Emulation) -> None:
    """Rounds the weights of all layers but embedding and head in place; to be called after every load."""
    if not (emulation.weight_bits or emulation.mantissa_bits):
        return
    for weight in _layer_weights(model):
        if emulation.weight_bits:
            weight.copy_(_as_integers(weight, emulation.weight_bits))
        if emulation.mantissa_bits:
            weight.copy_(round_mantissa(weight, emulation.mantissa_bits))


def _layer_weights(model: Any) -> list[torch.Tensor]:
    """Matrices, experts included; input index last. Embedding and head, often one tensor, are left out."""
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    outside = {module.weight.data_ptr() for module in ends if module is not None}
    return [
        parameter
        for parameter in model.parameters()
        if parameter.ndim > 1 and parameter.data_ptr() not in outside
    ]


def _as_integers(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """Nearest multiples of a row's scale, which maps its largest magnitude to the largest integer."""
    largest = 2 ** (bits - 1) - 1
    scale = weight.float().abs().amax(dim=-1, keepdim=True) / largest
    steps = (weight.float() / scale.clamp(min=torch.finfo(torch.float32).tiny)).round()
    rounded: torch.Tensor = steps * scale
    return rounded


def emulate_activations(model: torch.nn.Module, emulation: Emulation) -> None:
    """Makes every layer of a model round or saturate what goes in and comes out; once for a model."""
    for module in model.modules():
        if emulation.saturate and not any(True for _ in module.children()):
            module.register_forward_pre_hook(_saturate_inputs)
            module.register_forward_hook(_saturate_output)
        if emulation.mantissa_bits and isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(_rounding(emulation.mantissa_bits))


def _saturate_inputs(_: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(saturated(value) if _is_floating(value) else value for value in inputs)


def _saturate_output(_: torch.nn.Module, __: tuple[Any, ...], output: Any) -> Any:
    return saturated(output) if _is_floating(output) else output


def _rounding(bits: int) -> Any:
    def round_inputs(_: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            round_mantissa(value, bits) if _is_floating(value) and value.dtype == torch.float32 else value
            for value in inputs
        )

    return round_inputs


def _is_floating(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
