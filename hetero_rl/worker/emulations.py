"""Numerics of chips that are not here, as far as their makers publish data types: for trying a mixed fleet on one machine.

The transformers engine imitates which numbers a chip can represent, never its kernels: the order of additions, fused
operators and the accumulator stay this machine's. So an emulated worker shows how a difference in data type acts on a run;
how far the chip itself is from the trainer, only the chip can tell. Everything it reports says that it is emulated.
"""

import dataclasses

from hetero_rl.errors import ConfigError

__all__ = ["EMULATIONS", "Emulation", "find_emulation", "labelled_backend"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """What is imitated."""

    name: str
    description: str
    source: str
    """Where the behaviour is published."""
    dtype: str = ""
    """Data type of weights and activations; empty keeps the worker's own."""
    saturate: bool = False
    """Whether overflow ends at the largest number, and what is no number becomes 0, instead of Inf and NaN."""
    weight_bits: int = 0
    """Bits of a signed integer that weights are rounded to, one scale for each output row; 0 leaves them."""
    mantissa_bits: int = 0
    """Bits of mantissa that operands of linear layers are rounded to; 0 leaves them."""


EMULATIONS = {
    emulation.name: emulation
    for emulation in (
        Emulation(
            name="fp16",
            description="IEEE half precision for weights and activations.",
            source="IEEE 754-2019, binary16",
            dtype="float16",
        ),
        Emulation(
            name="bf16",
            description="bfloat16 for weights and activations.",
            source="the upper half of IEEE 754-2019 binary32",
            dtype="bfloat16",
        ),
        Emulation(
            name="tf32",
            description="TensorFloat-32: operands of linear layers with 10 bits of mantissa, sums in float32.",
            source="NVIDIA A100 Tensor Core GPU Architecture, 2020",
            dtype="float32",
            mantissa_bits=10,
        ),
        Emulation(
            name="int8-weights",
            description="Weights of all layers but embedding and head as 8-bit integers, one scale for each output row.",
            source="weight-only quantisation as inference engines offer it (W8A16)",
            weight_bits=8,
        ),
        Emulation(
            name="ascend-910a",
            description="Half precision without Inf and NaN: overflow saturates. This chip has no bfloat16.",
            source="CANN documentation, INF_NAN_MODE_ENABLE: Atlas training series support the saturation mode only",
            dtype="float16",
            saturate=True,
        ),
    )
}
"""What `inference.worker.emulate` may name."""


def find_emulation(name: str) -> Emulation:
    """The emulation of that name; raises ConfigError naming those there are."""
    if name not in EMULATIONS:
        raise ConfigError(
            f"inference.worker.emulate = {name!r}: is unknown; there are: {', '.join(sorted(EMULATIONS))}"
        )
    return EMULATIONS[name]


def labelled_backend(backend: str, emulate: str | None) -> str:
    """The backend's name as the hub, metrics and reports see it: an emulated one never goes by the plain name."""
    return f"{backend}-emulating-{emulate}" if emulate else backend
