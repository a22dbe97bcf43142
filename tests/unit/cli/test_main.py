import json
import subprocess
import sys

import pytest

import hetero_rl
from hetero_rl.worker.backend import Backend, DeviceReport


@pytest.fixture
def install(monkeypatch):
    """Pretends that exactly one backend is installed, with or without a device."""

    def _install(*devices: str) -> None:
        backend = Backend(
            name="npu",
            vendor="ascend",
            description="An accelerator.",
            engines={"vllm": "m:C", "transformers": "m:D"},
            default_engine="vllm",
            detect=lambda: DeviceReport(available=bool(devices), devices=devices, advice="Load the driver."),
        )
        for module in ("hetero_rl.worker.backend", "hetero_rl.cli.backends"):
            monkeypatch.setattr(f"{module}.installed_backends", lambda: {"npu": lambda: backend})

    return _install


def test_version_names_the_package(cli):
    assert cli("version").stdout.startswith(f"hetero-rl {hetero_rl.__version__} ")


def test_no_arguments_show_the_help(cli):
    assert "Usage:" in cli().output


def test_backends_shows_engines_and_devices(cli, install):
    install("Ascend 910B")

    line = cli("backends").stdout.splitlines()[1].split()

    assert line == ["npu", "ascend", "transformers,", "vllm", "(default)", "Ascend", "910B"]


def test_backends_says_what_to_do_when_no_device_is_found(cli, install):
    install()

    assert "none Load the driver." in cli("backends").stdout


def test_backends_prints_json_on_request(cli, install):
    install("Ascend 910B")

    (record,) = json.loads(cli("backends", "--json").stdout)

    assert (record["name"], record["available"], record["devices"]) == ("npu", True, ["Ascend 910B"])


@pytest.mark.parametrize(
    "arguments", [["--help"], ["status", "--help"], ["status", "--run", "/nowhere"], ["worker", "--help"]]
)
def test_the_command_line_loads_no_torch(arguments):
    program = (
        "import sys; sys.argv[1:] = " + repr(arguments) + "\n"
        "from hetero_rl.cli.main import run\n"
        "try:\n    run()\n"
        "except SystemExit:\n    pass\n"
        "print('heavy:', [name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert finished.stdout.splitlines()[-1] == "heavy: []"
