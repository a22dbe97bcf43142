"""`hetero-rl bench logprobs`: log-probabilities and a sequence-level loss at the output head, forward and backward.

VESPO over 2,048 tokens of 8 sequences, hidden width 512, vocabulary 65,536, float32, one thread: from hidden states to the
gradients of hidden states and head. Compared with

- naive: logits, `log_softmax`, gather, and the same coefficients, differentiated by autograd;
- Liger's chunked loss, eager, in the peers' environment (see `hetero_rl.bench.peers`), with the same numbers.

The same tokens as one sequence of 2,048, which no chunk holds, show what a coefficient that is known only at the end of
a long sequence costs.
"""

import dataclasses
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from hetero_rl.bench.memory import can_measure, peak_growth
from hetero_rl.bench.peers import PEERS_VARIABLE, Peer, peer_python, started
from hetero_rl.bench.schema import BenchReport, Figure
from hetero_rl.bench.timing import Ratio, compare
from hetero_rl.estimators import PreparedBatch, RecordedBatch, make_estimator, surrogate_loss, token_weights
from hetero_rl.trainer.head_chunks import HeadProjection
from hetero_rl.trainer.head_loss import HeadTargets, head_loss
from hetero_rl.trainer.output_head import OutputHead

__all__ = ["Problem", "chunked", "make_problem", "naive", "run"]

_LOG = logging.getLogger(__name__)
_NAIVE = "logits, log_softmax, gather, autograd; the same loss, float32, one thread, CPU time"
_LIGER = "liger-kernel's chunked GRPO loss with loss_type='vespo', eager, in a process of its own, CPU time of one thread"
_PEAK = "largest growth of resident memory, gradients included; compared with "
PAIRS = 5


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Hidden states, a head and recorded tokens."""

    hidden: Tensor
    """[N, D]."""
    weight: Tensor
    """[V, D]."""
    token_ids: Tensor
    """[N]."""
    prepared: PreparedBatch

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sequence."""
        return tuple(self.prepared.recorded.lengths.tolist())


def make_problem(sequences: int, tokens: int, width: int, vocabulary: int, *, seed: int = 0) -> Problem:
    """Random numbers; behavior log-probabilities are those of the policy with noise of 0.01 per token."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, width, generator=generator)
    weight = torch.randn(vocabulary, width, generator=generator) * width**-0.5
    token_ids = torch.randint(vocabulary, (tokens,), generator=generator)
    own = torch.cat(
        [
            (part @ weight.T).log_softmax(-1).gather(-1, ids[:, None])[:, 0]
            for part, ids in zip(torch.split(hidden, 64), torch.split(token_ids, 64), strict=True)
        ]
    )
    recorded = RecordedBatch(
        behavior_log_probs=own + 0.01 * torch.randn(tokens, generator=generator),
        lengths=torch.full((sequences,), tokens // sequences),
        group_ids=torch.zeros(sequences, dtype=torch.int64),
        rewards=torch.rand(sequences, generator=generator),
    )
    # Rewards as advantages: centred ones would make the loss a difference of large numbers.
    estimator = make_estimator("vespo", {"advantage": "none"})
    return Problem(hidden, weight, token_ids, estimator.prepare(recorded))


def naive(problem: Problem) -> tuple[float, Tensor, Tensor]:
    """Loss, and gradients of hidden states and head, through logits."""
    estimator = make_estimator("vespo", {"advantage": "none"})
    hidden, weight = _leaves(problem)
    log_probs = (hidden @ weight.T).log_softmax(-1).gather(-1, problem.token_ids[:, None])[:, 0]
    coefficients = estimator.coefficients(problem.prepared, log_probs)
    loss = surrogate_loss(problem.prepared, coefficients, log_probs)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves backward untyped
    return loss.item(), _gradient(hidden), _gradient(weight)


def chunked(problem: Problem) -> tuple[float, Tensor, Tensor]:
    """The same without logits."""
    estimator = make_estimator("vespo", {"advantage": "none"})
    hidden, weight = _leaves(problem)

    def weigh(first: int, after: int, log_probs: Tensor) -> Tensor:
        part = problem.prepared.select(range(first, after))
        return token_weights(part, estimator.coefficients(part, log_probs))

    projection = HeadProjection(OutputHead(), weight, None, dtype=torch.float32, temperature=1.0)
    targets = HeadTargets(torch.arange(hidden.shape[0]), problem.token_ids, problem.lengths)
    loss, _ = head_loss(projection, hidden, weight, None, targets, weigh)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves backward untyped
    return loss.item(), _gradient(hidden), _gradient(weight)


def run(*, quick: bool = False) -> BenchReport:
    """Measures; without the peers' environment the figures against Liger are left out.

    Args:
        quick: A small problem; the figures prove nothing.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    sizes = (256, 64, 4096) if quick else (2048, 512, 65_536)
    try:
        problem, long = make_problem(8, *sizes), make_problem(1, *sizes)
        figures = [
            *_against_naive(problem, ""),
            *_against_naive(long, "_one_sequence"),
            *_against_liger(problem),
        ]
    finally:
        torch.set_num_threads(threads)
    return BenchReport(bench="logprobs", figures=tuple(figures))


