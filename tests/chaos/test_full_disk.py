"""A file system that is really full costs what could not be written then, and nothing else."""

import json

import pytest

from tests.chaos.full_disk import SETTINGS, run_part, unavailable

MISSING = unavailable()

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "a file system can be mounted"),
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(700),
]


def outcome(part, directory):
    ended = run_part(part, directory)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


def test_a_full_disk_costs_a_checkpoint_and_the_run_after_too_many_in_a_row(tmp_path):
    told = outcome("checkpoint", tmp_path)

    assert told["saved"] == {"10": True, "20": False, "30": False, "40": True, "50": False, "60": False}
    assert (told["newest_while_full"], told["newest_at_the_end"]) == (10, 40)
    assert told["left"] == ["step_00000010", "step_00000040"]
    assert "step_00000070 could not be written" in told["ended"]
    assert [alarm.partition(", training goes on")[0] for alarm in told["alarms"]] == [
        "checkpoint of step 20 failed (1 of 3 in a row)",
        "checkpoint of step 30 failed (2 of 3 in a row)",
        "checkpoint of step 50 failed (1 of 3 in a row)",
        "checkpoint of step 60 failed (2 of 3 in a row)",
    ]


def test_a_workers_full_disk_leaves_what_it_has_and_the_download_goes_on_later(tmp_path):
    told = outcome("cache", tmp_path)

    assert "No space left on device" in told["error"]
    assert told["kept"]
    assert told["right"]
    assert 0 < told["sent_again"] < told["size"]


def test_a_run_on_a_disk_that_fills_up_again_and_again_loses_nothing(tmp_path):
    told = outcome("run", tmp_path)

    assert told["problems"] == [], told["logs"]
    assert told["codes"] == {"hub": None, "trainer": 0, "w0": 0}, told["logs"]
    assert told["reasons"].keys() == {"STORAGE_FULL"}
    assert told["counts"]["freed"] == told["counts"]["filled"]
    assert told["counts"]["checkpoint missed"] >= 1
    assert told["counts"]["taken"] == SETTINGS.total_steps
    assert "nothing was stored: no space left" in told["logs"]["hub.log"]
