"""The peer of `hetero-rl bench trainer`: the step of TRL's GRPOTrainer on the batch it is given.

Runs in the peers' environment. Everything before the loss (generation, rewards) is left out; the loss, its normaliser and
whatever the trainer computes beside it are TRL's own.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch

from hetero_rl.bench.peers import serve

__all__ = ["main"]


def main(directory: Path) -> None:
    """Loads model and batch and answers `step`."""
    from safetensors.torch import load_file

    torch.set_num_threads(2)
    trainer = _trainer(directory)
    model = trainer.model
    model.train()  # as in training; the model has no dropout
    inputs = _inputs(load_file(directory / "batch.safetensors"))
    # Fused, as the trainer's default `optim` is.
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-12, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    trainer.current_gradient_accumulation_steps = 1

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        del question
        started, computed = time.perf_counter(), time.process_time()
        optimizer.zero_grad(set_to_none=True)
        loss = trainer._compute_loss(model, inputs)  # ruff: ignore[private-member-access] - the step without the data loading around it
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds = time.perf_counter() - started
        cpu = time.process_time() - computed
        return {"seconds": seconds, "cpu_seconds": cpu, "loss": loss.item(), "gradient_norm": norm.item()}

    serve(answer)


def _trainer(directory: Path) -> Any:
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    words = Tokenizer(WordLevel({"<p>": 0, "<s>": 1, "<e>": 2}, unk_token="<p>"))  # ruff: ignore[hardcoded-password-func-arg] - a token of text
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<p>", eos_token="<e>")  # ruff: ignore[hardcoded-password-func-arg] - the same
    model = AutoModelForCausalLM.from_pretrained(
        directory / "model", dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
    )
    settings = GRPOConfig(
        output_dir=str(directory / "trl"),
        loss_type="vespo",
        beta=0.0,
        per_device_train_batch_size=8,
        num_generations=8,
        bf16=False,
        report_to=[],
        use_cpu=True,
    )
    return GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0 for _ in completions],
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": "a"}] * 8),
        processing_class=tokenizer,
    )


def _inputs(columns: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The batch as TRL holds it: prompts repeated, completions padded on the right."""
    lengths = columns["lengths"].tolist()

    def padded(column: torch.Tensor) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(list(torch.split(column, lengths)), batch_first=True)

    prompts = columns["prompt_ids"].repeat(len(lengths), 1)
    return {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": padded(columns["token_ids"]),
        "completion_mask": padded(torch.ones_like(columns["token_ids"])),
        "advantages": columns["advantages"],
        "old_per_token_logps": padded(columns["behavior_log_probs"]),
        "num_items_in_batch": torch.tensor(sum(lengths)),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
