import json

import pytest

from hetero_rl.errors import ConfigError
from hetero_rl.launch.calibration import parse_backends
from hetero_rl.reports.record import record_text


def body(mean):
    sums = [[10, mean * 10, abs(mean) * 10, mean * mean * 10] for _ in range(8)]
    return {
        "pairs": [{"first": "trainer", "second": "cpu", "sequence_sums": sums, "fixed": None}],
        "numerics": {"cpu": {"engine": "a"}},
    }


@pytest.fixture
def files(tmp_path):
    paths = []
    for name, mean in (("a", 0.01), ("b", 0.5)):
        path = tmp_path / f"{name}.json"
        path.write_text(record_text("calibration", 1, body(mean)))
        paths.append(path)
    return paths


def test_diff_says_what_moved_and_may_fail_for_it(cli, files):
    result = cli("calibrate", "diff", *files, "--fail-on-change")
    assert result.exit_code == 3
    assert result.stdout.startswith("moved: ")


def test_diff_of_a_file_with_itself_moves_nothing(cli, files):
    result = cli("calibrate", "diff", files[0], files[0], "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["moved"] is False


def test_diff_refuses_what_is_no_calibration(cli, tmp_path, files):
    (tmp_path / "c.json").write_text("{}")
    result = cli("calibrate", "diff", files[0], tmp_path / "c.json")
    assert result.exit_code != 0
    assert "not a calibration report" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--backends", "cpu:colour=red"), "colour=red"),
        (("--model", "/nowhere"), "no such directory"),
        (("--threshold", "floor=1"), "ess_floor"),
        (("--fail-on", "sometimes"), "caution or unusable"),
        (("--against", "me"), "trainer"),
        (("--backends", "absent", "--quick"), "absent"),
    ],
)
def test_a_wrong_argument_is_named(cli, arguments, said, monkeypatch, tmp_path):
    monkeypatch.setattr("hetero_rl.cli.calibrate._model_directory", lambda config: tmp_path)
    result = cli("calibrate", *arguments)
    assert result.exit_code != 0
    assert said in result.stderr


def test_backends_are_named_with_settings_of_their_workers():
    first, second = parse_backends("ascend, cpu:dtype=bfloat16:emulate=bf16")
    assert (first.backend, first.settings) == ("ascend", ())
    assert second.settings == (("dtype", "bfloat16"), ("emulate", "bf16"))


@pytest.mark.parametrize("text", ["", "cpu,cpu", "cpu:dtype"])
def test_backends_that_cannot_be_told_apart_are_refused(text):
    with pytest.raises(ConfigError):
        parse_backends(text)
