"""A Docker engine of its own in namespaces of its own, which stands for a host.

    machine ── network namespace NAME ──┬── dockerd ── containerd ── containers
                (veth to other hosts)   └── mount namespace: images, layers and fake devices are seen by this engine alone

Whatever the engine mounts goes with its mount namespace, and what it does to interfaces and packet filters with its network namespace. All its
files lie in one directory. It is ended by its process id.
"""

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

__all__ = ["Engine", "EngineError", "leftovers", "missing", "run"]

# The program itself: what pip puts beside Python starts it and ends with 0 whatever came of it.
_PACKAGE = importlib.util.find_spec("compose")
COMPOSE = Path(_PACKAGE.origin if _PACKAGE else "/compose").parent / "docker-compose"
PROGRAMS = ("dockerd", "containerd", "runc", "docker", "nsenter", "unshare", "ip", "tc")
PATIENCE = 1800.0
_START_SECONDS = 90.0
_OWN_PROGRAMS = ("dockerd", "containerd", "docker-proxy", "docker-init", "runc")
_STOP_SECONDS = 120.0


class EngineError(Exception):
    """An engine did not start, or a command failed; the text says which and what it printed."""


def missing():
    """Why no engine can be started on this machine; empty when it may be tried."""
    if os.geteuid() != 0:
        return "a Docker engine of the test's own needs root"
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    if not COMPOSE.exists():
        lacking.append(str(COMPOSE))
    return f"these programs are not installed: {', '.join(lacking)}" if lacking else ""


def run(*command, timeout=PATIENCE, env=None, text=True, check=True):
    """Runs a command; returns what it printed. Raises EngineError with both streams when it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=text,
        timeout=timeout,
        env=env,
        check=False,
    )
    if check and done.returncode:
        raise EngineError(
            f"{command} ended with {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
        )
    return done.stdout


class Engine:
    """One host.

    Args:
        name: Of its network namespace.
        directory: Everything it writes.
        programs: A directory that comes first in dockerd's PATH.
        data: Where images and containers are kept; in `directory` if not given.
        prepare: Shell text that is run in its mount namespace before dockerd.
        flags: Further arguments of dockerd.
    """

    def __init__(self, name, directory, *, programs=None, data=None, prepare="", flags=()):
        self.name = name
        self.directory = directory
        self.socket = directory / "docker.sock"
        self.log = directory / "dockerd.log"
        self.config = directory / "client"
        path = os.environ["PATH"]
        self.path = f"{programs}:{path}" if programs else path
        self.data = data or directory / "data"
        self.prepare = prepare
        self.flags = flags
        self.process = None

    @property
    def env(self):
        """Environment of clients of this engine: `docker compose` is found, the user's own settings are not."""
        return {
            **os.environ,
            "DOCKER_HOST": f"unix://{self.socket}",
            "DOCKER_CONFIG": str(self.config),
            "COMPOSE_ANSI": "never",
            "COMPOSE_PROGRESS": "plain",
        }

    def start(self):
        """Returns once the engine answers."""
        plugins = self.config / "cli-plugins"
        plugins.mkdir(parents=True, exist_ok=True)
        if not (plugins / "docker-compose").exists():
            (plugins / "docker-compose").symlink_to(COMPOSE)
        run("ip", "netns", "add", self.name)
        run("ip", "-n", self.name, "link", "set", "lo", "up")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": self.path},
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self.docker("version", "-f", "{{.Server.Version}}", check=False).strip():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise EngineError(f"dockerd did not start:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.2)

    def _command(self):
        dockerd = [
            "dockerd",
            *("--data-root", self.data, "--exec-root", self.directory / "exec"),
            *("--pidfile", self.directory / "dockerd.pid", "--host", f"unix://{self.socket}"),
            *("--storage-driver", "overlay2", "--bip", "172.30.0.1/24"),
            *("--default-address-pool", "base=172.31.0.0/16,size=24", *self.flags),
        ]
        # Not `ip netns exec`: it mounts another /sys, in which dockerd misses its control groups.
        return [
            *("nsenter", f"--net=/run/netns/{self.name}"),
            *("unshare", "--mount", "--propagation", "private"),
            *("sh", "-ec", f'{self.prepare}\nexec "$@"', "sh"),
            *map(str, dockerd),
        ]

    def docker(self, *arguments, **options):
        """Runs `docker`; returns what it printed."""
        return run("docker", *arguments, env=self.env, **options)

    def compose(self, *arguments, env=None, **options):
        """Runs `docker-compose`; returns what it printed."""
        return run(COMPOSE, *arguments, env={**self.env, **(env or {})}, **options)

    def inspect(self, container):
        """What the engine knows about a container."""
        return json.loads(self.docker("inspect", container))[0]

    def within(self, *command, **options):
        """Runs a command in the network namespace."""
        return run("nsenter", f"--net=/run/netns/{self.name}", *command, **options)

    def close(self):
        """Ends every container, the engine and its namespaces, and removes its files."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(EngineError, subprocess.TimeoutExpired):
                containers = self.docker("ps", "--all", "--quiet", timeout=_STOP_SECONDS).split()
                if containers:
                    self.docker("rm", "--force", "--volumes", *containers, timeout=_STOP_SECONDS)
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_STOP_SECONDS)
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        run("ip", "netns", "del", self.name, check=False)
        shutil.rmtree(self.directory, ignore_errors=True)


def leftovers(engine):
    """What is left of an engine that was closed: processes, mounts, its namespace, its files."""
    found = [f"file {engine.directory}"] if engine.directory.exists() else []
    namespaces = {line.split()[0] for line in run("ip", "netns", "list").splitlines() if line}
    if engine.name in namespaces:
        found.append(f"network namespace {engine.name}")
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    found += [f"mount {line.split()[1]}" for line in mounts if str(engine.directory) in line]
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            # Whoever lists files names them as well.
            if str(engine.directory) in command and Path(command.split(" ")[0]).name.startswith(
                _OWN_PROGRAMS
            ):
                found.append(f"process {process.name}: {command}")
    return found
