"""docker/compose.yaml as it is, profile `cpu`: built without a network, healthy, trained to the end, stopped, and gone."""

import json

import pytest

from tests.compose.engine import leftovers
from tests.compose.journal import problems

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STEPS = 6
NETWORKS_OF_THE_ENGINE = {"bridge", "host", "none"}
HUB, TRAINER, WORKER = (f"hetero-rl-{service}-1" for service in ("hub", "trainer-cpu", "worker-cpu"))


@pytest.fixture
def stack(first_host, checkout, settings, tmp_path):
    """Calls docker-compose with the committed file; its own variables name the settings of a shorter run."""
    configs = settings(tmp_path / "configs" / "short.toml", STEPS).parent
    files = ("-f", checkout / "docker" / "compose.yaml", "--profile", "cpu")
    env = {
        "HETERO_RL_CONFIG_DIR": str(configs),
        "HETERO_RL_CONFIG": "/configs/short.toml",
        "HETERO_RL_WORKER_THREADS": "1",
    }

    def call(*arguments, **options):
        return first_host.compose(*files, *arguments, env=env, **options)

    yield call
    call("down", "--volumes", "--timeout", "30")


def test_the_cpu_profile_comes_up_healthy_trains_to_the_end_and_leaves_nothing(
    first_host, stack, wait_for_end, figures, tmp_path
):
    stack("up", "--detach", "--no-build")
    wait_for_end(first_host, TRAINER, HUB, WORKER)
    wait_for_end(first_host, WORKER, HUB)

    # The trainer waited for a healthy hub, and the hub serves on.
    hub = first_host.inspect(HUB)
    assert hub["State"]["Health"]["Status"] == "healthy", hub["State"]["Health"]
    assert hub["RestartCount"] == 0
    assert first_host.docker("exec", HUB, "id", "--user").strip() == "10001"
    status = json.loads(
        first_host.docker(
            *("exec", HUB, "hetero-rl", "status", "--hub", "127.0.0.1:7077", "--json"),
            *("--credentials", "/credentials/trainer.credentials"),
        )
    )
    assert status["step"] == STEPS, status

    # SIGTERM reaches the hub and drains it.
    stack("stop", "hub")
    assert first_host.inspect(HUB)["State"]["ExitCode"] == 0
    first_host.docker("cp", f"{HUB}:/runs/default", tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records][-1] == STEPS
    assert (
        problems(tmp_path / "run" / "hub" / "journal.sqlite", steps=STEPS, samples_per_step=8, max_lag=1)
        == []
    )

    stack("down", "--volumes", "--timeout", "30")
    assert first_host.docker("ps", "--all", "--quiet").split() == []
    assert first_host.docker("volume", "ls", "--quiet").split() == []
    assert set(first_host.docker("network", "ls", "--format", "{{.Name}}").split()) == NETWORKS_OF_THE_ENGINE


def test_the_hub_image_has_neither_torch_nor_numpy(first_host):
    program = (
        "import importlib.util as u; print([n for n in ('torch', 'numpy', 'transformers') if u.find_spec(n)])"
    )
    image = ("--rm", "--entrypoint", "/opt/hetero-rl/bin/python")
    assert first_host.docker("run", *image, "hetero-rl/hub:0.1.0", "-c", program).strip() == "[]"
    assert "torch" in first_host.docker("run", *image, "hetero-rl/worker-cpu:0.1.0", "-c", program)


def test_trainer_and_worker_share_the_layer_of_torch(first_host):
    layers = [
        json.loads(first_host.docker("image", "inspect", f"hetero-rl/{role}:0.1.0"))[0]["RootFS"]["Layers"]
        for role in ("trainer-cpu", "worker-cpu")
    ]
    # The base, the directory, the files, and what was installed.
    assert layers[0][:4] == layers[1][:4]


def test_an_engine_that_is_closed_leaves_no_process_mount_namespace_or_file(engines, with_base):
    engine = engines("gone")
    engine.docker("run", "--detach", "--name", "sleeper", with_base(engine), "sleep", "3600")
    assert leftovers(engine) != []
    engine.close()
    assert leftovers(engine) == []
