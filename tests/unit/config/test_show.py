import tomllib

import pytest

from hetero_rl.config import Config, load_config, show_config


@pytest.fixture
def reload(tmp_path):
    def _reload(text: str) -> Config:
        file = tmp_path / "shown.toml"
        file.write_text(text, encoding="utf-8")
        return load_config([file])

    return _reload


@pytest.mark.parametrize("explain", [False, True])
@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["hub.address=hub.example:4000", "logging.live=true", "optimizer.betas=[0.8, 0.99]"],
        ['task.options={min_terms = 2, "odd key" = [1, 2.5, true, "x\\"\\\\\\n"], nested = {a = "é"}}'],
        ['model.path="a\\u007fb"'],
        ["inference.fleet=[{backend = 'cpu'}, {backend = 'cpu', worker = {emulate = 'bf16'}}]"],
    ],
)
def test_what_is_shown_reads_back_as_the_same_tree(reload, overrides, explain):
    config = load_config(overrides=overrides)

    assert reload(show_config(config, explain=explain)) == config


def test_an_unset_key_is_shown_as_a_comment():
    assert "# address = (unset)" in show_config(Config()).splitlines()


def test_a_secret_in_a_free_table_is_not_shown():
    config = load_config(overrides=["task.options.api_key=hunter2", "task.options.size=3"])

    shown = show_config(config)

    assert "hunter2" not in shown
    assert tomllib.loads(shown)["task"]["options"] == {"api_key": "<redacted>", "size": 3}


def test_a_number_is_no_secret_whatever_its_name():
    config = load_config(overrides=["task.options.token=3"])

    assert tomllib.loads(show_config(config))["task"]["options"] == {"token": 3}


def test_explain_puts_each_key_under_its_sentence():
    lines = show_config(Config(), explain=True).splitlines()

    assert lines[lines.index("steps = 100") - 1] == "# Optimizer steps to make."
    assert lines[lines.index("[staleness]") - 1].startswith("# How far behind")
