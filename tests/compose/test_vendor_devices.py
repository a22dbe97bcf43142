"""What a container of each vendor is given, on an engine whose host has fake devices: the wiring, and nothing of the vendors' software.

The files are those that `hetero-rl cluster render` writes. In place of the vendor's image a small one looks around: device nodes, mounts, groups,
rights and variables, compared with a container that is given nothing. What it sees beyond that must be what the backend package declares.
"""

import json
import os
import stat
from pathlib import Path

import pytest
import yaml

from hetero_rl.deploy.compose import to_yaml
from hetero_rl.deploy.inventory import load_inventory
from hetero_rl.deploy.render import render
from hetero_rl.worker.backend import find_backend
from tests.compose.engine import EngineError

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

VENDORS = ("cuda", "rocm", "ascend")
RENDER_GROUP = 993
NODES = ["kfd", "dri/card0", "dri/renderD128", "dri/renderD129"]
NODES += [*(f"davinci{number}" for number in range(4)), "davinci_manager", "devmm_svm", "hisi_hdc"]
FILES = {
    "usr/local/Ascend/driver/lib64/libdrvdsmi_host.so": "a library",
    "usr/local/Ascend/driver/version.info": "Version=25.2.0",
    "usr/local/dcmi/libdcmi.so": "a library",
    "etc/ascend_install.info": "Driver_Install_Path_Param=/usr/local/Ascend",
}
# Nodes that every container has, and what the host's /dev needs for an engine to make them.
USUAL_NODES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
}

# Only this engine sees them: fake nodes in a /dev of its own, driver files in layers over /usr/local and /etc.
PREPARE = """
mount --bind {fake}/dev /dev
mkdir -p /dev/pts /dev/shm /dev/mqueue
mount -t devpts -o newinstance,ptmxmode=0666 devpts /dev/pts
ln -sf pts/ptmx /dev/ptmx
ln -sfn /proc/self/fd /dev/fd
for place in usr/local etc; do
    mkdir -p {fake}/upper/$place {fake}/work/$place
    mount -t overlay overlay -o "lowerdir={fake}/$place:/$place,upperdir={fake}/upper/$place,workdir={fake}/work/$place" /$place
done
"""

LOOK = """
import json, os, stat
nodes = sorted(
    os.path.join(where, name) for where, _, names in os.walk("/dev") for name in names
    if stat.S_ISCHR(os.lstat(os.path.join(where, name)).st_mode)
)
mounts = {line.split()[4]: line.split()[5] for line in open("/proc/self/mountinfo")}
status = dict(line.rstrip().split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
shared = os.statvfs("/dev/shm")
print(json.dumps({
    "nodes": nodes,
    "mounts": mounts,
    "groups": sorted(os.getgroups()),
    "environment": dict(os.environ),
    "seccomp": status["Seccomp"],
    "new_privileges": status["NoNewPrivs"],
    "capabilities": int(status["CapEff"], 16),
    "ipc": os.readlink("/proc/self/ns/ipc"),
    "shm": shared.f_blocks * shared.f_frsize,
    "files": [path for path in %s if os.path.exists(path)],
}))
""" % [f"/{path}" for path in FILES]

HOOK = """#!/bin/sh
# Stands for the NVIDIA Container Toolkit's: notes that it was called for a container.
{ echo "$1"; cat; echo; } >> "%(log)s"
"""
INVENTORY = """
[cluster]
hub = "train-0"
config = "my.toml"

[[hosts]]
name = "train-0"
address = "10.0.0.5"
roles = ["hub", "trainer"]

[[hosts]]
name = "cuda-0"
address = "10.0.0.6"
roles = ["worker"]
backend = "cuda"
devices = ["1", "3"]
devices_per_worker = 2

[[hosts]]
name = "rocm-0"
address = "10.0.0.7"
roles = ["worker"]
backend = "rocm"
devices = ["0", "1"]
devices_per_worker = 2

[[hosts]]
name = "ascend-0"
address = "10.0.0.8"
roles = ["worker"]
backend = "ascend"
devices = ["1", "2"]
devices_per_worker = 2

[[hosts]]
name = "ascend-1"
address = "10.0.0.9"
roles = ["worker"]
backend = "ascend"
access = "runtime"
devices = ["0", "3"]
devices_per_worker = 2
"""


