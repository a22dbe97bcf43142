import json

import pytest

from hetero_rl.certify.record import read_certification
from hetero_rl.certify.runner import CHECKS
from hetero_rl.worker.backend import Backend, DeviceReport


@pytest.fixture
def install(monkeypatch):
    """Pretends that exactly these backends are installed; each sees a device or not."""

    def _install(**available: bool) -> None:
        def declared(name: str) -> Backend:
            report = DeviceReport(available=available[name], devices=("Card",), advice="Load the driver.")
            return Backend(
                name=name,
                vendor="x",
                description="a test",
                engines={"scripted": "hetero_rl.worker.engines.scripted:ScriptedEngine", "vllm": "x:Y"},
                default_engine="scripted",
                detect=lambda: report,
            )

        loaders = {name: lambda name=name: declared(name) for name in available}
        for module in ("hetero_rl.worker.backend", "hetero_rl.cli.doctor"):
            monkeypatch.setattr(f"{module}.installed_backends", lambda: loaders)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "vllm" else None)

    return _install


def test_each_backend_is_listed_with_what_to_do_next(cli, install):
    install(one=True, two=False)

    result = cli("doctor")

    assert result.exit_code == 0
    assert "one  a test: usable here" in result.stdout
    assert "two  a test: not usable here" in result.stdout
    assert "Load the driver." in result.stdout
    assert "hetero-rl doctor --certify --backend one" in result.stdout


def test_a_named_backend_that_is_not_usable_ends_with_exit_code_1(cli, install):
    install(one=True, two=False)

    assert cli("doctor", "--backend", "one").exit_code == 0
    assert cli("doctor", "--backend", "two").exit_code == 1


def test_json_is_one_record_for_other_programs(cli, install):
    install(one=True)

    record = json.loads(cli("doctor", "--json").stdout)

    assert record["schema"] == "hetero-rl/doctor"
    assert [(entry["name"], entry["usable"]) for entry in record["backends"]] == [("one", True)]


def test_certifying_needs_a_backend_and_a_device(cli, install):
    install(one=False)

    unnamed, absent = cli("doctor", "--certify"), cli("doctor", "--certify", "--backend", "one")

    assert (unnamed.exit_code, absent.exit_code) == (2, 1)
    assert "name the backend to certify with --backend NAME" in unnamed.stderr
    assert "Load the driver." in absent.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_certifying_runs_the_contract_and_records_an_emulated_backend_under_its_label(cli, tmp_path):
    arguments = ("--set", "inference.worker.emulate=int8-weights", "--set", "inference.worker.threads=1")
    result = cli("doctor", "--certify", "--backend", "cpu", "--out", tmp_path, *arguments)

    record = read_certification(tmp_path / "certification-cpu-emulating-int8-weights-transformers.json")
    assert result.exit_code == 0, result.stdout
    assert (record["passed"], record["emulated"]) == (True, True)
    assert record["numerics"]["knobs"]["emulate"] == "int8-weights"
    assert {check["name"] for check in record["checks"]} == set(CHECKS)
    assert (tmp_path / "certification-cpu-emulating-int8-weights-transformers.html").exists()
