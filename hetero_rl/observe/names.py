"""Names of the metrics that the views show, as the trainer writes them."""

__all__ = [
    "ACCURACY",
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

STEP_SECONDS = "time/step"
WAIT_PREFIX = "wait/"
REWARD = "reward/mean"
ACCURACY = "eval/accuracy"
LAG_MEAN = "lag/mean"
LAG_MAX = "lag/max"
GAP_MEAN = "gap/mean"
GAP_MAX = "gap/max"
ESS = "ess"
GENERATED_RATE = "tokens_per_second/generated"
TRAINED_RATE = "tokens_per_second/trained"
