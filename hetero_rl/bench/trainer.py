"""`hetero-rl bench trainer`: one optimizer step, against TRL's GRPOTrainer on the same batch with the same loss.

A model of SmolLM2-135M's shapes with random weights in float32, one group of 8 completions of 32 to 256 tokens after a
prompt of 128, VESPO, two threads, wall time: forward, loss, backward, clipping and AdamW. TRL runs in a process of the peers'
environment (see `hetero_rl.bench.peers`), the steps of both in turns.
"""

import dataclasses
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from hetero_rl.bench.peers import PEERS_VARIABLE, peer_python, started
from hetero_rl.bench.schema import BenchReport, Figure
from hetero_rl.bench.timing import Ratio, compare
from hetero_rl.config.tree import OptimizerConfig
from hetero_rl.estimators import make_estimator
from hetero_rl.trainer.batch import TrainingBatch
from hetero_rl.trainer.policy import Policy, load_policy
from hetero_rl.trainer.step import Learner, action_log_probs, record

__all__ = ["Shapes", "make_batch", "run", "save_model"]

_LOG = logging.getLogger(__name__)
_TRL = "trl 1.16.0's GRPOTrainer, loss_type='vespo': _compute_loss, backward, clip, AdamW on the same batch, wall time"
_SHARED = "packed rows that repeat the prompt for each completion, over G (P + R) / (P + G R); wall time"
PAIRS = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Shapes:
    """Sizes of model and batch."""

    hidden: int = 576
    intermediate: int = 1536
    layers: int = 30
    heads: int = 9
    key_value_heads: int = 3
    vocabulary: int = 49_152
    prompt: int = 128
    lengths: tuple[int, ...] = (248, 130, 226, 139, 42, 98, 162, 256)

    @property
    def useful_tokens(self) -> int:
        """The prompt once, and every completion."""
        return self.prompt + sum(self.lengths)

    @property
    def sharing_bound(self) -> float:
        """G (P + R) / (P + G R)."""
        return (len(self.lengths) * self.prompt + sum(self.lengths)) / self.useful_tokens


QUICK = Shapes(64, 128, 2, 4, 2, 512, 16, (8, 30, 12, 20))


