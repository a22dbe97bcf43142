"""Copies of the policy as it is served, and log-probabilities under them.

A snapshot holds the published numbers: every floating point tensor rounded to the serving type. `SnapshotScorer`
computes with exactly these numbers, raised to float32 (and lowered again to the compute type by autocast, as in
training), through a twin of the trained module. So what it gives differs from what a worker gives by arithmetic only,
and from the trainer's current policy by rounding and by the steps made since.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hetero_rl.trainer.adapters import served_name
from hetero_rl.trainer.layout import RowTokens
from hetero_rl.trainer.log_probs import row_log_probs
from hetero_rl.trainer.policy import Policy
from hetero_rl.trainer.sharding import served_tensors, whole
from hetero_rl.weights.adapter_rules import is_adapter_name
from hetero_rl.wire.messages import AdapterDescription

if TYPE_CHECKING:
    from hetero_rl.weights.difference import Difference

__all__ = ["Snapshot", "SnapshotScorer", "take_snapshot"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The policy after `step` optimizer steps, as served: every checkpoint name, on the CPU."""

    step: int
    tensors: Mapping[str, Tensor]
    """Tied names hold the same tensor."""
    difference: "Difference | None" = None
    """What `tensors` is when it is only what changed since the version stored last; of use until the next one is."""
    adapter: AdapterDescription | None = None
    """What the adapters among the tensors are; None: the tensors are the model's own."""


def take_snapshot(
    policy: Policy, step: int, serving_dtype: torch.dtype, before: Snapshot | None = None
) -> Snapshot:
    """Copies the policy, so that training may go on while the copy is published.

    Args:
        policy: The policy.
        step: Optimizer steps applied to it.
        serving_dtype: Type of floating point tensors.
        before: An earlier snapshot in the same type; the base of published adapters is taken from it and not copied again.
    """
    adapter = policy.adapters.description if policy.adapters is not None else None
    frozen = before is not None and adapter is not None
    if policy.sharded is not None:
        policy.sharded.ranks.command("snapshot", {"base": not frozen})
    tensors: dict[str, Tensor] = {}
    if before is not None and frozen:
        tensors = {name: tensor for name, tensor in before.tensors.items() if not is_adapter_name(name)}
    for named in served_tensors(policy, base=not frozen):
        dtype = serving_dtype if named.tensor.is_floating_point() else named.tensor.dtype
        copied = whole(named.tensor.detach()).to("cpu", dtype, copy=True).contiguous()
        tensors.update(dict.fromkeys((named.name, *named.tied_names), copied))
    return Snapshot(step, tensors, adapter=adapter)


class SnapshotScorer:
    """Computes under snapshots without touching the trained module. For one thread."""

    def __init__(self, policy: Policy) -> None:
        self._twin = policy.twin()

    def under(self, snapshot: Snapshot) -> Policy:
        """A policy that computes with the snapshot's numbers in place of the parameters."""
        parameters = {
            name: snapshot.tensors[served_name(name)].to(self._twin.device, torch.float32)
            for name in self._twin.named_parameters()
        }
        return dataclasses.replace(self._twin, overrides=parameters)

    def score(self, snapshot: Snapshot, sequences: Sequence[Sequence[int]]) -> list[float]:
        """Log-probability at temperature 1 of each token but the first of each sequence, one after another."""
        # The first token of a sequence has nothing before it: it is the prompt.
        rows = [RowTokens(ids[:1], (ids[1:],)) for ids in map(torch.tensor, sequences)]
        scored = row_log_probs(self.under(snapshot), rows)
        values: list[float] = scored.tolist()
        return values
