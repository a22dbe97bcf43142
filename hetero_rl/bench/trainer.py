"""`hetero-rl bench trainer`: one optimizer step, against TRL's GRPOTrainer on the same batch with the same loss.

A model of SmolLM2-135M's shapes with random weights in float32, one group of 8 completions of 32 to 256 tokens after a
prompt of 128, VESPO, two threads, wall time: forward, loss, backward, clipping and AdamW. TRL runs in a process of the peers'
environment (see `hetero_rl.bench.peers`). A round is one step of each: ours, ours with the prompt repeated for each completion, TRL's.
"""

import contextlib
import dataclasses
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from hetero_rl.bench.peers import PEERS_VARIABLE, Peer, peer_python, started
from hetero_rl.bench.schema import BenchReport, Figure
from hetero_rl.bench.timing import Ratio
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


@dataclasses.dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one step, or how many times as many."""

    wall: float
    cpu: float

    def over(self, other: "Times") -> "Times":
        """Ratio to another step."""
        return Times(self.wall / other.wall, self.cpu / other.cpu)


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
            with contextlib.ExitStack() as stack:
                peer = _peer(shapes, batch, directory, stack)
                figures = _figures(shapes, _learner(policy), batch, peer)
    finally:
        torch.set_num_threads(threads)
    return BenchReport(bench="trainer", figures=tuple(figures))


def _learner(policy: Policy) -> Learner:
    return Learner(
        policy,
        make_estimator("vespo", {}),
        # The weights stay where they are for as long as it is measured, so that every step is the same.
        OptimizerConfig(learning_rate=1e-12),
        tokens_per_micro_batch=4096,
    )


def _step(learner: Learner, batch: TrainingBatch) -> tuple[float, float, int]:
    group = len(batch.sample_indices)
    recorded = record(batch, group_size=group, max_new_tokens=int(batch.lengths.max()))
    result = learner.step(batch, recorded)
    return result.loss, result.gradient_norm, result.padded_tokens


def _peer(shapes: Shapes, batch: TrainingBatch, directory: Path, stack: contextlib.ExitStack) -> Peer | None:
    """TRL with the same model and batch; None, with a warning, without the peers' environment."""
    python = peer_python()
    if python is None:
        _LOG.warning(
            "no peers' environment: `make test-parity` sets one up, or name its interpreter in %s; TRL is left out",
            PEERS_VARIABLE,
        )
        return None
    from safetensors.torch import save_file

    recorded = record(batch, group_size=len(shapes.lengths), max_new_tokens=max(shapes.lengths))
    save_file(
        {
            "prompt_ids": batch.prompt_ids,
            "token_ids": batch.token_ids,
            "lengths": batch.lengths,
            "behavior_log_probs": batch.behavior_log_probs,
            "advantages": make_estimator("vespo", {}).prepare(recorded).advantages,
        },
        directory / "batch.safetensors",
    )
    return stack.enter_context(started(python, "hetero_rl.bench.peer_trl", str(directory)))


def _figures(shapes: Shapes, learner: Learner, batch: TrainingBatch, peer: Peer | None) -> list[Figure]:
    """Rounds of a step that shares the prompt, one that repeats it, and one of TRL; each step is in both comparisons."""
    theirs = None if peer is None else peer.ask(do="step")
    ours = _step(learner, batch)
    sharing, against = [], []
    for number in range(PAIRS):
        own: dict[str, Times] = {}
        # Who comes first changes, so that what slows the machine down for a while does not always hit the same one.
        order = ("shared", "apart", "trl") if number % 2 else ("trl", "apart", "shared")
        for name in order:
            if name == "trl":
                if peer is not None:
                    answer = peer.ask(do="step")
                    own[name] = Times(answer["seconds"], answer["cpu_seconds"])
                continue
            learner.share_prompts = name == "shared"
            own[name] = _measured(lambda: _step(learner, batch))
        sharing.append(own["apart"].wall / own["shared"].wall / shapes.sharing_bound)
        if peer is not None:
            against.append(own["trl"].over(own["shared"]))
    learner.share_prompts = True
    computed = ours[2] / shapes.useful_tokens
    figures = [
        _ratio(sharing).figure("shared_prompt_over_bound", _SHARED, target=0.8),
        Figure(
            name="packed_over_useful",
            value=computed,
            unit="ratio",
            low=computed,
            high=computed,
            target=1.05,
            relation="<=",
            baseline="tokens that the trunk computes over tokens of the prompt, once, and of all completions",
        ),
    ]
    return figures if theirs is None else [*_against_trl(theirs, ours, against), *figures]


def _against_trl(
    theirs: dict[str, float], ours: tuple[float, float, int], ratios: Sequence[Times]
) -> list[Figure]:
    worst = max(
        abs(theirs[name] - value) / abs(value)
        for name, value in zip(("loss", "gradient_norm"), ours[:2], strict=True)
    )
    return [
        _ratio([ratio.wall for ratio in ratios]).figure("step_over_trl", _TRL, target=1.5),
        _ratio([ratio.cpu for ratio in ratios]).figure("step_cpu_over_trl", f"{_TRL}; but CPU time"),
        Figure(
            name="loss_and_gradient_norm_difference",
            value=worst,
            unit="ratio",
            low=worst,
            high=worst,
            baseline=f"relative; {_TRL}",
        ),
    ]


def _ratio(values: Sequence[float]) -> Ratio:
    return Ratio(statistics.median(values), min(values), max(values))


def _measured(work: Callable[[], object]) -> Times:
    begun, computed = time.perf_counter(), time.process_time()
    work()
    return Times(time.perf_counter() - begun, time.process_time() - computed)