def save_model(shapes: Shapes, directory: Path) -> None:
    """Writes a random model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shapes.vocabulary,
        hidden_size=shapes.hidden,
        intermediate_size=shapes.intermediate,
        num_hidden_layers=shapes.layers,
        num_attention_heads=shapes.heads,
        num_key_value_heads=shapes.key_value_heads,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(directory)


def make_batch(shapes: Shapes, policy: Policy | None) -> TrainingBatch:
    """One group; behavior log-probabilities are those of the policy with noise of 0.01 per token."""
    generator = torch.Generator().manual_seed(1)
    group, tokens = len(shapes.lengths), sum(shapes.lengths)
    batch = TrainingBatch(
        step=1,
        group_ids=("train-00000000",),
        prompt_ids=torch.randint(3, shapes.vocabulary, (shapes.prompt,), generator=generator),
        prompt_lengths=torch.tensor([shapes.prompt]),
        group_of_sequence=torch.zeros(group, dtype=torch.int64),
        sample_indices=tuple(range(group)),
        lengths=torch.tensor(shapes.lengths),
        token_ids=torch.randint(3, shapes.vocabulary, (tokens,), generator=generator),
        behavior_log_probs=torch.full((tokens,), -1.0),
        action_mask=torch.ones(tokens, dtype=torch.bool),
        token_versions=torch.ones(tokens, dtype=torch.int64),
        token_lags=torch.zeros(tokens, dtype=torch.int64),
        lags=torch.zeros(group, dtype=torch.int64),
        rewards=torch.rand(group, generator=generator),
        backends=("cpu",) * group,
    )
    if policy is None:
        return batch
    own = action_log_probs(policy, batch, (tuple(range(group)),), 1.0)
    noise = 0.01 * torch.randn(tokens, generator=generator)
    return dataclasses.replace(batch, behavior_log_probs=own + noise)


def run(*, quick: bool = False) -> BenchReport:
    """Measures; without the peers' environment the figures against TRL are left out.

    Args:
        quick: A small model; the figures prove nothing.
    """
    shapes = QUICK if quick else Shapes()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            save_model(shapes, directory / "model")
            policy = load_policy(directory / "model", device=torch.device("cpu"), compute_dtype=torch.float32)
            batch = make_batch(shapes, policy)
            figures = [
                *_against_trl(shapes, policy, batch, directory),
                *_sharing(shapes, policy, batch),
            ]
    finally:
        torch.set_num_threads(threads)
    return BenchReport(bench="trainer", figures=tuple(figures))


def _learner(policy: Policy, *, share: bool = True) -> Learner:
    return Learner(
        policy,
        make_estimator("vespo", {}),
        # The weights stay where they are for as long as it is measured, so that every step is the same.
        OptimizerConfig(learning_rate=1e-12),
        tokens_per_micro_batch=4096,
        share_prompts=share,
    )


def _step(learner: Learner, batch: TrainingBatch) -> tuple[float, float, int]:
    group = len(batch.sample_indices)
    recorded = record(batch, group_size=group, max_new_tokens=int(batch.lengths.max()))
    result = learner.step(batch, recorded)
    return result.loss, result.gradient_norm, result.padded_tokens


def _sharing(shapes: Shapes, policy: Policy, batch: TrainingBatch) -> list[Figure]:
    shared, apart = _learner(policy), _learner(policy, share=False)
    computed = _step(shared, batch)[2] / shapes.useful_tokens
    ratio = compare(lambda: _step(shared, batch), lambda: _step(apart, batch), pairs=PAIRS)
    over = Ratio(*(number / shapes.sharing_bound for number in (ratio.value, ratio.low, ratio.high)))
    useful = "tokens that the trunk computes over tokens of the prompt, once, and of all completions"
    return [
        over.figure("shared_prompt_over_bound", _SHARED, target=0.8),
        Figure(
            name="packed_over_useful",
            value=computed,
            unit="ratio",
            low=computed,
            high=computed,
            target=1.05,
            relation="<=",
            baseline=useful,
        ),
    ]


def _against_trl(shapes: Shapes, policy: Policy, batch: TrainingBatch, directory: Path) -> Sequence[Figure]:
    python = peer_python()
    if python is None:
        _LOG.warning(
            "no peers' environment: `make test-parity` sets one up, or name its interpreter in %s; TRL is left out",
            PEERS_VARIABLE,
        )
        return []
    from safetensors.torch import save_file

    learner = _learner(policy)
    recorded = record(batch, group_size=len(shapes.lengths), max_new_tokens=max(shapes.lengths))
    advantages = make_estimator("vespo", {}).prepare(recorded).advantages
    save_file(
        {
            "prompt_ids": batch.prompt_ids,
            "token_ids": batch.token_ids,
            "lengths": batch.lengths,
            "behavior_log_probs": batch.behavior_log_probs,
            "advantages": advantages,
        },
        directory / "batch.safetensors",
    )
    with started(python, "hetero_rl.bench.peer_trl", str(directory)) as peer:
        theirs, ours = peer.ask(do="step"), _step(learner, batch)
        ratios = []
        for number in range(PAIRS):
            own = _seconds(lambda: _step(learner, batch)) if number % 2 else 0.0
            other = peer.ask(do="step")["seconds"]
            ratios.append(other / (own or _seconds(lambda: _step(learner, batch))))
    worst = max(
        abs(theirs[name] - value) / abs(value)
        for name, value in zip(("loss", "gradient_norm"), ours[:2], strict=True)
    )
    ratio = Ratio(statistics.median(ratios), min(ratios), max(ratios))
    return [
        ratio.figure("step_over_trl", _TRL, target=1.5),
        Figure(
            name="loss_and_gradient_norm_difference",
            value=worst,
            unit="ratio",
            low=worst,
            high=worst,
            baseline=f"relative; {_TRL}",
        ),
    ]


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
