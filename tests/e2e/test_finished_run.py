"""A run to its end, and what can be done with it."""

import json
import math
import stat

import pytest
from transformers import AutoModelForCausalLM

from hetero_rl.hub.journal_reader import JournalReader, trained_twice

STEPS = 6


@pytest.fixture
def metrics(finished_run):
    run, _ = finished_run
    return [json.loads(line) for line in run.metrics.read_text().splitlines()]


def test_every_step_is_recorded_once_and_the_state_before_training_too(metrics):
    assert [record["step"] for record in metrics] == list(range(STEPS + 1))


def test_every_step_says_what_a_person_needs(metrics):
    wanted = {
        "reward/mean",
        "lag/mean",
        "lag/max",
        "log_importance_ratio/mean",
        "ess",
        "share/clamped",
        "share/dropped",
        "log_prob_gap/mean",
        "tokens_per_second/generated",
        "tokens_per_second/trained",
        "wait_seconds/data",
    }

    for record in metrics[1:]:
        assert wanted <= record.keys()
        assert all(math.isfinite(record[name]) for name in wanted)


def test_accuracy_is_measured_before_training_and_after_it(metrics):
    measured = [record["eval/step"] for record in metrics if "eval/accuracy" in record]

    assert (measured[0], measured[-1]) == (0, STEPS)


def test_lag_stays_within_its_bound(metrics):
    assert max(record["lag/max"] for record in metrics[1:]) <= 2


def test_no_trajectory_changed_the_weights_twice(finished_run):
    run, _ = finished_run

    assert trained_twice(run.journal) == []
    with JournalReader(run.journal) as journal:
        assert [len(journal.outcomes(step)) for step in range(1, STEPS + 1)] == [8] * STEPS


def test_the_closing_summary_says_what_came_of_it_and_what_to_do_next(finished_run):
    run, result = finished_run

    assert f"Run complete: {STEPS} of {STEPS} steps" in result.stdout
    assert f"hetero-rl eval {run.root}" in result.stdout
    assert not result.stderr


def test_weights_go_out_as_deltas_and_their_cost_is_told(finished_run, here):
    run, _ = finished_run

    first, *later = json.loads(here("weights", "log", run.root, "--json"))

    assert (first["version"], first["encoding"], first["share_of_full"]) == (1, "FULL_RAW", 1.0)
    assert [record["step"] for record in later] == list(range(1, STEPS + 1))
    assert {record["encoding"] for record in later} == {"ULP_DELTA"}
    for record in later:
        assert record["base_version"] == record["version"] - 1
        assert record["coded_bytes"] < 0.9 * record["full_bytes"]
        assert 0 <= record["density"] <= 1
    assert "ULP_DELTA" in here("weights", "log", run.root)


def test_nobody_else_may_look_into_the_run(finished_run):
    run, _ = finished_run

    assert stat.S_IMODE(run.root.stat().st_mode) == 0o700
    assert stat.S_IMODE(run.config.stat().st_mode) == 0o600


def test_the_hub_is_gone_with_its_address(finished_run, hetero_rl):
    run, _ = finished_run
    assert not run.hub_address.exists()

    result = hetero_rl("status", "--run", run.root, "--json")

    assert result.returncode == 1
    assert json.loads(result.stdout)["step"] == STEPS


def test_samples_show_what_the_model_wrote_and_the_gap_of_every_token(finished_run, here):
    run, _ = finished_run

    printed = here("samples", run.root, "--step", STEPS, "--limit", 3, "--json")

    records = json.loads(printed)
    assert len(records) == 3
    for record in records:
        assert record["prompt"].startswith("<bos>Spell this word backward")
        assert record["outcome"]["lag"] <= 2
        pairs = list(zip(record["behavior_log_probs"], record["trainer_log_probs"], strict=True))
        assert len(pairs) == len(record["token_ids"])
        largest = max(abs(mu - pi) for mu, pi in pairs)
        assert largest == pytest.approx(record["outcome"]["max_absolute_gap"], abs=1e-5)


def test_the_worst_samples_come_first(finished_run, here):
    run, _ = finished_run

    printed = here("samples", run.root, "--worst", "--limit", 5, "--json")

    gaps = [record["outcome"]["max_absolute_gap"] for record in json.loads(printed)]
    assert gaps == sorted(gaps, reverse=True)
    assert len(gaps) == 5


def test_a_checkpoint_scores_what_the_run_measured_last(finished_run, here, metrics):
    run, _ = finished_run

    printed = here("eval", run.root, "--json")

    record = json.loads(printed)
    assert record["prompts"] == 8
    # The run measured the served bfloat16 copy, this is the float32 master: one of eight answers may differ.
    assert record["accuracy"] == pytest.approx(metrics[-1]["eval/accuracy"], abs=1 / 8)


def test_an_exported_checkpoint_loads_as_it_is(finished_run, here, tmp_path):
    run, _ = finished_run

    here("export", run.root, tmp_path / "model", "--step", 4)

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert str(model.dtype) == "torch.bfloat16"


def test_a_second_run_in_the_same_directory_is_refused(finished_run, hetero_rl, config_file):
    run, _ = finished_run

    result = hetero_rl("train", config_file, "--set", f"run.dir={run.root}")

    assert result.returncode == 2
    assert "--resume" in result.stderr
