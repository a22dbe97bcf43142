"""Hosts with Docker engines, and images that were built without a network from docker/ as it is.

HETERO_RL_COMPOSE_CACHE names the directory that `make test-compose` prepared; without it nothing here is collected. With
HETERO_RL_COMPOSE_DATA set, the engines of the hosts keep their images below it, so that the next run finds every layer that did not change.
"""

import os
import secrets
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.compose.engine import Engine, leftovers, missing, run
from tests.tiny_run import tiny_run

CACHE = Path(os.environ.get("HETERO_RL_COMPOSE_CACHE", "."))
collect_ignore_glob = [] if "HETERO_RL_COMPOSE_CACHE" in os.environ else ["test_*.py"]
ROOT = Path(__file__).parents[2]
BASE = "hetero-rl-test-base"
COPIED = ["pyproject.toml", "README.md", "LICENSE", "constraints.txt", ".dockerignore"]
COPIED += ["hetero_rl", "backends", "configs", "docker"]
FIGURES = pytest.StashKey[list[str]]()

# What an image is built from is the only thing that is changed: base and wheels of this machine, no network.
OFFLINE = f"""
services:
  credentials: &offline
    build:
      network: none
      args: {{BASE: {BASE}, PIP_NO_INDEX: "1"}}
  hub: *offline
  trainer-cpu: *offline
  worker-cpu: *offline
"""


@pytest.fixture(scope="session")
def figures(request):
    """Takes a sentence that is printed when all is done."""
    return request.config.stash.setdefault(FIGURES, []).append


@pytest.fixture(scope="session")
def engines():
    """Starts engines; at the end each is closed, and must have left nothing behind."""
    if reason := missing():
        pytest.skip(reason)
    if not (CACHE / "base.tar").exists():
        pytest.skip(f"{CACHE} has no base image; `make test-compose` says why")
    started = []

    def start(label, **settings):
        directory = Path(tempfile.mkdtemp(prefix=f"compose_{label}_", dir="/tmp"))
        engine = Engine(f"hrl-{label}-{secrets.token_hex(3)}", directory, **settings)
        started.append(engine)
        try:
            engine.start()
        except Exception as error:
            if len(started) > 1:
                raise
            engine.close()
            pytest.skip(f"no Docker engine can be started here: {error}")
        return engine

    yield start
    for engine in started:
        engine.close()
    assert [each for engine in started for each in leftovers(engine)] == []


@pytest.fixture(scope="session")
def with_base():
    """Gives an engine the base image; returns its name."""

    def load(engine):
        if not engine.docker("images", "--quiet", BASE).strip():
            engine.docker("import", CACHE / "base.tar", BASE)
        return BASE

    return load


@pytest.fixture(scope="session")
def checkout(tmp_path_factory):
    """A copy of what the images are built from, with the wheels beside it as docker/wheels/README.md says."""
    if not (CACHE / "wheels" / ".complete").exists():
        pytest.skip(f"{CACHE} has no wheels; `make test-compose` says why")
    copy = Path(tempfile.mkdtemp(prefix="compose_checkout_", dir="/tmp"))
    files = run(
        "git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", *COPIED
    ).splitlines()
    for file in files:
        if (ROOT / file).exists():
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, copy / file)
    for wheel in (CACHE / "wheels").glob("*.whl"):
        shutil.copy2(wheel, copy / "docker" / "wheels" / wheel.name)
    (copy / "offline.yaml").write_text(OFFLINE)
    yield copy
    shutil.rmtree(copy)


@pytest.fixture(scope="session")
def kept_data():
    """Says where the engine of a host keeps its data; None is for the time of the test."""
    kept = os.environ.get("HETERO_RL_COMPOSE_DATA")
    return lambda host: Path(kept) / host if kept else None


@pytest.fixture(scope="session")
def first_host(engines, with_base, checkout, kept_data, figures):
    """An engine that has built the images of hub, CPU trainer and CPU worker."""
    engine = engines("a", data=kept_data("a"))
    with_base(engine)
    begun = time.monotonic()
    files = ("-f", checkout / "docker" / "compose.yaml", "-f", checkout / "offline.yaml")
    engine.compose(*files, "--profile", "cpu", "build", timeout=3000)
    figures(f"building the three CPU images took {time.monotonic() - begun:.0f} s")
    for role in ("hub", "worker-cpu", "trainer-cpu"):
        size = int(engine.docker("image", "inspect", "--format", "{{.Size}}", f"hetero-rl/{role}:0.1.0"))
        figures(f"image {role}: {size / 1e6:.0f} MB, of which the base is {_base_size(engine) / 1e6:.0f} MB")
    return engine


def _base_size(engine):
    return int(engine.docker("image", "inspect", "--format", "{{.Size}}", BASE))


@pytest.fixture
def settings():
    """Writes the settings of a small run to a file."""

    def write(file, steps):
        file.parent.mkdir(parents=True, exist_ok=True)
        text = tiny_run(
            run__name="compose",
            run__steps=steps,
            evaluation__every=0,
            staleness__max_lag=1,
            checkpoint__every=5,
            inference__remote_worker_timeout=1800,
        )
        file.write_text(text)
        return file

    return write


@pytest.fixture
def wait_for_end():
    """Waits for a container to end; its log and those of the others are shown when it took too long or failed."""

    def wait(engine, container, *others, timeout=1800):
        try:
            code = int(engine.docker("wait", container, timeout=timeout))
        except subprocess.TimeoutExpired:
            code = None
        if code != 0:
            names = engine.docker("ps", "--all", "--format", "{{.Names}}: {{.Status}}")
            logs = [f"--- {name}\n{_log(engine, name)}" for name in (container, *others) if name in names]
            pytest.fail(f"{container} ended with {code}\n{names}\n" + "\n".join(logs))

    return wait


def _log(engine, name):
    done = subprocess.run(
        [shutil.which("docker"), "logs", "--tail", "60", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=engine.env,
        check=False,
        timeout=60,
    )
    return done.stdout


def pytest_terminal_summary(terminalreporter, config):
    lines = config.stash.get(FIGURES, [])
    if lines:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.line(line)
