"""What was acknowledged survives a power cut, which leaves only what was synced."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.power_cut import restore, snapshot, unavailable

ROOT = Path(__file__).parents[2]


def test_only_what_was_synced_survives(tmp_path):
    root, shadow = tmp_path / "run", tmp_path / "shadow"
    (root / "kept").mkdir(parents=True)
    (root / "kept" / "old").write_text("synced")
    snapshot(root, shadow)
    (root / "kept" / "old").write_text("changed")
    (root / "kept" / "new").write_text("never synced")
    (root / "made").mkdir()
    restore(root, shadow)
    assert sorted(path.name for path in root.rglob("*")) == ["kept", "old"]
    assert (root / "kept" / "old").read_text() == "synced"


@pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "a C compiler is there")
@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(960)
def test_power_cuts_lose_nothing_that_was_acknowledged(tmp_path):
    directory = tmp_path / "site"
    command = [sys.executable, "-m", "tests.chaos.power_cut", str(directory), "--cuts=3", "--steps=4"]
    ended = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "problems: 0" in ended.stdout
    shutil.rmtree(directory)
