"""Names of the metrics that the views show, as the trainer writes them."""

__all__ = [
    "ACCURACY",
    "ACCURACY_STEP",
    "ESS",
    "GAP_MAX",
    "GAP_MEAN",
    "GENERATED_RATE",
    "LAG_MAX",
    "LAG_MEAN",
    "REWARD",
    "STEP_SECONDS",
    "TRAINED_RATE",
    "WAIT_PREFIX",
]

STEP_SECONDS = "step_seconds"
WAIT_PREFIX = "wait_seconds/"
REWARD = "reward/mean"
ACCURACY = "eval/accuracy"
ACCURACY_STEP = "eval/step"
LAG_MEAN = "lag/mean"
LAG_MAX = "lag/max"
GAP_MEAN = "log_prob_gap/mean"
GAP_MAX = "log_prob_gap/max"
ESS = "ess"
GENERATED_RATE = "tokens_per_second/generated"
TRAINED_RATE = "tokens_per_second/trained"
