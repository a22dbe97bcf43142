import pytest

from hetero_rl.launch.rundir import RunDirectory
from hetero_rl.observe.summary import RunResult, closing_summary, result_of


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path / "run")


def result(run, **changes) -> RunResult:
    fields = {
        "complete": True,
        "step": 20,
        "total_steps": 20,
        "seconds": 75.0,
        "accuracies": ((0, 0.25), (20, 0.75)),
        "rewards": (0.0,) * 10 + (1.0,) * 10,
        "checkpoint": run.checkpoints / "step_00000020",
    }
    return RunResult(**(fields | changes))


def test_a_complete_run_says_what_it_gained_where_things_are_and_what_to_do(run):
    root = run.root

    assert closing_summary(run, result(run), tensorboard=True).splitlines() == [
        "Run complete: 20 of 20 steps, 1:15 of training",
        "held-out accuracy 0.250 (step 0) -> 0.750 (step 20), +0.500",
        "reward 0.000 -> 1.000 (means of the first and last 10 steps)",
        "",
        f"metrics      {root}/metrics.jsonl",
        f"tensorboard  tensorboard --logdir {root}/tensorboard",
        f"checkpoint   {root}/checkpoints/step_00000020",
        f"logs         {root}/logs",
        "",
        f"read samples    hetero-rl samples {root} --worst",
        f"score it again  hetero-rl eval {root}",
        f"export it       hetero-rl export {root} MODEL_DIR",
        f"train longer    hetero-rl train {root}/config.json --resume --set run.steps=40",
    ]


def test_a_stopped_run_says_first_how_it_goes_on(run):
    lines = closing_summary(run, result(run, complete=False, step=7), tensorboard=False).splitlines()

    assert lines[0] == "Run stopped: 7 of 20 steps, 1:15 of training"
    assert f"go on           hetero-rl train {run.root}/config.json --resume" in lines
    assert not any("tensorboard" in line for line in lines)


def test_a_run_stopped_before_anything_was_made_has_nothing_to_score(run):
    text = closing_summary(
        run,
        result(run, complete=False, step=0, accuracies=(), rewards=(), checkpoint=None),
        tensorboard=False,
    )

    assert "hetero-rl eval" not in text
    assert "accuracy" not in text


def test_one_evaluation_is_no_gain(run):
    text = closing_summary(run, result(run, accuracies=((0, 0.25),)), tensorboard=False)

    assert "held-out accuracy 0.250 (step 0)\n" in text


def test_the_result_holds_earlier_parts_of_the_run_and_the_steps_that_evaluations_belong_to(run):
    run.root.mkdir()
    run.metrics.write_text(
        '{"step": 0, "eval/accuracy": 0.25, "eval/step": 0}\n'
        '{"step": 1, "reward/mean": 0.5}\n'
        '{"step": 2, "reward/mean": null}\n'
        '{"step": 3, "reward/mean": 0.75, "eval/accuracy": 0.5, "eval/step": 2}\n'
    )

    found = result_of(run, complete=True, step=3, total_steps=3, seconds=1.0, checkpoint=None)

    assert found.accuracies == ((0, 0.25), (2, 0.5))
    assert found.rewards == (0.5, 0.75)
