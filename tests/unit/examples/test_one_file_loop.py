import importlib.util
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).parents[3] / "examples" / "one_file_loop.py"


@pytest.fixture(scope="module")
def example():
    specification = importlib.util.spec_from_file_location("one_file_loop", EXAMPLE)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def tiny(tmp_path):
    settings = {
        "model.starter.cache_dir": tmp_path,
        "model.starter.hidden_size": 16,
        "model.starter.num_layers": 1,
        "model.starter.num_heads": 2,
        "model.starter.intermediate_size": 16,
        "model.starter.supervised_steps": 2,
        "model.starter.supervised_batch_size": 4,
        "trainer.groups_per_step": 2,
        "trainer.group_size": 3,
        "evaluation.prompts": 4,
        "evaluation.every": 2,
    }
    return [f"{key}={value}" for key, value in settings.items()]


@pytest.mark.parametrize("estimator", ["vespo", "gepo"])
def test_the_loop_measures_before_the_first_step_and_after_the_last(example, tiny, estimator):
    accuracies = example.main([*tiny, f"estimator.name={estimator}", "run.steps=3"])

    assert len(accuracies) == 3  # before step 1, after step 2, after step 3
    assert all(0 <= accuracy <= 1 for accuracy in accuracies)


def test_the_trainer_scores_what_the_sampler_reported(example, tiny):
    config = example.load_config([example.QUICKSTART], tiny)
    model = example.AutoModelForCausalLM.from_pretrained(example.ensure_starter(config))
    prompts = [[1, 50, 60, 70], [1, 50]]

    completions = example.sample(model, prompts, 3, 5)
    log_probs = example.score(model, example.repeat(prompts, 3), completions)

    reported = torch.tensor([value for one in completions for value in one.log_probs])
    assert all(1 <= len(one.token_ids) <= 5 for one in completions)
    torch.testing.assert_close(log_probs.detach(), reported, atol=1e-5, rtol=0)
