"""The newest record as metrics for Prometheus, which keeps their history itself.

One table says which number of a record becomes which metric; numbers that it does not name, and they are diagnostics, share one metric.
Seconds waited, steps and dropped sequences are added up, so that a scrape that comes late misses nothing.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from typing_extensions import override

from hetero_rl.metrics.catalogue import Kind, Metric, Reading, declare
from hetero_rl.trainer.sinks.base import MetricsRecord, Sink

__all__ = ["PrometheusSink"]

_EVERY_BACKEND = "all"


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a number goes."""

    metric: Metric
    labels: tuple[str, ...] = ()


def _named(name: str, help_text: str, *labels: str) -> Metric:
    return declare(f"hetero_rl_trainer_{name}", help_text, labels)


_STEPS = _named("steps_total", "Optimizer steps made by this process.")
_STEP = _named("step", "Optimizer steps in the weights.")
_WAIT = _named("wait_seconds_total", "Seconds that the device waited, by cause.", "cause")
_DROPPED = _named("dropped_sequences_total", "Sequences that were not trained on, by cause.", "cause")
_TRAINED = _named(
    "trained_completion_tokens_total", "Completion tokens that were trained on, by backend.", "backend"
)
_DIAGNOSTIC = _named(
    "diagnostic", "Every other number of the newest record, by its name in metrics.jsonl.", "name"
)
_FATE = _named("sequences_ratio", "Share of the newest batch's sequences.", "fate")
_GAP_MEAN = _named(
    "log_prob_gap_mean_nats", "Mean |log mu - log pi| of a token in the newest batch, by backend.", "backend"
)
_KL = _named("kl_nats", "Estimates of KL(mu || pi) per token.", "estimator")
_LOG_RATIO = _named("log_importance_ratio_nats", "Mean log W of a sequence, and its parts.", "part")
_ESS = _named("effective_sample_ratio", "Effective sample size over the number of sequences.", "of")
_TOKENS = _named(
    "tokens_per_second", "Tokens per second: generated in the step, trained on the device.", "of"
)

_TABLE = {
    "loss": _Target(_named("loss", "Loss of the newest step.")),
    "gradient_norm": _Target(_named("gradient_norm", "Norm of the gradient before it is scaled.")),
    "learning_rate": _Target(_named("learning_rate", "Learning rate of the newest step.")),
    "reward/mean": _Target(_named("reward_mean", "Mean reward of the newest batch.")),
    "reward/std": _Target(_named("reward_std", "Standard deviation of its rewards.")),
    "lag/mean": _Target(
        _named("lag_mean_steps", "Mean lag of a sequence of the newest batch, in optimizer steps.")
    ),
    "lag/max": _Target(_named("lag_max_steps", "Largest lag of a sequence of the newest batch.")),
    "completion_tokens/mean": _Target(_named("completion_tokens_mean", "Mean tokens of a completion.")),
    "coefficient/mean": _Target(
        _named("coefficient_mean", "Mean of what multiplied the advantage, over tokens.")
    ),
    "computed_tokens/share": _Target(
        _named(
            "computed_tokens_ratio", "Tokens computed, padding included, over prompt and completion tokens."
        )
    ),
    "log_importance_ratio/mean": _Target(_LOG_RATIO, ("whole",)),
    "chip/mean": _Target(_LOG_RATIO, ("chip",)),
    "staleness/mean": _Target(_LOG_RATIO, ("staleness",)),
    "ess": _Target(_ESS, ("coefficients",)),
    "ess/raw": _Target(_ESS, ("importance_ratio",)),
    "share/clamped": _Target(_FATE, ("clamped",)),
    "share/masked": _Target(_FATE, ("masked",)),
    "share/dropped": _Target(_FATE, ("dropped",)),
    "share/split": _Target(_FATE, ("split",)),
    "kl/k1": _Target(_KL, ("k1",)),
    "kl/k3": _Target(_KL, ("k3",)),
    "log_prob_gap/mean": _Target(_GAP_MEAN, (_EVERY_BACKEND,)),
    "log_prob_gap/max": _Target(_named("log_prob_gap_max_nats", "Largest |log mu - log pi| of a token.")),
    "tokens_per_second/generated": _Target(_TOKENS, ("generated",)),
    "tokens_per_second/trained": _Target(_TOKENS, ("trained",)),
    "checkpoint/failures": _Target(_named("checkpoint_failures", "Checkpoints in a row that failed.")),
    "step_seconds": _Target(_named("step_duration_seconds", "Seconds from the record before to the newest.")),
    "weight_version": _Target(_named("weight_version", "Weight version published last.")),
    "eval/accuracy": _Target(_named("evaluation_accuracy_ratio", "Held-out accuracy.")),
    "eval/step": _Target(_named("evaluation_step", "Optimizer step that the accuracy belongs to.")),
    "time": _Target(_named("recorded_timestamp_seconds", "When the newest record was written, Unix time.")),
}
_PREFIXES = {
    "wait_seconds/": _WAIT,
    "dropped/": _DROPPED,
    "log_prob_gap/mean/": _GAP_MEAN,
    "trained_tokens/": _TRAINED,
}


class PrometheusSink(Sink):
    """Holds the newest value of every number; also a source of an exporter. Safe to read from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[_Target, float] = {}

    @override
    def start(self, *, resume_step: int) -> None:
        with self._lock:
            self._values.clear()
            self._values[_Target(_STEPS)] = 0.0
            self._values[_Target(_STEP)] = float(max(resume_step, 0))

    @override
    def write(self, record: MetricsRecord) -> None:
        with self._lock:
            self._take(record.values)
            if record.step > 0:
                self._values[_Target(_STEPS)] = self._values.get(_Target(_STEPS), 0.0) + 1
            self._values[_Target(_STEP)] = float(record.step)

    @override
    def close(self) -> None:
        """What was seen last stays to be read."""

    def collect(self) -> list[Reading]:
        """The newest record."""
        with self._lock:
            return [target.metric(value, *target.labels) for target, value in self._values.items()]

    def _take(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            target = _target(name)
            before = self._values.get(target, 0.0) if target.metric.kind is Kind.COUNTER else 0.0
            self._values[target] = before + value


def _target(name: str) -> _Target:
    known = _TABLE.get(name)
    if known is not None:
        return known
    for prefix, metric in _PREFIXES.items():
        if name.startswith(prefix):
            return _Target(metric, (name.removeprefix(prefix),))
    return _Target(_DIAGNOSTIC, (name.removeprefix("diagnostics/"),))
