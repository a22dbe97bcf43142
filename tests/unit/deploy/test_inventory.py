"""What is wrong with an inventory, or does not fit its hosts, is named with the line to change."""

import datetime as dt
from pathlib import Path

import pytest

from hetero_rl.deploy.check import check_cluster
from hetero_rl.deploy.inventory import load_inventory
from hetero_rl.deploy.remote import commands
from hetero_rl.errors import ConfigError

GOOD = """
[cluster]
hub = "a"
config = "my.toml"

[[hosts]]
name = "a"
address = "10.0.0.1"
roles = ["hub", "trainer", "worker"]
backend = "cuda"
devices = ["0", "1"]
trainer_devices = ["0"]

[[hosts]]
name = "b"
address = "10.0.0.2"
roles = ["worker"]
workers = 2
"""


def load(tmp_path, old="", new=""):
    file = tmp_path / "cluster.toml"
    file.write_text(GOOD.replace(old, new) if old else GOOD)
    return load_inventory(file)


def test_devices_are_shared_out_and_the_trainers_are_its_own(tmp_path):
    inventory = load(tmp_path)
    assert list(inventory.host("a").worker_devices()) == [("a-0", ("1",))]
    assert list(inventory.host("b").worker_devices()) == [("b-0", ()), ("b-1", ())]
    assert inventory.hub_address == "10.0.0.1:7077"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('["0", "1"]', '["0", "0", "1"]', r"hosts\[0\] \(a\): devices names '0' 2 times"),
        (
            'trainer_devices = ["0"]',
            'trainer_devices = ["7"]',
            "trainer_devices names 7, which devices does not",
        ),
        ('trainer_devices = ["0"]', 'trainer_devices = ["0", "1"]', "the workers have none left"),
        ('trainer_devices = ["0"]\n', "", "name the trainer's own devices"),
        ('hub = "a"', 'hub = "c"', "cluster.hub is 'c', which is no host; there are: a, b"),
        ('"hub", ', "", 'is cluster.hub, but its roles lack "hub"'),
        ('name = "b"', 'name = "a"', "2 hosts have the name 'a'"),
        ("10.0.0.2", "10.0.0.1", "2 hosts have the address '10.0.0.1'"),
        ('"cuda"', '"ascend"', "trainer images exist for cpu and cuda"),
        ('roles = ["worker"]', 'roles = ["wroker"]', r"hosts\[1\].roles\[0\]"),
        ("workers = 2", "worker = 2", r"hosts\[1\].worker: Extra inputs"),
        ("[cluster]", "[cluster", "cluster.toml"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path, old, new, problem):
    with pytest.raises(ConfigError, match=problem):
        load(tmp_path, old, new)


def record(**changes):
    backend = {
        "name": "cuda",
        "device_ids": ["0", "1"],
        "problems": [],
        "missing_for_containers": {"reservation": []},
        **changes.pop("backend", {}),
    }
    return {"created_at": "2030-01-01T00:00:00+00:00", "host": {}, "backends": [backend], **changes}


def findings(tmp_path, backends=None, **changes):
    now = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    records = {"a": record(**changes), "b": record()}
    return [
        (found.host, found.problem) for found in check_cluster(load(tmp_path), records, backends or {}, now)
    ]


def test_hosts_that_fit_have_no_finding(tmp_path):
    assert findings(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"backend": {"device_ids": ["0"]}}, "devices 1 are not visible there; there are: 0"),
        ({"backend": {"name": "rocm"}}, "the backend 'cuda' is not installed there"),
        ({"host": {"hetero_rl": "9.9"}}, "hetero-rl 9.9 is installed there"),
        ({"created_at": "2030-01-01T01:00:00+00:00"}, "its clock is at least 3600 s ahead"),
        (
            {"backend": {"problems": [{"name": "old-driver", "problem": "Too old.", "advice": "Update."}]}},
            "Too old.",
        ),
    ],
)
def test_what_does_not_fit_is_found(tmp_path, changes, problem):
    ((host, found),) = findings(tmp_path, **changes)
    assert host == "a"
    assert found.startswith(problem)


def test_a_device_that_a_group_keeps_closed_is_no_mistake_of_the_inventory(tmp_path):
    closed = {
        "name": "no-device",
        "problem": "No device can be used here.",
        "advice": "/dev/kfd cannot be opened by this user: join the groups video and render",
    }
    records = {"a": record(backend={"device_ids": [], "problems": [closed]}), "b": record()}

    (found,) = check_cluster(load(tmp_path), records, {})

    assert found.change.startswith("on a: /dev/kfd cannot be opened by this user")


def test_a_port_of_the_hub_that_is_taken_is_named_with_the_line_to_change(tmp_path):
    inventory = load(tmp_path)
    taken = {"listening_ports": [22, inventory.cluster.hub_port]}
    hub = inventory.cluster.hub
    records = {host.name: record(host=taken) for host in inventory.hosts}

    found = [each for each in check_cluster(inventory, records, {}) if "port" in each.problem]

    assert [each.host for each in found if "the hub" in each.problem] == [hub]
    assert found[0].change.startswith("the line `hub_port` of [cluster]")


def test_a_host_without_a_record_says_how_to_make_one(tmp_path):
    (first, _) = check_cluster(load(tmp_path), {}, {})
    assert first.change == "on a: hetero-rl doctor --json > a.json"


def test_up_begins_with_the_hub_and_down_ends_with_it(tmp_path):
    inventory = load(tmp_path)
    up = list(commands("up", inventory, Path("out")))
    assert [command[0] for command in up] == ["ssh", "scp", "ssh"] * 2
    assert up[0][1] == "10.0.0.1"
    down = list(commands("down", inventory, Path("out")))
    assert [command[1] for command in down] == ["10.0.0.2", "10.0.0.1"]


def test_names_of_directories_cannot_become_commands(tmp_path):
    inventory = load(tmp_path, "workers = 2", 'workers = 2\ndirectory = "a; rm -rf /"')
    last = list(commands("status", inventory, Path("out"), ("b",)))[-1]
    assert last[2] == "docker compose --project-directory 'a; rm -rf /' ps"
