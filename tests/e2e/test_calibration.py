"""`hetero-rl calibrate` over a hub and a worker of its own."""

import json

import pytest

from hetero_rl.reports.inspection import broken_promises


@pytest.mark.timeout(600)
def test_a_backend_is_calibrated_over_the_protocol_and_known_afterwards(
    here, config_file, tmp_path, monkeypatch
):
    store = tmp_path / "store"
    monkeypatch.setenv("HETERO_RL_CALIBRATIONS", str(store))
    arguments = ("--config", config_file, "--prompts", 4, "--tokens", 16, "--set", "trainer.threads=1")

    printed = here("calibrate", "--backends", "cpu:threads=1", *arguments, "--out", tmp_path / "out")

    record = json.loads((tmp_path / "out" / "calibration.json").read_text())
    (pair,) = record["pairs"]
    assert record["verdict"] == "ok"
    assert pair["summary"]["mean_absolute"] < 1e-5
    assert pair["summary"]["tokens"] > 200
    assert pair["behaviour"]["returned"]["maximum"] == 0
    assert {source["source"] for source in pair["sources"]} == {"text", "trainer", "cpu:threads=1"}
    assert printed.startswith("ok: ")
    assert broken_promises((tmp_path / "out" / "calibration.html").read_text()) == []
    assert [path.stem for path in store.glob("*/*.json")] == [pair["numerics_id"]]
