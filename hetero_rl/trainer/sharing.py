"""Finds out whether a model computes the completions of a prompt side by side as it computes them one by one."""

import dataclasses
import logging

import torch

from hetero_rl.trainer.log_probs import RowTokens, row_log_probs
from hetero_rl.trainer.policy import Policy

__all__ = ["SHARED_ROW_TOKENS", "can_share_prompts"]

SHARED_ROW_TOKENS = 1024
"""Longest shared row: attention over it costs the square of its length, which must stay small beside the rest."""
TOLERANCE = 1e-3
"""Largest difference in float32 that counts as equal."""
_LOG = logging.getLogger(__name__)


def can_share_prompts(policy: Policy) -> bool:
    """Tries both layouts on a few fixed tokens.

    Models that mix tokens other than by attention, ignore position ids or read a mask in their own way give other
    numbers. A sliding window is refused unseen, because a few tokens fit into any window.
    """
    if _has_sliding_window(policy):
        return False
    exact = dataclasses.replace(policy, compute_dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(policy.vocabulary_size, (13,), generator=generator)
    prompt, completions = ids[:5], ids[5:].split((3, 1, 4))  # type: ignore[no-untyped-call]  # untyped in torch
    try:
        with torch.no_grad():
            shared = row_log_probs(exact, [RowTokens(prompt, completions)])
            alone = row_log_probs(exact, [RowTokens(prompt, (completion,)) for completion in completions])
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        _LOG.info("this model takes no mask of its own (%s); prompts are computed for each completion", error)
        return False
    return bool((shared - alone).abs().max() < TOLERANCE)


def _has_sliding_window(policy: Policy) -> bool:
    config = policy.model.config
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return any(kind != "full_attention" for kind in kinds)
    return getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