def _against_naive(problem: Problem, suffix: str) -> list[Figure]:
    ours, theirs = chunked(problem), naive(problem)
    figures = [_difference(f"loss_and_gradient_difference{suffix}", ours, theirs)]
    del ours, theirs
    # `compare` divides the baseline's time by the candidate's; here the chunked loss is what is divided.
    ratio = compare(lambda: naive(problem), lambda: chunked(problem), pairs=PAIRS, clock=time.process_time)
    figures.append(ratio.figure(f"loss_time_over_naive{suffix}", _NAIVE, target=1.1, relation="<="))
    if can_measure():
        own, other = (_peak(work, problem) for work in (chunked, naive))
        figures.append(_single(f"loss_memory_over_naive{suffix}", own / other, _PEAK + _NAIVE, 0.2))
    return figures


def _against_liger(problem: Problem) -> list[Figure]:
    python = peer_python()
    if python is None:
        _LOG.warning(
            "no peers' environment: `make test-parity` sets one up, or name its interpreter in %s; Liger is left out",
            PEERS_VARIABLE,
        )
        return []
    from safetensors.torch import save_file

    recorded = problem.prepared.recorded
    columns = {
        "hidden": problem.hidden,
        "weight": problem.weight,
        "token_ids": problem.token_ids,
        "behavior_log_probs": recorded.behavior_log_probs,
        "advantages": problem.prepared.advantages,
    }
    with tempfile.TemporaryDirectory() as directory:
        save_file(columns, Path(directory) / "problem.safetensors")
        with started(python, "hetero_rl.bench.peer_liger", directory) as peer:
            return _interleaved(problem, peer)


def _interleaved(problem: Problem, peer: Peer) -> list[Figure]:
    loss, hidden, weight = chunked(problem)
    answer = peer.ask(do="run")
    pairs = zip(
        (answer["loss"], *answer["norms"]), (loss, hidden.norm().item(), weight.norm().item()), strict=True
    )
    worst = max(abs(theirs - ours) / abs(ours) for theirs, ours in pairs)
    del hidden, weight
    ratios = []
    for number in range(PAIRS):
        own = _cpu_seconds(problem) if number % 2 else 0.0
        other = peer.ask(do="run")["seconds"]
        ratios.append((own or _cpu_seconds(problem)) / other)
    ratio = Ratio(statistics.median(ratios), min(ratios), max(ratios))
    figures = [
        _single("loss_and_gradient_norm_difference_from_liger", worst, _LIGER),
        ratio.figure("loss_time_over_liger", _LIGER, target=1.0, relation="<="),
    ]
    theirs = peer.ask(do="peak")["bytes"]
    if theirs and can_measure():
        own_peak = _peak(chunked, problem)
        figures.append(_single("loss_memory_over_liger", own_peak / theirs, _PEAK + _LIGER, 1.0))
    return figures


def _leaves(problem: Problem) -> tuple[Tensor, Tensor]:
    return problem.hidden.detach().requires_grad_(), problem.weight.detach().requires_grad_()


def _gradient(leaf: Tensor) -> Tensor:
    if leaf.grad is None:
        raise RuntimeError("the loss left no gradient")
    return leaf.grad


def _peak(work: Callable[[Problem], object], problem: Problem) -> int:
    return peak_growth(lambda: work(problem))


def _cpu_seconds(problem: Problem) -> float:
    begun = time.process_time()
    chunked(problem)
    return time.process_time() - begun


def _difference(
    name: str, ours: tuple[float, Tensor, Tensor], theirs: tuple[float, Tensor, Tensor]
) -> Figure:
    worst = abs(ours[0] - theirs[0]) / abs(theirs[0])
    for own, other in zip(ours[1:], theirs[1:], strict=True):
        worst = max(worst, ((own - other).norm() / other.norm()).item())
    return _single(name, worst, "relative, the largest of loss and gradients in norm; naive, float32", 1e-5)


def _single(name: str, value: float, baseline: str, target: float | None = None) -> Figure:
    return Figure(
        name=name,
        value=value,
        unit="ratio",
        low=value,
        high=value,
        target=target,
        relation=None if target is None else "<=",
        baseline=baseline,
    )
