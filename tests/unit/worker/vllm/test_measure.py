"""Raw or processed: judged from what an engine reports of a distribution that is known."""

import math

import pytest

from hetero_rl.errors import EngineError
from hetero_rl.worker.engines.vllm.measure import Observation, judge_mode

# Biases are 60 and 59, so token 0 leads by 1 + (-2.0 - -3.0) = 2 nats at temperature 1 and by 4 at 0.5.
SCORES = (-2.0, -3.0)
PROCESSED = [Observation(0, 1.0, -math.log1p(math.exp(-2))), Observation(1, 0.5, -math.log1p(math.exp(4)))]
RAW = [Observation(0, 1.0, -2.0), Observation(1, 0.5, -3.0)]


def test_log_probs_that_follow_bias_and_temperature_are_processed():
    assert judge_mode(PROCESSED, SCORES) == "processed"


def test_log_probs_that_are_those_of_scoring_at_every_temperature_are_raw():
    assert judge_mode(RAW, SCORES) == "raw"


@pytest.mark.parametrize("reported", [-0.9, math.nan])
def test_log_probs_that_are_neither_are_refused(reported):
    with pytest.raises(EngineError, match="neither raw"):
        judge_mode([*PROCESSED, Observation(0, 0.5, reported)], SCORES)


def test_an_engine_that_is_processed_at_one_temperature_only_is_refused():
    with pytest.raises(EngineError, match="neither raw"):
        judge_mode([PROCESSED[0], RAW[1]], SCORES)