@pytest.fixture(scope="module")
def fake_host(tmp_path_factory):
    """A directory with the devices, driver files and vendor programs of a host that has all three vendors' cards."""
    fake = tmp_path_factory.mktemp("fake")
    for directory in (fake / "dev" / "dri", fake / "usr" / "local", fake / "etc", fake / "programs"):
        directory.mkdir(parents=True)
    for name, (major, minor) in USUAL_NODES.items():
        os.mknod(fake / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
        (fake / "dev" / name).chmod(0o666)
    for name in NODES:
        os.mknod(fake / "dev" / name, 0o660 | stat.S_IFCHR, os.makedev(1, 3))
        os.chown(fake / "dev" / name, 0, RENDER_GROUP)
    for name, text in FILES.items():
        (fake / name).parent.mkdir(parents=True, exist_ok=True)
        (fake / name).write_text(text)
    _program(fake / "programs" / "nvidia-container-runtime-hook", HOOK % {"log": fake / "hook.log"})
    _program(
        fake / "programs" / "ascend-docker-runtime",
        f'#!/bin/sh\n# Stands for the Ascend Docker Runtime.\necho "$@" >> {fake}/runtime.log\nexec runc "$@"\n',
    )
    return fake


def _program(path, text):
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture(scope="module")
def engine(engines, with_base, fake_host):
    engine = engines(
        "dev",
        programs=fake_host / "programs",
        prepare=PREPARE.format(fake=fake_host),
        flags=("--add-runtime", f"ascend={fake_host}/programs/ascend-docker-runtime"),
    )
    with_base(engine)
    return engine


@pytest.fixture(scope="module")
def image(engine, tmp_path_factory):
    """In place of a vendor's: it knows the group `render` as AMD's do, and looks around."""
    context = tmp_path_factory.mktemp("image")
    (context / "look.py").write_text(LOOK)
    (context / "Dockerfile").write_text(
        f"FROM {BASE_IMAGE}\nRUN groupadd --gid {RENDER_GROUP} render\nCOPY look.py /look.py\n"
        'ENTRYPOINT ["python3", "/look.py"]\n'
    )
    (context / "compose.yaml").write_text(
        "services: {look: {build: {context: ., network: none}, image: look, network_mode: none}}\n"
    )
    engine.compose("-f", context / "compose.yaml", "build")
    return "look"


BASE_IMAGE = "hetero-rl-test-base"


@pytest.fixture(scope="module")
def backends():
    return {name: find_backend(name) for name in ("cpu", *VENDORS)}


@pytest.fixture(scope="module")
def rendered(backends, tmp_path_factory):
    directory = tmp_path_factory.mktemp("cluster")
    (directory / "cluster.toml").write_text(INVENTORY)
    (directory / "my.toml").write_text("")
    inventory = load_inventory(directory / "cluster.toml")
    render(inventory, directory / "cluster.toml", directory / "out", backends)
    return directory / "out"


@pytest.fixture(scope="module")
def look(engine, image, rendered):
    """Starts the worker of a rendered host and returns what it sees."""

    def start(host, **changes):
        compose = yaml.safe_load((rendered / host / "compose.yaml").read_text())
        service = compose["services"][f"worker-{host}-0"]
        service.update(image=image, command=[], restart="no", **changes)
        file = rendered / host / "look.yaml"
        file.write_text(to_yaml(compose, "The rendered file, with another image."))
        try:
            engine.compose("-f", file, "up", "--detach")
            container = f"hetero-rl-worker-{host}-0-1"
            assert engine.docker("wait", container).strip() == "0", engine.docker("logs", container)
            return json.loads(engine.docker("logs", container).splitlines()[-1])
        finally:
            engine.compose("-f", file, "down", "--volumes")

    return start


@pytest.fixture(scope="module")
def nothing(engine, image):
    """What a container sees that is given nothing."""
    return json.loads(engine.docker("run", "--rm", "--network", "none", "--init", image).splitlines()[-1])


def added(seen, nothing, what):
    return set(seen[what]) - set(nothing[what])


def mounted(seen, nothing):
    """Mount points of the host's files, with whether they can be written to."""
    own = {"/credentials", "/root/.cache"}
    return {
        path: options.split(",")[0]
        for path, options in seen["mounts"].items()
        if path not in nothing["mounts"] and path not in own and not path.startswith("/dev/")
    }


def test_ascend_nodes_and_driver_files_are_those_declared(look, nothing, backends):
    seen = look("ascend-0")
    needs = backends["ascend"].container
    access = needs.access["nodes"]
    assert added(seen, nothing, "nodes") == set(access.devices_for(["1", "2"]))
    assert mounted(seen, nothing) == {mount.path: "ro" for mount in access.mounts if mount.required}
    assert seen["files"] == [f"/{path}" for path in FILES]
    assert seen["environment"]["HETERO_RL_SETUP"] == ":".join(needs.image.setup)
    assert seen["shm"] == 2**30


def test_a_missing_ascend_node_is_named_by_the_engine(look):
    with pytest.raises(EngineError, match="/dev/davinci9"):
        look("ascend-0", devices=["/dev/davinci9"])


def test_the_ascend_runtime_gets_the_devices_as_a_variable(look, nothing, fake_host):
    (fake_host / "runtime.log").write_text("")
    seen = look("ascend-1")
    assert seen["environment"]["ASCEND_VISIBLE_DEVICES"] == "0,3"
    assert "create" in (fake_host / "runtime.log").read_text()
    assert added(seen, nothing, "nodes") == set()


def test_rocm_nodes_groups_and_rights_are_those_declared(look, nothing, backends):
    seen = look("rocm-0")
    needs = backends["rocm"].container
    assert needs.access["nodes"].devices == ("/dev/kfd", "/dev/dri")
    assert added(seen, nothing, "nodes") == {
        "/dev/kfd",
        *(f"/dev/{node}" for node in NODES if node.startswith("dri/")),
    }
    video = 44  # Debian's number, and Ubuntu's
    assert added(seen, nothing, "groups") == {video, RENDER_GROUP}
    assert seen["environment"]["HIP_VISIBLE_DEVICES"] == "0,1"
    assert seen["capabilities"] & ~nothing["capabilities"] == 1 << 19  # CAP_SYS_PTRACE
    assert (nothing["seccomp"], seen["seccomp"]) == ("2", "0")
    assert seen["new_privileges"] == "1"
    assert seen["ipc"] == str(Path("/proc/self/ns/ipc").readlink()) != nothing["ipc"]


def test_an_nvidia_reservation_reaches_the_toolkits_hook(look, nothing, fake_host, backends):
    (fake_host / "hook.log").write_text("")
    seen = look("cuda-0")
    assert seen["environment"]["NVIDIA_VISIBLE_DEVICES"] == "1,3"
    assert (fake_host / "hook.log").read_text().startswith("prestart\n")
    # The toolkit makes the nodes; the file asks for none itself.
    assert added(seen, nothing, "nodes") == set()
    assert backends["cuda"].container.ipc == "host"
    assert seen["ipc"] == str(Path("/proc/self/ns/ipc").readlink())
    assert seen["seccomp"] == "2"


def test_without_the_toolkit_the_engine_says_what_it_lacks(engines, with_base, rendered):
    engine = engines("bare")
    compose = yaml.safe_load((rendered / "cuda-0" / "compose.yaml").read_text())
    compose["services"]["worker-cuda-0-0"].update(image=with_base(engine), entrypoint=["true"], command=[])
    file = rendered / "cuda-0" / "bare.yaml"
    file.write_text(to_yaml(compose, "The rendered file, with another image."))
    with pytest.raises(EngineError, match=r"could not select device driver .*gpu"):
        engine.compose("-f", file, "up")
