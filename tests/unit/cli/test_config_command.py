import json

from hetero_rl.config import Config, load_config, show_config


def test_show_prints_the_resolved_tree(cli, tmp_path):
    file = tmp_path / "a.toml"
    file.write_text("[run]\nsteps = 5\n")

    result = cli("config", "show", file, "--set", "run.seed=3")

    assert result.exit_code == 0
    assert result.stdout == show_config(load_config([file], ["run.seed=3"]))


def test_show_explains_on_request(cli):
    assert "# Optimizer steps to make.\nsteps = 100\n" in cli("config", "show", "--explain").stdout


def test_show_prints_json_on_request(cli):
    assert json.loads(cli("config", "show", "--json").stdout) == json.loads(Config().model_dump_json())


def test_a_wrong_setting_ends_with_2_and_its_name(cli):
    result = cli("config", "show", "--set", "staleness.max_lag=-1")

    assert result.exit_code == 2
    assert result.stderr.startswith("Error: staleness.max_lag = -1: ")
