"""Compose files and Dockerfiles: valid by the tools of their makers, and true to what the backend packages declare."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hetero_rl.cli.cluster import any_host_text
from hetero_rl.deploy.certificates import certificate_hosts
from hetero_rl.deploy.compose import compose_for_any_host, compose_for_host, env_for_host, to_yaml
from hetero_rl.deploy.inventory import Host, load_inventory
from hetero_rl.deploy.render import render
from hetero_rl.errors import ConfigError
from hetero_rl.wire.bundle import read_bundle
from hetero_rl.wire.roles import Role
from hetero_rl.worker.backend import Backend

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
# The program itself: what pip puts beside Python starts it and ends with 0 whatever came of it.
COMPOSE = Path(importlib.util.find_spec("compose").origin).parent / "docker-compose"
VENDORS = ("cuda", "rocm", "ascend")

INVENTORY = """
[cluster]
hub = "train-0"
config = "my.toml"

[[hosts]]
name = "train-0"
address = "10.0.0.5"
roles = ["hub", "trainer", "monitoring"]
backend = "cuda"
devices = ["0", "1"]
user = "1234:5678"

[[hosts]]
name = "ascend-0"
address = "10.0.1.9"
roles = ["relay", "worker"]
backend = "ascend"
devices = ["0", "1", "2", "3"]
devices_per_worker = 2

[[hosts]]
name = "amd-0"
address = "amd.example"
roles = ["worker"]
backend = "rocm"
access = "cdi"
devices = ["0"]

[[hosts]]
name = "laptop"
address = "10.0.0.9"
roles = ["worker"]
workers = 2
"""


def vendor_backends():
    """The vendors' declarations, from their source: their packages need not be installed here."""
    found = {}
    for vendor in VENDORS:
        package = ROOT / "backends" / vendor
        sys.path.insert(0, str(package))
        try:
            module = __import__(f"hetero_rl_backend_{vendor}")
        finally:
            sys.path.remove(str(package))
        found[vendor] = module.BACKEND
    return found


@pytest.fixture(scope="module")
def backends():
    from hetero_rl_backend_cpu import BACKEND

    return {"cpu": BACKEND, **vendor_backends()}


@pytest.fixture
def inventory(tmp_path):
    file = tmp_path / "cluster.toml"
    file.write_text(INVENTORY)
    (tmp_path / "my.toml").write_text("[run]\nsteps = 3\n")
    return load_inventory(file)


def run(*command):
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, timeout=90
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_committed_file_is_what_the_backends_declare(backends):
    text = (ROOT / "docker" / "compose.yaml").read_text()
    assert yaml.safe_load(text) == json.loads(json.dumps(compose_for_any_host(backends)))


