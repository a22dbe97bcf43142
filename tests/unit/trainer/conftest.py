"""A tiny random model and groups written out by hand."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from hetero_rl.trainer.policy import Policy, load_policy
from hetero_rl.wire.columns import float32_column, int32_column
from hetero_rl.wire.messages import (
    FinishedGroup,
    FinishReason,
    PromptGroup,
    SamplingParameters,
    TrajectoryBatch,
    VersionSpan,
)

VOCABULARY = 12


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 of two layers with tied embeddings, as a directory."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    directory = tmp_path_factory.mktemp("model") / "tiny"
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.fixture
def policy(model_dir: Path) -> Policy:
    """A fresh copy of the tiny model on the CPU in float32."""
    return load_policy(model_dir, device=torch.device("cpu"), compute_dtype=torch.float32)


@pytest.fixture
def make_group() -> Callable[..., FinishedGroup]:
    """Builds a finished group of one batch from plain lists."""

    def make(
        ordinal: int,
        prompt: Sequence[int],
        completions: Sequence[Sequence[int]],
        *,
        log_probs: Sequence[Sequence[float]] | None = None,
        version: int = 1,
        spans: Sequence[VersionSpan] | None = None,
        version_steps: Mapping[int, int] | None = None,
        reasons: Sequence[FinishReason] | None = None,
        backend: str = "cpu",
    ) -> FinishedGroup:
        group_id = f"train-{ordinal:08d}"
        log_probs = log_probs or [[-1.0] * len(ids) for ids in completions]
        spans = spans or [VersionSpan(index, 0, len(ids), version) for index, ids in enumerate(completions)]
        batch = TrajectoryBatch(
            group_id=group_id,
            sample_indices=tuple(range(len(completions))),
            lengths=tuple(len(ids) for ids in completions),
            token_ids=int32_column(token for ids in completions for token in ids),
            log_probs=float32_column(value for values in log_probs for value in values),
            version_spans=tuple(spans),
            finish_reasons=tuple(reasons or [FinishReason.STOP] * len(completions)),
            numerics_id="0" * 16,
            generation_seconds=0.1,
        )
        return FinishedGroup(
            group=PromptGroup(
                group_id=group_id,
                ordinal=ordinal,
                prompt_token_ids=int32_column(prompt),
                group_size=len(completions),
                sampling=SamplingParameters(max_new_tokens=8, stop_token_ids=(0,)),
            ),
            batches=(batch,),
            version_steps=dict(version_steps or {version: 0}),
            worker_names=("worker-0",),
            backends=(backend,),
        )

    return make
