"""Two hosts as `hetero-rl cluster` sets them up: hub and trainer on one, relay and worker on the other, the line between them bad.

    namespace of site-a ── engine: hub, trainer         10.77.0.1 ══ veth, tbf 20 Mbit/s each way ══ 10.77.0.2
    namespace of site-b ── engine: relay, worker                     down for 10 s in the middle

`cluster up` and `down` run as they are; ssh and scp are stand-ins that do on a host what is asked, so what is not tested is ssh itself.
"""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from tests.compose.engine import EngineError, run
from tests.compose.journal import problems

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STEPS = 15
CUT_AFTER_STEP = 3
CUT_SECONDS = 10.0
RATE = "20mbit"
OWNER = 10001
HETERO_RL = [sys.executable, "-m", "hetero_rl.cli.main"]
ADDRESSES = {"site-a": "10.77.0.1", "site-b": "10.77.0.2"}
WORKER, RELAY = "hetero-rl-worker-site-b-0-1", "hetero-rl-relay-1"
HUB, TRAINER = "hetero-rl-hub-1", "hetero-rl-trainer-1"

INVENTORY = f"""
[cluster]
hub = "site-a"
config = "my.toml"
run = "far"

[[hosts]]
name = "site-a"
address = "{ADDRESSES["site-a"]}"
roles = ["hub", "trainer"]
user = "{OWNER}:{OWNER}"

[[hosts]]
name = "site-b"
address = "{ADDRESSES["site-b"]}"
roles = ["relay", "worker"]
user = "{OWNER}:{OWNER}"
"""

SSH = """#!/bin/sh
# ssh TARGET COMMAND: on the engine and in the home directory of that host.
. "HOSTS/$1.env"
cd "$HOME" && exec sh -c "$2"
"""
SCP = """#!/bin/sh
# scp -pr FROM/. TARGET:DIR/: the copy belongs to the user of that host.
target="${3%%:*}" directory="${3#*:}"
. "HOSTS/$target.env"
cp -a "$2" "$HOME/$directory" && chown -R OWNER:OWNER "$HOME/$directory"
"""


@pytest.fixture
def second_host(engines, first_host, kept_data, figures):
    """An engine that has the worker's image from the first one."""
    engine = engines("b", data=kept_data("b"))
    begun = time.monotonic()
    docker, image = shutil.which("docker"), "hetero-rl/worker-cpu:0.1.0"
    if engine.docker("images", "--quiet", image) == first_host.docker("images", "--quiet", image):
        return engine  # kept from an earlier test
    with subprocess.Popen([docker, "save", image], env=first_host.env, stdout=subprocess.PIPE) as saving:
        loading = subprocess.run(
            [docker, "load", "--quiet"], env=engine.env, stdin=saving.stdout, check=False, timeout=1500
        )
    assert (saving.returncode, loading.returncode) == (0, 0)
    figures(f"moving the worker's image to another engine took {time.monotonic() - begun:.0f} s")
    return engine


@pytest.fixture
def line(first_host, second_host):
    """The shaped line between the hosts."""
    ends = {"site-a": (first_host, "hrl0"), "site-b": (second_host, "hrl0")}
    run(
        *("ip", "link", "add", "hrl0", "netns", first_host.name, "type", "veth"),
        *("peer", "name", "hrl0", "netns", second_host.name),
    )
    for name, (engine, device) in ends.items():
        run("ip", "-n", engine.name, "addr", "add", f"{ADDRESSES[name]}/24", "dev", device)
        run("ip", "-n", engine.name, "link", "set", device, "up")
        shape = ("tbf", "rate", RATE, "burst", "64kb", "latency", "50ms")
        run("tc", "-n", engine.name, "qdisc", "add", "dev", device, "root", *shape)
    yield Line(first_host.name)
    run("ip", "-n", first_host.name, "link", "del", "hrl0")


class Line:
    """The line, by its end at the first host."""

    def __init__(self, namespace):
        self._namespace = namespace

    def cut(self, seconds):
        """Takes it away for a time; what is under way is lost."""
        run("ip", "-n", self._namespace, "link", "set", "hrl0", "down")
        time.sleep(seconds)
        run("ip", "-n", self._namespace, "link", "set", "hrl0", "up")

    def megabytes(self):
        """(from the first host, to it), as the interface counts."""
        (link,) = json.loads(run("ip", "-n", self._namespace, "-j", "-s", "link", "show", "hrl0"))
        return tuple(link["stats64"][way]["bytes"] / 1e6 for way in ("tx", "rx"))


