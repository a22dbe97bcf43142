"""Which benchmarks there are. Each is imported when it runs: some need torch, the wire's own does not."""

import dataclasses
import importlib
from collections.abc import Mapping

from hetero_rl.bench.schema import BenchReport

__all__ = ["BENCHES", "Bench"]


@dataclasses.dataclass(frozen=True, slots=True)
class Bench:
    """A module with `run(*, quick: bool) -> BenchReport`; quick takes seconds and proves nothing."""

    module: str
    summary: str

    def run(self, *, quick: bool = False) -> BenchReport:
        """Measures and reports."""
        report = importlib.import_module(self.module).run(quick=quick)
        if not isinstance(report, BenchReport):
            raise TypeError(f"{self.module}.run returned {type(report).__name__}, expected a BenchReport")
        return report


BENCHES: Mapping[str, Bench] = {
    "estimators": Bench("hetero_rl.bench.estimators", "Every estimator's weight stage: time and memory."),
    "logprobs": Bench(
        "hetero_rl.bench.logprobs", "Loss at the output head: time and memory against logits, and Liger."
    ),
    "overlap": Bench(
        "hetero_rl.bench.overlap", "Wall time against the larger of generation and training work."
    ),
    "safety": Bench(
        "hetero_rl.bench.safety", "Results handed in with TLS, tokens, syncs and checks, against without."
    ),
    "trainer": Bench("hetero_rl.bench.trainer", "One optimizer step: against TRL, shared prompts, packing."),
    "weights": Bench("hetero_rl.bench.weights", "Weight deltas: size, speed, a slow line, cost per byte."),
    "wire": Bench("hetero_rl.bench.wire", "Trajectories: encoding, bytes per token, durable ingest."),
}
"""By name."""
