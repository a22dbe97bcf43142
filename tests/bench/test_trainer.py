import pytest
import torch

from hetero_rl.bench import trainer
from hetero_rl.trainer.policy import load_policy

SHAPES = trainer.Shapes(16, 32, 1, 2, 1, 64, 6, (2, 5, 3))


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bench")
    trainer.save_model(SHAPES, directory)
    return load_policy(directory, device=torch.device("cpu"), compute_dtype=torch.float32)


def test_the_bound_of_sharing_counts_the_prompt_once():
    # 3 x 6 + 10 tokens apart, 6 + 10 shared.
    assert SHAPES.useful_tokens == 16
    assert SHAPES.sharing_bound == pytest.approx(28 / 16)


def test_figures_of_packing_are_computed_from_real_steps(policy):
    batch = trainer.make_batch(SHAPES, policy)

    shared, computed = trainer._figures(SHAPES, trainer._learner(policy), batch, None)

    # 6 prompt tokens and all but the last of 2, 5 and 3.
    assert computed.value == pytest.approx(13 / 16)
    assert computed.met
    assert shared.value > 0
    assert shared.target == 0.8


def test_the_recorded_log_probs_are_near_those_of_the_policy(policy):
    batch = trainer.make_batch(SHAPES, policy)

    own = trainer.action_log_probs(policy, batch, ((0, 1, 2),), 1.0)

    assert 0 < (batch.behavior_log_probs - own).abs().max() < 0.1


def test_steps_are_compared_with_a_peers_in_wall_and_cpu_time(policy):
    batch = trainer.make_batch(SHAPES, policy)
    learner = trainer._learner(policy)
    loss, norm, _ = trainer._step(learner, batch)

    class Peer:
        def ask(self, **question):
            return {"seconds": 1e6, "cpu_seconds": 2e6, "loss": loss, "gradient_norm": 2 * norm}

    wall, cpu, difference, *_ = trainer._figures(SHAPES, learner, batch, Peer())

    assert (wall.name, cpu.name) == ("step_over_trl", "step_cpu_over_trl")
    assert wall.met
    assert cpu.value > 1
    assert difference.value == pytest.approx(1)