def test_the_committed_file_is_valid_in_every_profile():
    file = ROOT / "docker" / "compose.yaml"
    run(COMPOSE, "-f", file, "--profile", "*", "config", "--quiet")
    run(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", file)


def test_a_file_that_is_wrong_is_found_by_both_tools(tmp_path):
    file = tmp_path / "compose.yaml"
    file.write_text("services: {hub: {image: a, volums: []}}")
    with pytest.raises(AssertionError, match="volums"):
        run(COMPOSE, "-f", file, "config", "--quiet")
    with pytest.raises(AssertionError, match="volums"):
        run(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", file)


@pytest.mark.parametrize("name", ["train-0", "ascend-0", "amd-0", "laptop"])
def test_every_rendered_file_is_valid(inventory, backends, tmp_path, name):
    file = tmp_path / "compose.yaml"
    file.write_text(to_yaml(compose_for_host(inventory, inventory.host(name), backends), name))
    run(COMPOSE, "-f", file, "config", "--quiet")
    run(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", file)


def test_dockerfiles_keep_the_rules():
    files = sorted((ROOT / "docker").glob("*.Dockerfile"))
    assert len(files) == 7
    run(BIN / "hadolint", "--config", ROOT / "docker" / "hadolint.yaml", *files)


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_vendors_dockerfile_builds_on_the_declared_image(backends, vendor):
    text = (ROOT / "docker" / f"worker-{vendor}.Dockerfile").read_text()
    (base,) = re.findall(r"^ARG BASE=(.+)$", text, re.MULTILINE)
    assert base == backends[vendor].container.image.reference


def test_a_worker_gets_the_devices_that_its_vendor_declares(inventory, backends):
    services = compose_for_host(inventory, inventory.host("ascend-0"), backends)["services"]
    second = services["worker-ascend-0-1"]
    assert second["devices"] == [
        "/dev/davinci2",
        "/dev/davinci3",
        *(f"/dev/{name}" for name in ("davinci_manager", "devmm_svm", "hisi_hdc")),
    ]
    assert "/usr/local/dcmi:/usr/local/dcmi:ro" in second["volumes"]
    assert "set_env.sh" in second["environment"]["HETERO_RL_SETUP"]


def test_the_way_of_access_is_the_inventorys_to_choose(inventory, backends):
    services = compose_for_host(inventory, inventory.host("amd-0"), backends)["services"]
    assert services["worker-amd-0-0"]["devices"] == ["amd.com/gpu=0"]


def test_a_trainer_reserves_its_cards(inventory, backends):
    services = compose_for_host(inventory, inventory.host("train-0"), backends)["services"]
    reservation = services["trainer"]["deploy"]["resources"]["reservations"]["devices"]
    assert reservation == [{"driver": "nvidia", "device_ids": ["0", "1"], "capabilities": ["gpu"]}]


def test_workers_behind_a_relay_use_it_and_everybody_dials_the_hub(inventory, backends):
    services = compose_for_host(inventory, inventory.host("ascend-0"), backends)["services"]
    command = services["worker-ascend-0-0"]["command"]
    assert command[command.index("--relay") + 1] == "relay:7078"
    assert command[command.index("--hub") + 1] == "10.0.0.5:7077"


def test_rendering_writes_each_host_its_bundle_and_again_changes_no_credential(inventory, backends, tmp_path):
    out = tmp_path / "out"
    render(inventory, tmp_path / "cluster.toml", out, backends, ROOT / "docker" / "monitoring")
    bundle = out / "ascend-0" / "credentials" / "ascend-0.credentials"
    assert read_bundle(bundle).role is Role.WORKER
    assert not (out / "ascend-0" / "credentials" / "hub.credentials").exists()
    assert not list(out.glob("*/credentials/*.key"))
    assert (out / "train-0" / "runs" / "config.toml").read_text() == "[run]\nsteps = 3\n"
    before = bundle.read_bytes()
    render(inventory, tmp_path / "cluster.toml", out, backends, ROOT / "docker" / "monitoring")
    assert bundle.read_bytes() == before


def test_a_hub_that_moved_gets_a_certificate_for_its_new_address(inventory, backends, tmp_path):
    out, source = tmp_path / "out", tmp_path / "cluster.toml"
    render(inventory, source, out, backends)
    host = inventory.host(inventory.cluster.hub)
    moved = host.model_copy(update={"address": "10.9.9.9"})
    others = tuple(other for other in inventory.hosts if other.name != host.name)

    render(inventory.model_copy(update={"hosts": (moved, *others)}), source, out, backends)

    bundle = read_bundle(out / host.name / "credentials" / "hub.credentials")
    assert "10.9.9.9" in certificate_hosts(bundle.certificate)
    assert host.address not in certificate_hosts(bundle.certificate)


def test_every_container_starts_a_command_that_exists(inventory, backends):
    from typer.main import get_command

    from hetero_rl.cli.main import app

    commands = get_command(app).commands
    for host in inventory.hosts:
        for name, service in compose_for_host(inventory, host, backends)["services"].items():
            if name in {"prometheus", "grafana"}:
                continue
            known = {
                option for parameter in commands[service["command"][0]].params for option in parameter.opts
            }
            flags = {part.partition("=")[0] for part in service["command"] if part.startswith("--")}
            assert flags <= known, service["command"]


def test_the_text_says_that_it_is_written(backends, monkeypatch):
    monkeypatch.setattr("hetero_rl.cli.cluster._backends", lambda: backends)
    assert any_host_text() == (ROOT / "docker" / "compose.yaml").read_text()


def test_declarations_are_those_of_backends(backends):
    assert all(isinstance(backend, Backend) for backend in backends.values())
    assert isinstance(Host(name="a", address="a", roles=("worker",)), Host)


def test_every_service_of_a_rendered_host_answers_prometheus_under_a_name_that_it_asks_for(
    inventory, backends
):
    asked = yaml.safe_load((ROOT / "docker" / "monitoring" / "prometheus.yml").read_text())["scrape_configs"]
    names = {name for job in asked for found in job.get("dns_sd_configs", ()) for name in found["names"]} | {
        "hub"
    }
    for host in inventory.hosts:
        for name, service in compose_for_host(inventory, host, backends)["services"].items():
            if name in {"prometheus", "grafana"}:
                continue
            aliases = service.get("networks", {}).get("default", {}).get("aliases", ())
            assert {name, *aliases} & names, name
            assert "--metrics-listen" in service["command"]


def test_what_listens_is_asked_by_its_own_health_service(inventory, backends):
    hub = compose_for_host(inventory, inventory.host("train-0"), backends)["services"]["hub"]
    relay = compose_for_host(inventory, inventory.host("ascend-0"), backends)["services"]["relay"]
    assert hub["healthcheck"]["test"][3:5] == ["--hub", "127.0.0.1:7077"]
    assert relay["healthcheck"]["test"][3:5] == ["--hub", "127.0.0.1:7078"]


def test_workers_wait_for_the_relay_beside_them(inventory, backends):
    services = compose_for_host(inventory, inventory.host("ascend-0"), backends)["services"]
    assert services["worker-ascend-0-0"]["depends_on"] == {
        "relay": {"condition": "service_healthy", "required": False}
    }


def test_a_host_with_the_role_gets_the_files_of_prometheus_and_what_it_shows_the_others(
    inventory, backends, tmp_path
):
    out = tmp_path / "out"
    render(inventory, tmp_path / "cluster.toml", out, backends, ROOT / "docker" / "monitoring")
    host = out / "train-0"
    assert (host / "monitoring" / "prometheus.yml").exists()
    assert (host / "monitoring" / "grafana" / "dashboards" / "hetero-rl.json").exists()
    assert (host / "credentials" / "prometheus" / "key.pem").stat().st_mode & 0o777 == 0o640
    assert not (out / "ascend-0" / "monitoring").exists()
    services = yaml.safe_load((host / "compose.yaml").read_text())["services"]
    assert "./credentials/prometheus:/credentials/prometheus:ro" in services["prometheus"]["volumes"]


def test_monitoring_files_that_are_not_there_are_asked_for(inventory, backends, tmp_path):
    with pytest.raises(ConfigError, match="name docker/monitoring of a checkout with --monitoring"):
        render(inventory, tmp_path / "cluster.toml", tmp_path / "out", backends, tmp_path / "none")


def test_each_host_has_settings_of_its_own(inventory):
    assert "HETERO_RL_UID=1234\nHETERO_RL_GID=5678\n" in env_for_host(
        inventory, inventory.host("train-0"), 1, 2
    )
    assert "HETERO_RL_UID=1\nHETERO_RL_GID=2\n" in env_for_host(inventory, inventory.host("ascend-0"), 1, 2)


def test_the_hub_has_a_directory_for_its_run_even_without_a_trainer(backends, tmp_path):
    file = tmp_path / "cluster.toml"
    file.write_text(
        '[cluster]\nhub = "a"\nconfig = "my.toml"\n'
        '[[hosts]]\nname = "a"\naddress = "a"\nroles = ["hub"]\n'
        '[[hosts]]\nname = "b"\naddress = "b"\nroles = ["trainer", "worker"]\n'
    )
    (tmp_path / "my.toml").write_text("")
    render(load_inventory(file), file, tmp_path / "out", backends)
    assert (tmp_path / "out" / "a" / "runs").is_dir()
