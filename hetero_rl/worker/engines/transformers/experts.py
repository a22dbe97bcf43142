"""Experts of a layer under both kinds of names: one tensor for all, or one for each as checkpoints have them.

checkpoint, vLLM, transformers 4                        module of transformers 5
mlp.experts.E.gate_proj.weight  [I, H] ─┐
mlp.experts.E.up_proj.weight    [I, H] ─┴─► mlp.experts.gate_up_proj  [experts, 2 I, H], gate above up
mlp.experts.E.down_proj.weight  [H, I] ───► mlp.experts.down_proj     [experts, H, I]
"""

import re
from collections.abc import Iterable, Iterator, Mapping

import torch

from hetero_rl.errors import InvalidMessageError

__all__ = ["ExpertJoiner"]

_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.weight")
_PLACES = {"gate_proj": ("gate_up_proj", 0), "up_proj": ("gate_up_proj", 1), "down_proj": ("down_proj", 0)}
_HALVES = {"gate_up_proj": 2, "down_proj": 1}


class ExpertJoiner:
    """Joins the experts of a layer for a model that keeps them in one tensor.

    Args:
        shapes: Shapes of the model's weights by name.
    """

    def __init__(self, shapes: Mapping[str, torch.Size]) -> None:
        self._shapes = shapes

    def joined(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors under the model's names; those it has under the same name pass as they are.

        Raises:
            InvalidMessageError: An expert is missing, unknown or given twice, or its shape is wrong.
        """
        gathered: dict[str, torch.Tensor] = {}
        missing: dict[str, set[tuple[int, int]]] = {}
        for name, tensor in tensors:
            place = None if name in self._shapes else self._place(name)
            if place is None:
                yield name, tensor
                continue
            fused, expert, half = place
            if fused not in gathered:
                gathered[fused] = torch.empty(self._shapes[fused], dtype=tensor.dtype)
                missing[fused] = {(e, h) for e in range(len(gathered[fused])) for h in range(_halves(fused))}
            _fill(gathered[fused], fused, (name, tensor), expert, half, missing[fused])
            if not missing[fused]:
                yield fused, gathered.pop(fused)
                # One expert more would begin a second tensor, which is refused as incomplete or as given twice.
                del missing[fused]
        for fused, left in missing.items():
            raise InvalidMessageError(
                f"{len(left)} parts of {fused!r} are missing, such as expert {min(left)[0]}; nothing was loaded"
            )

    def _place(self, name: str) -> tuple[str, int, int] | None:
        """Name of the joint tensor, expert and half of a single expert's weight; None for any other name."""
        found = _EXPERT.fullmatch(name)
        if found is None:
            return None
        joint, half = _PLACES[found[3]]
        fused = f"{found[1]}.{joint}"
        return (fused, int(found[2]), half) if fused in self._shapes else None


def _halves(fused: str) -> int:
    return _HALVES[fused.rpartition(".")[2]]


def _fill(
    target: torch.Tensor,
    fused: str,
    named: tuple[str, torch.Tensor],
    expert: int,
    half: int,
    missing: set[tuple[int, int]],
) -> None:
    name, tensor = named
    if (expert, half) not in missing:
        what = "is given twice" if expert < len(target) else f"is beyond the model's {len(target)} experts"
        raise InvalidMessageError(f"weight {name!r} {what}; nothing was loaded")
    rows = target.shape[1] // _halves(fused)
    part = target[expert, half * rows : (half + 1) * rows]
    if part.shape != tensor.shape:
        raise InvalidMessageError(
            f"weight {name!r} has shape {list(tensor.shape)}, the model needs {list(part.shape)}; nothing was loaded"
        )
    part.copy_(tensor)
    missing.discard((expert, half))
