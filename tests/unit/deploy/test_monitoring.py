"""Files of docker/monitoring: every query names metrics and labels that the exporters declare; promtool agrees where it is found."""

import importlib
import json
import pkgutil
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import hetero_rl.metrics
from hetero_rl.deploy.authority import Authority
from hetero_rl.metrics.catalogue import CATALOGUE
from hetero_rl.wire.bundle import read_bundle, write_bundle
from hetero_rl.wire.roles import Role

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "docker" / "monitoring"
# What Prometheus says of a target by itself.
OF_PROMETHEUS = {"up": ()}
OF_THE_TARGET = {"job", "instance"}
SELECTOR = re.compile(r"\b(hetero_rl_\w+|up)\b(?:\{([^}]*)\})?")
LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
GROUPING = re.compile(r"\b(?:by|on|ignoring|group_left|group_right|without)\s*\(([^)]*)\)")


@pytest.fixture(scope="module")
def declared():
    for module in pkgutil.iter_modules(hetero_rl.metrics.__path__, "hetero_rl.metrics."):
        importlib.import_module(module.name)
    importlib.import_module("hetero_rl.trainer.sinks")
    return {**{name: metric.labels for name, metric in CATALOGUE.items()}, **OF_PROMETHEUS}


def alert_rules():
    document = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def dashboard_queries():
    document = json.loads((MONITORING / "grafana" / "dashboards" / "hetero-rl.json").read_text())
    return [target["expr"] for panel in document["panels"] for target in panel["targets"]]


def problems_of(query, declared):
    """Metrics that nobody exports, and labels that none of the query's metrics has."""
    found = SELECTOR.findall(query)
    known = OF_THE_TARGET | {label for name, _ in found for label in declared.get(name, ())}
    wrong = [name for name, _ in found if name not in declared]
    wrong += [
        f"{name}{{{label}}}"
        for name, matchers in found
        for label in LABEL.findall(matchers)
        if label not in {*declared.get(name, ()), *OF_THE_TARGET}
    ]
    grouped = [
        label.strip() for labels in GROUPING.findall(query) for label in labels.split(",") if label.strip()
    ]
    return (
        wrong + [label for label in grouped if label not in known] + ([] if found else ["no metric at all"])
    )


def test_every_alert_asks_for_metrics_that_are_exported(declared):
    assert {rule["alert"]: problems_of(rule["expr"], declared) for rule in alert_rules()} == {
        rule["alert"]: [] for rule in alert_rules()
    }


def test_every_panel_asks_for_metrics_that_are_exported(declared):
    queries = dashboard_queries()
    assert len(queries) > 20
    assert {query: problems_of(query, declared) for query in queries} == {query: [] for query in queries}


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("rate(hetero_rl_hub_no_such_total[5m])", "hetero_rl_hub_no_such_total"),
        ('hetero_rl_hub_workers{vendor="x"}', "hetero_rl_hub_workers{vendor}"),
        ("sum by (vendor) (hetero_rl_hub_workers)", "vendor"),
        ("vector(1)", "no metric at all"),
    ],
)
def test_a_query_that_asks_for_something_else_is_found(declared, query, problem):
    assert problems_of(query, declared) == [problem]


def test_every_legend_names_a_label_of_its_query(declared):
    document = json.loads((MONITORING / "grafana" / "dashboards" / "hetero-rl.json").read_text())
    for panel in document["panels"]:
        for target in panel["targets"]:
            labels = {label for name, _ in SELECTOR.findall(target["expr"]) for label in declared[name]}
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels, panel["title"]


def test_names_keep_the_conventions(declared):
    for name, metric in CATALOGUE.items():
        assert re.fullmatch(r"hetero_rl_[a-z][a-z0-9_]*", name)
        assert name.endswith("_total") == (metric.kind == "counter"), name
        assert not re.search(r"_(ms|milliseconds|kb|mb|minutes|percent)(_total)?$", name), name
        assert metric.help.endswith("."), name


