"""What a person is told to type on another machine."""

import pytest

from hetero_rl.config import load_config
from hetero_rl.launch.plan import planned_workers, visible_devices
from hetero_rl.launch.remote import is_loopback, remote_instructions, worker_command
from hetero_rl.worker.backend import Backend, DeviceReport


def instructions(address, *overrides):
    config = load_config(overrides=["inference.backends=['ascend']", *overrides])
    return remote_instructions(config, planned_workers(config), address)


def test_a_hub_on_loopback_is_reached_through_a_tunnel():
    lines = instructions("127.0.0.1:4242")

    assert "ssh -N -R 4242:127.0.0.1:4242 HOST" in lines[1]
    assert lines[2] == (
        "  there: hetero-rl worker --hub 127.0.0.1:4242 --infer-backend ascend --name ascend-0"
    )


def test_with_credentials_the_bundle_is_issued_copied_and_named(tmp_path):
    lines = instructions("10.0.0.5:7077", f"security.credentials={tmp_path}/trainer.credentials")

    issue, start = lines[1:]
    assert issue == "  here:  hetero-rl certs issue ascend-0   then copy certs/ascend-0.credentials to HOST"
    assert "--hub 10.0.0.5:7077 --infer-backend ascend --name ascend-0" in start
    assert start.endswith(" --credentials ascend-0.credentials")


def test_an_address_that_listens_everywhere_is_named_as_this_machine(monkeypatch):
    monkeypatch.setattr("socket.getfqdn", lambda: "train.example")

    assert "--hub train.example:7077" in instructions("0.0.0.0:7077")[-1]
    assert "--hub train.example:7077" in instructions("[::]:7077")[-1]
    assert (
        "--hub [2001:db8::1]:7077".replace("[", "'[").replace("7077", "7077'")
        in instructions("[2001:db8::1]:7077")[-1]
    )


def test_settings_that_differ_from_the_defaults_go_along_but_no_path_of_this_machine():
    config = load_config(
        overrides=[
            "inference.worker.dtype=bfloat16",
            "inference.worker.threads=4",
            "inference.worker.model_path=/models/mine",
            "inference.fleet=[{backend = 'cpu', worker = {emulate = 'bf16'}}]",
        ]
    )
    (worker,) = planned_workers(config)

    assert worker_command(config, worker, "h:1") == (
        "hetero-rl worker --hub h:1 --infer-backend cpu --name cpu-bf16-0 "
        "--set inference.worker.threads=4 --set 'inference.worker.dtype=\"bfloat16\"' "
        "--set 'inference.worker.emulate=\"bf16\"'"
    )


@pytest.mark.parametrize(
    ("address", "loopback"),
    [("127.0.0.1:1", True), ("localhost:1", True), ("[::1]:1", True), ("10.0.0.1:1", False), ("h:1", False)],
)
def test_loopback_is_recognised(address, loopback):
    assert is_loopback(address) is loopback


def test_workers_of_a_backend_are_numbered_over_all_members_and_named_by_member():
    config = load_config(
        overrides=["inference.fleet=[{backend = 'cpu', workers = 2}, {backend = 'cpu', name = 'slow'}]"]
    )

    assert [(w.name, w.backend, w.index, w.label) for w in planned_workers(config)] == [
        ("cpu-0", "cpu", 0, "cpu"),
        ("cpu-1", "cpu", 1, "cpu"),
        ("slow-0", "cpu", 2, "cpu"),
    ]


def test_an_emulation_for_all_is_part_of_every_label():
    config = load_config(overrides=["inference.worker.emulate=bf16"])

    assert [worker.label for worker in planned_workers(config)] == ["cpu-emulating-bf16"]


@pytest.mark.parametrize(
    ("ids", "workers", "shares"),
    [
        (("0", "1", "2", "3"), 2, ["0,1", "2,3"]),
        (("0", "1", "2"), 2, ["0", "1"]),
        (("0",), 2, ["0", "0"]),
        (("0", "1"), 1, [None]),
        ((), 2, [None, None]),
    ],
)
def test_workers_of_one_host_share_its_devices_evenly(ids, workers, shares):
    report = DeviceReport(available=True, devices=(), advice="")
    backend = Backend(
        name="b",
        vendor="v",
        description="",
        engines={},
        default_engine="",
        detect=lambda: report,
        visible_devices="VISIBLE",
    )

    found = [visible_devices(backend, ids, index, workers).get("VISIBLE") for index in range(workers)]

    assert found == shares


def test_the_engine_that_was_chosen_is_part_of_the_command():
    command = worker_command(
        config := load_config(overrides=["inference.worker.engine=transformers"]),
        planned_workers(config)[0],
        "h:1",
    )

    assert "--set 'inference.worker.engine=\"transformers\"'" in command
