import json

import pytest

from hetero_rl.deploy.doctor import diagnose, doctor_record
from hetero_rl.deploy.host import Host, run_tool, version_tuple
from hetero_rl.deploy.needs import ContainerNeeds, DeviceAccess, Image, Mount
from hetero_rl.worker.backend import Backend, DeviceReport, KnownBad

CONTAINER = ContainerNeeds(
    image=Image(reference="r", python="3.12", vllm="0.23.0"),
    access={
        "nodes": DeviceAccess(
            description="",
            devices=("/dev/card{id}", "/dev/manager"),
            mounts=(Mount(path="/usr/driver"), Mount(path="/usr/tool", required=False)),
        ),
        "cdi": DeviceAccess(description="", devices=("vendor.example/card={id}",)),
    },
    default_access="nodes",
)


def backend(report=None, **fields) -> Backend:
    there = DeviceReport(available=True, devices=("Card",), ids=("0",), advice="", versions={"driver": "1.2"})
    return Backend(
        **{
            "name": "vendor",
            "vendor": "vendor",
            "description": "",
            "engines": {"vllm": "x:Y"},
            "default_engine": "vllm",
            "detect": lambda: report or there,
            "container": CONTAINER,
            "distributions": ("torch",),
            "engine_install": {"vllm": "use the image"},
        }
        | fields
    )


def examined(declared, tmp_path, *, modules=("vllm",), **versions):
    return diagnose(
        declared,
        Host(root=tmp_path),
        versions=lambda names: {name: versions[name] for name in names if name in versions},
        has_module=lambda name: name in modules,
    )


def test_a_backend_with_device_and_engine_is_usable_and_the_next_step_is_to_certify_it(tmp_path):
    diagnosis = examined(backend(), tmp_path, torch="2.10.0")

    assert diagnosis.usable
    assert diagnosis.next_step == "hetero-rl doctor --certify --backend vendor"
    assert (diagnosis.versions["driver"], diagnosis.versions["torch"]) == ("1.2", "2.10.0")


def test_a_missing_device_comes_first_and_its_advice_is_the_next_step(tmp_path):
    gone = DeviceReport(available=False, devices=(), advice="Load the driver.")

    diagnosis = examined(backend(gone), tmp_path, modules=())

    assert [problem.name for problem in diagnosis.problems] == ["no-device", "no-engine"]
    assert diagnosis.next_step.startswith("Load the driver.")


def test_a_missing_engine_says_how_it_is_installed(tmp_path):
    (problem,) = examined(backend(), tmp_path, modules=()).problems

    assert (problem.name, problem.advice) == ("no-engine", "use the image")


def test_known_bad_combinations_see_versions_of_driver_python_and_distributions(tmp_path):
    seen = {}
    known = KnownBad(
        name="clash",
        found=lambda versions: seen.update(versions) or versions["torch"] == "2.9.0",
        problem="They clash.",
        advice="Upgrade.",
    )

    diagnosis = examined(backend(known_bad=(known,)), tmp_path, torch="2.9.0")

    assert [problem.name for problem in diagnosis.problems] == ["clash"]
    assert {"driver", "python", "torch"} <= seen.keys()


def test_what_a_container_would_lack_is_listed_for_each_way_of_access(tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "card0").touch()

    diagnosis = examined(backend(), tmp_path)

    assert diagnosis.missing == {"nodes": ("/dev/manager", "/usr/driver"), "cdi": ()}


TOOLKIT = {
    "hook": DeviceAccess(description="", programs=("hook", "other")),
    "runtime": DeviceAccess(description="", runtime="vendor"),
}


def test_a_toolkit_that_is_not_installed_or_not_registered_is_named(tmp_path):
    declared = backend(container=ContainerNeeds(image=CONTAINER.image, access=TOOLKIT))
    lacking = {"hook": ("hook (a program)",), "runtime": ("runtime 'vendor' in /etc/docker/daemon.json",)}

    assert examined(declared, tmp_path).missing == lacking
    (tmp_path / "etc/docker").mkdir(parents=True)
    settings = tmp_path / "etc/docker/daemon.json"
    for damaged in ("[]", "{", '{"runtimes": []}'):
        settings.write_text(damaged)
        assert examined(declared, tmp_path).missing == lacking

    settings.write_text('{"runtimes": {"vendor": {"path": "x"}}}')
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/other").touch()
    assert examined(declared, tmp_path).missing == {"hook": (), "runtime": ()}


def test_ports_that_somebody_listens_on_are_told(tmp_path):
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/tcp").write_text(
        "  sl  local_address rem_address   st\n"
        "   0: 0100007F:1BA5 00000000:0000 0A 0\n"  # 0x1BA5 is 7077
        "   1: 0100007F:0016 0200007F:C000 01 0\n"  # a connection, not a listener
    )
    record = doctor_record([], "2026-11-30T12:00:00+00:00", Host(root=tmp_path))

    assert record["host"]["listening_ports"] == [7077]


def test_the_record_is_json_that_names_host_and_backends(tmp_path):
    record = doctor_record([examined(backend(), tmp_path)], "2026-11-30T12:00:00+00:00")

    assert json.loads(json.dumps(record)) == record
    (entry,) = record["backends"]
    assert (entry["name"], entry["usable"], entry["devices"]) == ("vendor", True, ["Card"])
    assert entry["missing_for_containers"]["nodes"] == ["/dev/card0", "/dev/manager", "/usr/driver"]
    assert record["host"]["python"].startswith("3.")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("580.82.07", (580, 82, 7)),
        ("8.2.RC1", (8, 2)),
        ("2.10.0.post4", (2, 10, 0)),
        ("v9", (9,)),
        ("", ()),
        ("none", ()),
    ],
)
def test_the_numbers_of_a_version_are_read(text, numbers):
    assert version_tuple(text) == numbers


def test_a_tool_that_is_not_there_or_fails_says_nothing():
    assert run_tool(["hetero-rl-no-such-tool"]) is None
    assert run_tool(["false"]) is None
    assert run_tool(["echo", "text"]) == "text\n"


def test_paths_of_a_machine_are_sorted_by_their_numbers(tmp_path):
    (tmp_path / "dev").mkdir()
    for name in ("card10", "card2", "card1"):
        (tmp_path / "dev" / name).write_text(name)
    host = Host(root=tmp_path)

    assert host.glob("/dev", "card*") == ("/dev/card1", "/dev/card2", "/dev/card10")
    assert host.read("/dev/card2") == "card2"
    assert not host.read("/dev/none")
    assert host.exists("/dev/card1")
    assert host.usable("/dev/card1")