def test_the_scrape_configuration_names_files_that_certs_unpack_writes(cli_runner, tmp_path):
    authority = Authority.create(tmp_path / "authority", days=30)
    bundle = tmp_path / "prometheus.credentials"
    write_bundle(authority.issue("prometheus", Role.OBSERVER, [], days=5), bundle)
    out = tmp_path / "prometheus"
    assert cli_runner("certs", "unpack", bundle, "--out", out, "--group-readable").exit_code == 0

    text = (MONITORING / "prometheus.yml").read_text()
    named = {Path(path).name for path in re.findall(r"/credentials/prometheus/\S+", text)}
    assert named == {path.name for path in out.iterdir()}
    assert (out / "token").read_text() == read_bundle(bundle).token
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {0o640}


def test_what_is_unpacked_is_its_owners_alone_unless_told_otherwise(cli_runner, tmp_path):
    authority = Authority.create(tmp_path / "authority", days=30)
    bundle = tmp_path / "a.credentials"
    write_bundle(authority.issue("a", Role.WORKER, [], days=5), bundle)
    assert cli_runner("certs", "unpack", bundle, "--out", tmp_path / "a").exit_code == 0
    assert (tmp_path / "a" / "key.pem").stat().st_mode & 0o777 == 0o600


def test_scraped_services_are_services_of_the_compose_file():
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
    jobs = yaml.safe_load((MONITORING / "prometheus.yml").read_text())["scrape_configs"]
    names = {name for job in jobs for found in job.get("dns_sd_configs", ()) for name in found["names"]} | {
        "hub"
    }
    scraped = {
        name
        for name, service in compose["services"].items()
        if "--metrics-listen" in service.get("command", ())
    }
    assert names == scraped


OPERATIONS = ROOT / "docs" / "operations.md"


def rows(heading):
    """Cells of the table below a heading of docs/operations.md."""
    section = OPERATIONS.read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    table = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [
        [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table
    ]


def test_the_documentation_lists_every_metric(declared):
    documented = {name.strip("`"): (kind, labels, text) for name, kind, labels, text in rows("Metrics")}
    plain = re.compile(r"\|(log \w+ - log \w+)\|")
    assert documented == {
        name: (
            metric.kind,
            ", ".join(f"`{label}`" for label in metric.labels),
            plain.sub(r"abs(\1)", metric.help),
        )
        for name, metric in CATALOGUE.items()
    }


def test_the_documentation_says_how_each_alert_is_confirmed():
    confirmed = {name.strip("`"): command for name, _, command in rows("Alerts")}
    assert list(confirmed) == [rule["alert"] for rule in alert_rules()]
    assert all("`" in command for command in confirmed.values())


def test_commands_of_the_documentation_exist():
    from typer.main import get_command

    from hetero_rl.cli.main import app

    commands = get_command(app).commands
    named = set(re.findall(r"hetero-rl ([a-z]+)", OPERATIONS.read_text()))
    assert {"status", "top", "workers", "certs"} <= named
    assert named <= set(commands)


@pytest.fixture
def cli_runner():
    from typer.testing import CliRunner

    from hetero_rl.cli.main import app

    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def promtool():
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not on PATH: Debian has it in the package prometheus")

    def run(*arguments, text=None):
        done = subprocess.run(
            [found, *map(str, arguments)],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
            cwd=MONITORING,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return run


def test_promtool_accepts_rules_and_configuration(promtool):
    promtool("check", "rules", "alerts.yml")
    promtool("test", "rules", "alerts.test.yml")
    promtool("check", "config", "--syntax-only", "prometheus.yml")


def test_promtool_accepts_every_metric(promtool, declared):
    from prometheus_client import CollectorRegistry, generate_latest

    from hetero_rl.metrics.exporter import families

    class Everything:
        def collect(self):
            return families(metric(1.0, *(["x"] * len(metric.labels))) for metric in CATALOGUE.values())

    registry = CollectorRegistry()
    registry.register(Everything())
    promtool("check", "metrics", text=generate_latest(registry).decode())
