"""What the counters of refusals are called."""

from hetero_rl.errors import FencedError, InvalidMessageError, RefusedError
from hetero_rl.hub.core import counter_of


def test_counters_say_what_was_wrong():
    invalid = InvalidMessageError("x", "TrajectoryBatch.log_probs")
    assert counter_of(invalid) == "refused_invalid_field_TrajectoryBatch.log_probs"
    assert counter_of(RefusedError("x", "NO_CREDIT")) == "refused_no_credit"
    assert counter_of(RefusedError("x", "RUN_NOT_OPEN")) is None
    assert counter_of(FencedError("x")) == "refused_fenced"
    assert counter_of(KeyError("x")) == "faults_of_the_hub"
