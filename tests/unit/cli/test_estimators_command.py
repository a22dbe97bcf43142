import json

import pytest

from hetero_rl.cli.estimators import draw
from hetero_rl.estimators import list_estimators


def test_the_list_has_every_preset_with_what_it_reads_and_its_formula(cli):
    result = cli("estimators")

    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    assert set(list_estimators()) <= set(lines)
    assert "recorded group" in lines["gepo"]
    assert "p / E_group[q]" in lines["gepo"]
    assert "current policy" in lines["snis"]
    assert "W^c1 exp(c2 (1 - W))" in lines["vespo"]


@pytest.mark.parametrize("name", ["gepo", "snis", "m2po", "opsm", "decoupled_ppo"])
def test_show_prints_reference_constants_and_a_curve(cli, name):
    result = cli("estimators", "show", name)

    assert result.exit_code == 0
    assert "Reference: " in result.stdout
    assert "  aggregation = " in result.stdout
    assert "1/8      1/4       1/2" in result.stdout


def test_show_draws_the_peaks_of_vespo_on_the_sides_of_the_paper(cli):
    lines = cli("estimators", "show", "vespo").stdout.splitlines()
    top = next(line for line in lines if line.startswith("   1.24 |"))
    bars = top.split("|")[1]
    centre = 30
    assert bars.rstrip().endswith("-")
    assert bars.index("-") > centre  # A < 0 peaks at W = 1.5
    below = lines[lines.index(top) + 1].split("|")[1]
    assert below.index("+") < centre  # A > 0 peaks at W = 2/3


def test_show_takes_other_constants(cli):
    result = cli("estimators", "show", "vespo", "--set", "c1_positive=2.5", "--json")

    assert json.loads(result.stdout)["c1_positive"] == 2.5


def test_an_unknown_preset_or_constant_ends_with_2_and_the_nearest_name(cli):
    assert "Did you mean 'vespo'" in cli("estimators", "show", "vespo2").stderr
    result = cli("estimators", "show", "vespo", "--set", "c1_pos=1")
    assert result.exit_code == 2
    assert "Did you mean 'c1_positive'" in result.stderr


def test_a_point_that_both_curves_share_is_a_star():
    assert draw([1.0, 0.0], [1.0, 1.0]).splitlines()[0] == "   1.00 |*-"
