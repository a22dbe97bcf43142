"""Parameters, gradients and optimizer state in equal parts on all ranks: torch's FSDP2.

Every decoder layer is a unit, and the rest of the forward pass (embedding, last norm, head) is another. A unit's parameters
are gathered before it computes, in the compute type, and its gradients are summed in float32 into the part that each rank
keeps. Master weights and optimizer state stay float32.

Whole tensors exist one at a time: for a snapshot, a checkpoint, or when a checkpoint is read, which is why a run can be
continued by another number of ranks.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hetero_rl.trainer.forward import PolicyForward
from hetero_rl.trainer.output_head import decoder_layers
from hetero_rl.trainer.policy import Policy
from hetero_rl.trainer.ranks import Ranks
from hetero_rl.weights.tensors import NamedTensor, distinct_tensors

__all__ = [
    "checkpoint_activations",
    "policy_tensors",
    "served_tensors",
    "shard_policy",
    "whole",
]


def shard_policy(policy: Policy, ranks: Ranks) -> Policy:
    """Shards the model of a policy in place; every rank holds the same weights before, and a part of them after.

    Args:
        policy: Loaded alike on every rank.
        ranks: This process among them.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    names = tuple(
        dataclasses.replace(named, tensor=named.tensor.detach().to("meta"))
        for named in distinct_tensors(policy.model.state_dict())
    )
    twin = policy.twin(device="meta") if ranks.rank == 0 else None
    mesh = init_device_mesh(ranks.device.type, (ranks.world,))
    lowered = policy.compute_dtype != torch.float32
    precision = MixedPrecisionPolicy(
        param_dtype=policy.compute_dtype if lowered else None, reduce_dtype=torch.float32
    )
    module = policy.forward_module()
    for layer in decoder_layers(policy.model):
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(module, mesh=mesh, mp_policy=precision)
    return dataclasses.replace(policy, sharded=Sharded(ranks, module, names, twin))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Sharded:
    """What is known of a policy whose parameters are in parts."""

    ranks: Ranks
    module: PolicyForward
    """The root of the sharded modules."""
    names: tuple[NamedTensor, ...]
    """The model's distinct tensors, without their numbers."""
    twin: Policy | None
    """Rank 0: a model of the same structure, unsharded and without numbers of its own."""


def checkpoint_activations(model: Any) -> None:
    """Makes every decoder layer keep its inputs only, and compute again in backward."""
    import functools

    from torch.utils.checkpoint import checkpoint

    for layer in decoder_layers(model):
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)


def policy_tensors(policy: Policy) -> Iterator[NamedTensor]:
    """The distinct tensors of a policy under their checkpoint names, sharded ones as they are, adapters merged.

    Where there are adapters, every rank of a sharded policy must go through all of them: merging takes all parts.
    """
    state = policy.model.state_dict()
    if policy.adapters is not None:
        yield from policy.adapters.merged(state)
        return
    if policy.sharded is None:
        yield from distinct_tensors(state)
        return
    for named in policy.sharded.names:
        yield dataclasses.replace(named, tensor=state[named.name])


def served_tensors(policy: Policy, *, base: bool = True) -> Iterator[NamedTensor]:
    """The tensors of a policy as versions hold them: those of `policy_tensors`, or a frozen base and adapters apart.

    Args:
        policy: The policy; every rank of a sharded one must go through all of them.
        base: Whether the tensors of a frozen base come, too.
    """
    adapters = policy.adapters
    if adapters is None or adapters.description is None:
        yield from policy_tensors(policy)
        return
    state = policy.model.state_dict()
    if base:
        yield from adapters.base(state)
    for name, tensor in adapters.tensors(state).items():
        yield NamedTensor(name, tensor, ())


def whole(tensor: Tensor) -> Tensor:
    """A tensor with all its numbers; of a sharded one a copy, which takes every rank's part."""
    gather = getattr(tensor, "full_tensor", None)
    result: Tensor = tensor if gather is None else gather()
    return result
