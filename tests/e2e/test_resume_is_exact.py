"""A run that was killed and resumed has the losses of an unbroken one, bit for bit.

With `max_lag = 0` a step's batch is made under the weights of the step before, and a completion depends on its own seed, its prompt and the
weights, so nothing in a run depends on time. RESUMES=20 repeats it with kills at 20 random steps; `make test` does one.
"""

import json
import os
import random

import pytest

STEPS = 12
RESUMES = int(os.environ.get("RESUMES", "1"))
COMPARED = ("loss", "gradient_norm", "reward/mean")
SETTINGS = ("--set", f"run.steps={STEPS}", "--set", "staleness.max_lag=0", "--set", "evaluation.every=0")


@pytest.fixture(scope="session")
def unbroken(config_file, environment, tmp_path_factory, hetero_rl):
    directory = tmp_path_factory.mktemp("unbroken")
    result = hetero_rl("train", config_file, "--set", f"run.dir={directory / 'run'}", *SETTINGS, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    return (directory / "run" / "metrics.jsonl").read_text()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(RESUMES))
def test_a_killed_and_resumed_run_has_the_losses_of_an_unbroken_one(train, unbroken, seed):
    draw = random.Random(seed)  # ruff: ignore[suspicious-non-cryptographic-random-usage] repeatable on purpose
    first = train(*SETTINGS)
    first.wait_for_step(draw.randint(1, STEPS - 2))
    first.process.kill()
    first.process.wait()
    resumed = train(*SETTINGS, "--resume")
    assert resumed.finish(600) == 0, resumed.text()
    assert losses(resumed.run.metrics.read_text()) == losses(unbroken)


def losses(text):
    records = [json.loads(line) for line in text.splitlines()]
    return [[record["step"], *(record[name] for name in COMPARED)] for record in records if "loss" in record]
