"""A campaign runs, is judged, adds up, and goes on where it stopped."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.totals import describe, totals

ROOT = Path(__file__).parents[2]
RUN = {
    "seed": 1,
    "seconds": 10.5,
    "kills": {"before_commit:join@1": 2, "before_commit:join@2": 1, "SIGKILL of hub": 4},
    "submissions": {"once": 80, "reply lost": 10, "request lost": 5, "twice": 5},
    "acknowledged": 85,
    "downloads": {"versions": 3, "bytes": 36},
    "proxy": {"connections": 5, "resets": 2},
    "problems": [],
}


def test_totals_add_runs_and_forget_how_often_a_place_was_passed():
    sums = totals([RUN, RUN | {"seed": 2, "problems": ["g0/0 was lost"]}])
    assert (sums["runs"], sums["seconds"], sums["kills"]) == (2, 21.0, 14)
    assert sums["places"] == {"SIGKILL of hub": 8, "before_commit:join": 6}
    assert (sums["submissions"], sums["acknowledged"]) == (200, 170)
    assert sums["downloads"] == {"versions": 6, "bytes": 72}
    assert sums["proxy"] == {"connections": 10, "resets": 4}
    assert sums["problems"] == ["seed 2: g0/0 was lost"]


def test_the_share_of_lost_replies_is_of_what_arrived():
    # 95 of 100 arrived, the replies to 10 of these were lost.
    assert "of 95 that arrived, the reply to 10 (10.5%) was lost" in describe(totals([RUN]))


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(960)
def test_a_campaign_of_a_fixed_seed_finds_no_problem(tmp_path):
    command = [sys.executable, "-m", "tests.chaos.campaign", str(tmp_path), "--seconds=0", "--seed=7"]
    ended = subprocess.run(
        [*command, "--kills=6", "--steps=6"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=900,
    )
    (line,) = [json.loads(text) for text in (tmp_path / "summary.jsonl").read_text().splitlines()]
    assert line["problems"] == [], ended.stdout
    assert ended.returncode == 0, ended.stderr
    assert sum(line["kills"].values()) >= 1
    assert line["submissions"]["reply lost"] >= 1
    assert line["proxy"]["resets"] >= 1
    assert line["downloads"]["versions"] >= 1
    assert line["seed"] == 7
    assert list(tmp_path.glob("seed-*")) == []


def test_runs_from_before_there_was_a_proxy_still_count():
    old = {key: value for key, value in RUN.items() if key not in {"downloads", "proxy"}}
    assert totals([old, RUN])["proxy"] == {"connections": 5, "resets": 2}
