from pathlib import Path

import pytest

from hetero_rl.config import Config, load_config
from hetero_rl.config.load import key_paths, parse_override
from hetero_rl.errors import ConfigError


@pytest.fixture
def write(tmp_path):
    def _write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return _write


def problems(*, files=(), overrides=()) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(files, overrides)
    return str(caught.value).splitlines()


def test_no_source_gives_the_defaults():
    assert load_config() == Config()


def test_a_later_file_wins_and_tables_merge(write):
    first = write("a.toml", "[run]\nsteps = 5\nseed = 1\n[task.options]\nmin_terms = 2\nmax_terms = 2\n")
    second = write("b.toml", "[run]\nsteps = 7\n[task.options]\nmax_terms = 3\n")

    config = load_config([first, second])

    assert (config.run.steps, config.run.seed) == (7, 1)
    assert config.task.options == {"min_terms": 2, "max_terms": 3}


def test_set_wins_over_files_and_the_last_set_wins(write):
    file = write("a.toml", "[run]\nsteps = 5\n")

    assert load_config([file], ["run.steps=6", "run.steps=8"]).run.steps == 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run.steps=200", 200),
        ("optimizer.learning_rate=1e-4", 1e-4),
        ("logging.tensorboard=false", False),
        ('model.path="a b"', "a b"),
        ("model.path=models/qwen", "models/qwen"),
        ("model.path=a=b", "a=b"),
        ("inference.backends=['cpu']", ["cpu"]),
        ("task.options={min_terms = 2}", {"min_terms": 2}),
        ('model.path=1\nother = "x"', '1\nother = "x"'),
    ],
)
def test_a_set_value_is_toml_or_else_plain_text(text, expected):
    assert parse_override(text)[1] == expected


@pytest.mark.parametrize("text", ["run.steps", "=3", "run..steps=3", ""])
def test_a_set_without_key_or_value_is_refused(text):
    assert problems(overrides=[text]) == [f"--set {text!r}: give key.path=value, such as run.steps=200"]


def test_set_replaces_a_whole_table(write):
    file = write("a.toml", "[task.options]\nmin_terms = 2\n")

    assert load_config([file], ["task.options={max_terms = 3}"]).task.options == {"max_terms": 3}


def test_an_unknown_key_is_refused_with_its_path_the_nearest_name_and_the_source(write):
    file = write("a.toml", "[staleness]\nmax_lg = 2\n")

    assert problems(files=[file]) == [
        f"staleness.max_lg: unknown key; did you mean staleness.max_lag? (from {file})"
    ]


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("steps", "run.steps"),
        ("staleness.max_lga", "staleness.max_lag"),
        ("optimiser.learning_rate", "optimizer.learning_rate"),
        ("trainer.max_lag", "staleness.max_lag"),
        ("estimater", "estimator"),
        ("inference.max_concurrent_sequences", "inference.worker.max_concurrent_sequences"),
    ],
)
def test_the_nearest_name_is_found_across_sections(key, nearest):
    assert f"did you mean {nearest}?" in problems(overrides=[f"{key}=1"])[0]


def test_an_unknown_key_like_no_other_points_to_the_list():
    assert problems(overrides=["zzz.qqq=1"]) == [
        "zzz.qqq: unknown key; `hetero-rl config show` lists the keys (from --set)"
    ]


def test_a_value_out_of_range_names_key_value_bound_and_source():
    assert problems(overrides=["staleness.max_lag=-1"]) == [
        "staleness.max_lag = -1: input should be greater than or equal to 0 (from --set)"
    ]


def test_every_problem_gets_a_line_of_its_own():
    assert len(problems(overrides=["staleness.max_lag=-1", "run.steps=many", "rnu.steps=1"])) == 3


def test_a_rule_across_keys_is_reported_once():
    assert problems(overrides=["security.certificate=x.pem"]) == [
        "security: give certificate_authority, certificate and private_key together, or none of them"
    ]


def test_versions_too_rare_for_the_staleness_gate_are_refused():
    load_config([], ["staleness.max_lag=1", "weights.publish_every=2"])

    with pytest.raises(ConfigError, match="publish at least every 2 steps"):
        load_config([], ["staleness.max_lag=1", "weights.publish_every=3"])


def test_a_section_that_is_not_a_table_is_refused():
    assert problems(overrides=["run=3"])[0].startswith("run = 3: input should be")


def test_a_missing_file_is_named(tmp_path):
    assert problems(files=[tmp_path / "no.toml"]) == [f"{tmp_path / 'no.toml'}: no such configuration file"]


@pytest.mark.parametrize("content", [b"run = \n", b"\xff\xfe", b"x" * (2**20 + 1)])
def test_a_file_that_is_not_toml_text_is_refused_with_its_name(tmp_path, content):
    file = tmp_path / "bad.toml"
    file.write_bytes(content)

    assert problems(files=[file])[0].startswith(f"{file}: ")


def test_the_resolved_json_of_a_run_is_read_back(write):
    config = load_config(overrides=["run.steps=3", "task.options={a = 1}"])

    assert load_config([write("config.json", config.model_dump_json())]) == config


def test_json_that_is_no_table_is_refused(write):
    file = write("config.json", "[1]")

    assert problems(files=[file]) == [f"{file}: must hold one table of settings, not list"]


def test_a_value_under_a_secret_name_is_not_repeated_in_the_error():
    lines = problems(overrides=["task.api_key=hunter2"])

    assert "hunter2" not in "".join(lines)


def test_key_paths_holds_nested_sections_and_the_names_promised_to_users():
    paths = key_paths()

    assert {"run.dir", "estimator.name", "staleness.max_lag", "model.path"} <= set(paths)
    assert "inference.worker.threads" in paths
