"""The exporter as a scraper sees it: over HTTP, and over TLS with and without the right credentials."""

import http.client
import socket
import ssl
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hetero_rl.config.tree import Config, ObservabilityConfig, SecurityConfig
from hetero_rl.deploy.authority import Authority
from hetero_rl.errors import ConfigError, UnreachableError
from hetero_rl.metrics.exporter import exporting
from hetero_rl.metrics.fleet import FleetReadings
from hetero_rl.wire.bundle import read_bundle, write_bundle
from hetero_rl.wire.roles import Role

SECONDS = 90


def config(listen="127.0.0.1:0", **security):
    return Config(
        observability=ObservabilityConfig(metrics_listen=listen), security=SecurityConfig(**security)
    )


def ask(address, path="/metrics", *, tls=None, token=""):
    host, _, port = address.rpartition(":")
    if tls is None:
        connection = http.client.HTTPConnection(host, int(port), timeout=SECONDS)
    else:
        connection = http.client.HTTPSConnection(host, int(port), timeout=SECONDS, context=tls)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def samples(page):
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


class Silent:
    def collect(self):
        raise UnreachableError("the hub did not answer")


def test_a_scrape_reads_what_the_sources_say(state):
    with exporting(config(), "hub") as exporter:
        exporter.add(FleetReadings(lambda after: state))
        status, page = ask(exporter.address)

    shown = samples(page)
    assert status == 200
    assert shown["hetero_rl_run_step",] == 7
    assert shown["hetero_rl_hub_incidents_total", "leases_expired"] == 2
    assert shown["hetero_rl_build_info", "hub", "0.1.0"] == 1
    assert shown["process_cpu_seconds_total",] > 0
    assert "# TYPE hetero_rl_hub_events_total counter" not in page  # a family without readings is left out
    assert "# TYPE hetero_rl_hub_incidents_total counter" in page


def test_a_source_that_fails_makes_the_scrape_fail_and_not_the_next_one(state):
    broken = [True]

    def answer(after):
        if broken:
            broken.clear()
            raise UnreachableError("the hub did not answer")
        return state

    with exporting(config(), "trainer") as exporter:
        exporter.add(FleetReadings(answer))
        assert ask(exporter.address) == (503, "no metrics now: the hub did not answer\n")
        assert ask(exporter.address)[0] == 200


def test_nothing_else_is_served():
    with exporting(config(), "hub") as exporter:
        assert ask(exporter.address, "/etc/passwd")[0] == 404


def test_without_an_address_nothing_listens():
    with exporting(config(""), "hub") as exporter:
        exporter.add(Silent())
        assert not exporter.address


def test_the_port_is_free_again_afterwards():
    with exporting(config(), "hub") as exporter:
        address = exporter.address
    with exporting(config(address), "hub"):
        pass


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "192.0.2.1:9464"])
def test_beyond_loopback_nobody_listens_without_tls(listen):
    with (
        pytest.raises(ConfigError, match=r"observability\.metrics_listen is"),
        exporting(config(listen), "hub"),
    ):
        pass


def test_an_address_that_is_none_and_a_port_that_is_taken_are_refused():
    with pytest.raises(ConfigError, match="give host:port"), exporting(config("9464"), "hub"):
        pass
    with (
        exporting(config(), "hub") as exporter,
        pytest.raises(ConfigError, match="choose another port"),
        exporting(config(exporter.address), "worker"),
    ):
        pass


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"hetero-rl\[metrics\]"), exporting(config(), "hub"):
        pass


class Site:
    """An authority and bundles, and a TLS client for each."""

    def __init__(self, directory):
        self.directory = directory
        self.authority = Authority.create(directory / "certs", days=30)
        self.hub = self.bundle("hub", Role.HUB, "127.0.0.1")
        self.observer = self.bundle("prometheus", Role.OBSERVER)

    def bundle(self, name, role, *hosts):
        path = self.directory / f"{name}.credentials"
        write_bundle(self.authority.issue(name, role, list(hosts), days=5), path)
        return path

    def client(self, path=None):
        held = read_bundle(path or self.observer)
        context = ssl.create_default_context(cadata=held.certificate_authority)
        if path is not None:
            pem = self.directory / f"{held.name}.pem"
            pem.write_text(held.private_key + held.certificate)
            context.load_cert_chain(pem)
        return context, held.token


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture
def secured(site):
    settings = config("0.0.0.0:0", hub_credentials=site.hub, registry=site.authority.registry)
    with exporting(settings, "hub") as exporter:
        yield f"127.0.0.1:{exporter.address.rpartition(':')[2]}"


def test_with_tls_an_observer_is_let_in_with_certificate_and_token(site, secured):
    tls, token = site.client(site.observer)
    assert ask(secured, tls=tls, token=token)[0] == 200


def test_with_tls_the_token_counts_where_there_is_a_registry(site, secured):
    tls, _ = site.client(site.observer)
    status, text = ask(secured, tls=tls)
    assert status == 403
    assert "token" in text


def test_with_tls_a_role_that_may_not_look_is_refused(site, secured):
    tls, token = site.client(site.hub)
    assert ask(secured, tls=tls, token=token)[0] == 403


def test_with_tls_nobody_comes_in_without_a_certificate(site, secured):
    tls, token = site.client()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(secured, tls=tls, token=token)


def test_a_client_that_dawdles_keeps_nobody_else_out(site, secured):
    host, _, port = secured.rpartition(":")
    tls, token = site.client(site.observer)
    with socket.create_connection((host, int(port)), timeout=SECONDS):  # never begins its handshake
        assert ask(secured, tls=tls, token=token)[0] == 200


def test_a_worker_without_a_registry_trusts_its_authority(site):
    settings = config("127.0.0.1:0", credentials=site.hub)
    tls, _ = site.client(site.observer)
    with exporting(settings, "worker") as exporter:
        assert ask(exporter.address, tls=tls)[0] == 200
