"""The peer of `hetero-rl bench logprobs`: Liger's chunked GRPO loss with VESPO's weights, eager, on the same tensors.

Runs in the peers' environment; imports nothing of this package but the measuring of memory.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch

from hetero_rl.bench.memory import can_measure, peak_growth
from hetero_rl.bench.peers import serve

__all__ = ["main"]


def main(directory: Path) -> None:
    """Loads the problem and answers `run` and `peak`."""
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss
    from safetensors.torch import load_file

    torch.set_num_threads(1)
    columns = load_file(directory / "problem.safetensors")
    sequences = columns["advantages"].shape[0]
    token_ids = columns["token_ids"].view(sequences, -1)
    behavior = columns["behavior_log_probs"].view(sequences, -1)
    loss_function = LigerFusedLinearGRPOLoss(
        beta=0.0, loss_type="vespo", use_ref_model=False, compiled=False, chunk_size=1
    )

    def work() -> tuple[float, torch.Tensor, torch.Tensor]:
        hidden = columns["hidden"].detach().requires_grad_()
        weight = columns["weight"].detach().requires_grad_()
        hidden.grad = weight.grad = None
        loss, _ = loss_function(
            hidden.view(sequences, -1, hidden.shape[-1]),
            weight,
            token_ids,
            torch.ones_like(token_ids),
            columns["advantages"],
            old_per_token_logps=behavior,
        )
        loss.backward()
        if hidden.grad is None or weight.grad is None:
            raise RuntimeError("the loss left no gradients")
        return loss.item(), hidden.grad, weight.grad

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        if question["do"] == "peak":
            return {"bytes": peak_growth(work) if can_measure() else 0}
        started = time.process_time()
        loss, hidden, weight = work()
        seconds = time.process_time() - started
        return {"seconds": seconds, "loss": loss, "norms": [hidden.norm().item(), weight.norm().item()]}

    serve(answer)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