@pytest.fixture
def hosts(first_host, second_host, tmp_path, monkeypatch):
    """Home directories of the hosts, reached by the stand-ins of ssh and scp."""
    homes = {}
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, engine in (("site-a", first_host), ("site-b", second_host)):
        homes[name] = tmp_path / "hosts" / name
        homes[name].mkdir(parents=True)
        values = {"HOME": homes[name], **{key: engine.env[key] for key in ("DOCKER_HOST", "DOCKER_CONFIG")}}
        text = "".join(f"export {key}='{value}'\n" for key, value in values.items())
        (tmp_path / "hosts" / f"{ADDRESSES[name]}.env").write_text(text)
    for name, text in (("ssh", SSH), ("scp", SCP)):
        (programs / name).write_text(
            text.replace("HOSTS", str(tmp_path / "hosts")).replace("OWNER", str(OWNER))
        )
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    # The containers' user enters the directories that are mounted, and a temporary directory is its owner's alone.
    for directory in (tmp_path, *list(tmp_path.parents)[:2]):
        directory.chmod(0o755)
    return homes


@pytest.fixture
def cluster(tmp_path, settings, hosts):
    """Calls `hetero-rl cluster`; at the end nothing of it runs any more."""
    settings(tmp_path / "my.toml", STEPS)
    inventory = tmp_path / "cluster.toml"
    inventory.write_text(INVENTORY)

    def call(action, *arguments):
        return run(*HETERO_RL, "cluster", action, inventory, *arguments)

    yield call
    if any(home.joinpath("hetero-rl").exists() for home in hosts.values()):
        call("down", "--out", tmp_path / "out")


def metrics(home):
    file = home / "hetero-rl" / "runs" / "far" / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(each) for each in lines if each.endswith("\n")]


def wait_for_step(home, step, engine, container):
    deadline = time.monotonic() + 1500
    while not any(record["step"] >= step for record in metrics(home)):
        if engine.inspect(container)["State"]["Status"] == "exited" or time.monotonic() > deadline:
            pytest.fail(f"step {step} was not reached\n{engine.docker('logs', '--tail', '60', container)}")
        time.sleep(0.2)


def doctor(engine, image):
    # It ends with 1 where no device is: the hub's host needs none.
    return engine.docker(
        "run", "--rm", "--network", "none", f"hetero-rl/{image}:0.1.0", "doctor", "--json", check=False
    )


def test_a_run_across_a_bad_line_finishes_and_loses_nothing(
    first_host, second_host, line, hosts, cluster, wait_for_end, figures, tmp_path
):
    out, records = tmp_path / "out", tmp_path / "doctor"
    records.mkdir()
    cluster("render", "--out", out)
    (records / "site-a.json").write_text(doctor(first_host, "hub"))
    (records / "site-b.json").write_text(doctor(second_host, "worker-cpu"))
    assert "2 hosts fit the inventory" in cluster("check", "--doctor", records)

    begun = time.monotonic()
    cluster("up", "--out", out)
    figures(f"`cluster up` of two hosts took {time.monotonic() - begun:.0f} s")

    wait_for_step(hosts["site-a"], CUT_AFTER_STEP, first_host, TRAINER)
    line.cut(CUT_SECONDS)
    after = metrics(hosts["site-a"])[-1]["step"]
    assert after < STEPS  # the cut was in the middle
    wait_for_end(first_host, TRAINER, HUB)
    wait_for_end(second_host, WORKER, RELAY)

    journal = hosts["site-a"] / "hetero-rl" / "runs" / "far" / "hub" / "journal.sqlite"
    blobs = second_host.docker("exec", RELAY, "sh", "-c", "find /cache -type f").split()
    assert len(blobs) >= 3  # the model's files and the first version crossed the line once, to the relay
    assert second_host.inspect(RELAY)["State"]["Health"]["Status"] == "healthy"
    with pytest.raises(EngineError, match="ended with"):  # nobody is answered without a certificate
        second_host.within(*HETERO_RL, "status", "--hub", f"{ADDRESSES['site-a']}:7077")

    sent, received = line.megabytes()
    figures(
        f"{STEPS} steps over {RATE}/s, cut for {CUT_SECONDS:.0f} s after step {CUT_AFTER_STEP}, at step {after} when it was back; "
        f"{sent:.1f} MB to the worker's site, {received:.1f} MB from it; {time.monotonic() - begun:.0f} s"
    )
    cluster("down", "--out", out)
    left = [engine.docker("ps", "--all", "--quiet") for engine in (first_host, second_host)]
    assert left == ["", ""]
    assert problems(journal, steps=STEPS, samples_per_step=8, max_lag=1) == []
