import json

import pytest

from hetero_rl.cli import eval as eval_command
from hetero_rl.config import load_config
from hetero_rl.files import write_whole
from hetero_rl.launch.evaluation import EvaluatedItem, Evaluation
from hetero_rl.launch.rundir import RunDirectory
from hetero_rl.tasks import Grade


@pytest.fixture
def model_dir(tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").touch()
    return directory


@pytest.fixture
def asked(monkeypatch):
    """What `hetero-rl eval` asks to be evaluated; three of four answers are right."""
    asked = []

    def evaluate_model(config, directory, *, backend, report):
        asked.append((config, directory, backend))
        report(4, 4)
        items = tuple(
            EvaluatedItem(question=f"q{number}", completion="x", grade=Grade(reward))
            for number, reward in enumerate((1.0, 1.0, 1.0, 0.5))
        )
        return Evaluation(items=items, generated_tokens=8, generation_seconds=0.5)

    monkeypatch.setattr("hetero_rl.launch.evaluation.evaluate_model", evaluate_model)
    return asked


def test_a_model_directory_is_scored_on_the_task_that_is_named(cli, model_dir, asked):
    result = cli("eval", model_dir, "--task", "chain_sum", "--prompts", 4, "--infer-backend", "npu")

    ((config, directory, backend),) = asked
    assert result.exit_code == 0, result.stderr
    assert (directory, backend) == (model_dir, "npu")
    assert (config.task.dataset, config.evaluation.prompts) == ("chain_sum", 4)
    assert "accuracy 0.750, mean reward 0.875 on 4 held-out prompts of chain_sum" in result.stdout


def test_wrong_answers_are_shown_on_request(cli, model_dir, asked):
    assert "wrong: 'q3' -> 'x'" in cli("eval", model_dir, "--task", "chain_sum", "--show", 2).stdout


def test_the_result_is_json_on_request(cli, model_dir, asked):
    record = json.loads(cli("eval", model_dir, "--task", "chain_sum", "--json").stdout)

    assert (record["accuracy"], record["prompts"], record["generated_tokens"]) == (0.75, 4, 8)


def test_a_model_directory_without_a_task_is_an_error_of_use(cli, model_dir, asked):
    result = cli("eval", model_dir)

    assert (result.exit_code, asked) == (2, [])
    assert "--task NAME or --config" in result.stderr


def test_a_run_brings_its_own_task_and_its_checkpoint(cli, tmp_path, asked, monkeypatch):
    run = RunDirectory(tmp_path / "run")
    run.prepare()
    run.checkpoints.mkdir()
    write_whole(run.config, load_config(overrides=["task.dataset=spell_backward"]).model_dump_json())
    chosen = run.checkpoints / "step_00000004"
    monkeypatch.setattr("hetero_rl.trainer.export.choose_checkpoint", lambda checkpoints, step: chosen)

    cli("eval", run.root, "--set", "evaluation.temperature=1.0")

    ((config, directory, _),) = asked
    assert directory == chosen
    assert (config.task.dataset, config.evaluation.temperature) == ("spell_backward", 1.0)


def test_a_directory_that_is_neither_is_an_error_of_use(cli, tmp_path, asked):
    result = cli("eval", tmp_path / "none", "--task", "chain_sum")

    assert result.exit_code == 2
    assert "no such directory" in result.stderr


def test_a_step_belongs_to_a_run(cli, model_dir, asked):
    result = cli("eval", model_dir, "--task", "chain_sum", "--step", 3)

    assert result.exit_code == 2
    assert "is a model directory, not a run" in result.stderr


def test_a_task_named_shortly_forgets_the_options_of_the_runs_own(tmp_path):
    run = RunDirectory(tmp_path)
    run.checkpoints.mkdir()
    own = load_config(overrides=["task.dataset=spell_backward", "task.options={min_word_len = 3}"])
    write_whole(run.config, own.model_dump_json())

    config = eval_command._settings(tmp_path, [], "chain_sum", None, [])

    assert (config.task.dataset, config.task.options) == ("chain_sum", {})
