"""A real Prometheus with the files of docker/monitoring scrapes a run over mutual TLS, and every panel has data.

prometheus ──TLS, token──► hub, relay, two workers, trainer          five processes of one run
     └── afterwards asked each query of the dashboard over the time of the run
"""

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests.tiny_run import tiny_run

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "docker" / "monitoring"
HETERO_RL = [sys.executable, "-m", "hetero_rl.cli.main"]
PATIENCE = 600.0
STEPS = 20

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not on PATH: Debian has it in a package"
)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def panels():
    document = json.loads((MONITORING / "grafana" / "dashboards" / "hetero-rl.json").read_text())
    return {target["expr"] for panel in document["panels"] for target in panel["targets"]}


class Site:
    """Credentials, processes and ports of one run on this machine."""

    def __init__(self, directory):
        self.directory = directory
        self.started = {}
        self.ports = {role: free_port() for role in ("hub", "trainer", "worker", "leaver", "relay")}
        self.hub, self.relay, self.prometheus = (f"127.0.0.1:{free_port()}" for _ in range(3))
        self.config = directory / "watched.toml"
        self.config.write_text(
            tiny_run(run__steps=STEPS, evaluation__every=5, inference__worker__max_concurrent_sequences=8)
        )
        self.make_credentials()

    def make_credentials(self):
        own, bundles = ("--dir", self.directory / "authority"), self.directory
        self.must_run("certs", "init", *own, "--bundles", bundles, "--hub-host", "127.0.0.1")
        for name, role in {
            "trainer": "trainer",
            "worker": "worker",
            "leaver": "worker",
            "relay": "relay",
        }.items():
            hosts = ["--host", name, "--host", "worker", "--host", "127.0.0.1"]
            out = ("--out", bundles / f"{name}.credentials")
            self.must_run("certs", "issue", name, "--role", role, *hosts, *own, *out)
        out = bundles / "prometheus.credentials"
        self.must_run("certs", "issue", "prometheus", "--role", "observer", *own, "--out", out)
        self.must_run("certs", "unpack", out, "--out", bundles / "prometheus")

    def run(self, *arguments):
        return subprocess.run(
            [*HETERO_RL, *map(str, arguments)], check=False, timeout=PATIENCE, capture_output=True, text=True
        )

    def must_run(self, *arguments):
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr

    def start(self, name, *arguments):
        """A process of ours that answers Prometheus."""
        listen = ("--metrics-listen", f"127.0.0.1:{self.ports[name]}")
        bundle = ("--credentials", self.directory / f"{name}.credentials")
        self.spawn(name, [*HETERO_RL, *arguments, *bundle, *listen])

    def spawn(self, name, command):
        with self.log(name).open("wb") as file:
            self.started[name] = subprocess.Popen(
                list(map(str, command)), stdout=file, stderr=file, cwd=self.directory
            )

    def log(self, name):
        return self.directory / f"{name}.log"

    def wait_for_text(self, name, text):
        deadline = time.monotonic() + PATIENCE
        while text not in self.log(name).read_text():
            assert self.started[name].poll() is None, self.log(name).read_text()
            assert time.monotonic() < deadline, self.log(name).read_text()
            time.sleep(0.1)

    def finish(self, name):
        assert self.started[name].wait(PATIENCE) == 0, self.log(name).read_text()

    def end(self):
        for process in self.started.values():
            process.kill()
            process.wait()

    def ask(self, path, **query):
        address = f"http://{self.prometheus}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=60) as answer:
            return json.load(answer)["data"]

    def configuration(self):
        """The file of docker/monitoring with this machine's paths and addresses, and a scrape each second."""
        text = (MONITORING / "prometheus.yml").read_text()
        text = text.replace("/credentials/prometheus", str(self.directory / "prometheus"))
        document = yaml.safe_load(text)
        document["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        document["rule_files"] = [str(MONITORING / "alerts.yml")]
        for job in document["scrape_configs"]:
            job.pop("dns_sd_configs", None)
            names = ["worker", "leaver"] if job["job_name"] == "worker" else [job["job_name"]]
            targets = [f"127.0.0.1:{self.ports[name]}" for name in names]
            job["static_configs"] = [{"targets": targets}]
            job["tls_config"]["server_name"] = "127.0.0.1"
        file = self.directory / "prometheus.yml"
        file.write_text(yaml.safe_dump(document))
        return file


@pytest.fixture
def site(tmp_path):
    found = Site(tmp_path)
    yield found
    found.end()


def test_every_panel_of_the_dashboard_has_data_after_a_run(site):
    begun = time.time()
    storage = ("--storage.tsdb.path", site.directory / "series", "--web.listen-address", site.prometheus)
    site.spawn("prometheus", ["prometheus", "--config.file", site.configuration(), *storage])
    run_dir = ("--set", f"run.dir={site.directory / 'run'}", "--set", "logging.live=false")
    registry = ("--registry", site.directory / "authority" / "registry.json")
    site.start("hub", "hub", "--run-dir", site.directory / "run", "--listen", site.hub, *registry)
    site.wait_for_text("hub", "listens on")
    site.start(
        "relay", "relay", "--hub", site.hub, "--listen", site.relay, "--cache-dir", site.directory / "cache"
    )
    site.wait_for_text("relay", "listens on")
    site.start("trainer", "train", site.config, "--hub", site.hub, "--workers", "0", *run_dir)
    site.start("worker", "worker", site.config, "--hub", site.hub, "--relay", site.relay, "--name", "worker")
    site.start("leaver", "worker", site.config, "--hub", site.hub, "--name", "leaver")
    site.wait_for_text("trainer", f"{STEPS // 2}/{STEPS}")
    as_trainer = ("--hub", site.hub, "--credentials", site.directory / "trainer.credentials")
    refused = site.run("workers", "drain", "nobody", *as_trainer)
    site.started["leaver"].terminate()
    site.finish("leaver")
    site.finish("trainer")

    assert refused.returncode, "there is no worker of that name"
    answers = {query: series(site, query, begun) for query in panels()}

    assert [query for query, found in answers.items() if not found] == []
    assert site.ask("rules")["groups"]


def series(site, query, begun):
    """Series that a query gives over the time since `begun`, with a window that a run of a minute fills."""
    query = query.replace("$__rate_interval", "20s")
    return site.ask("query_range", query=query, start=begun, end=time.time(), step="1")["result"]
