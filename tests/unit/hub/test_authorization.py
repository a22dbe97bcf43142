"""Every method of every service, at the hub and at a relay: who is let in, and that nobody else is."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import ssl

import grpc
import grpc.aio
import pytest

from hetero_rl.config.tree import SecurityConfig
from hetero_rl.deploy import certificates
from hetero_rl.deploy.authority import Authority
from hetero_rl.deploy.certificates import issue_certificate
from hetero_rl.errors import ConfigError, RefusedError
from hetero_rl.hub.callers import Callers
from hetero_rl.hub.handlers.context import HubSettings
from hetero_rl.hub.memory_blobs import MemoryBlobStore
from hetero_rl.hub.server import running_hub
from hetero_rl.hub.stores.memory_store import MemoryStore
from hetero_rl.relay.server import running_relay
from hetero_rl.v1 import (
    fleet_service_pb2,
    rollout_service_pb2,
    training_service_pb2,
    weight_service_pb2,
)
from hetero_rl.wire.bundle import read_bundle, write_bundle
from hetero_rl.wire.channels import control_options, open_async_channel, open_channel
from hetero_rl.wire.credentials import channel_credentials
from hetero_rl.wire.refusal import from_rpc_error
from hetero_rl.wire.roles import METHOD_ROLES, Caller, Role

MODULES = (fleet_service_pb2, rollout_service_pb2, training_service_pb2, weight_service_pb2)
HEALTH = ("/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch")
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for module in MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
SERVING = b"\x08\x01"
REFUSALS = {"NOT_AUTHORIZED"}
AT_A_RELAY = {HEALTH[0], *(method for method in METHODS if ".WeightService/" in method)}
AT = {"hub": {*METHODS, *HEALTH}, "relay": AT_A_RELAY}


class NoWeights:
    """What a relay asks; it has nothing."""

    async def get_plan(self, *, held_version, wanted_version, encodings):
        return ()

    async def await_version(self, after_version, wait):
        await asyncio.sleep(wait)
        return 0

    async def fetch_blob(self, digest, offset):
        raise RefusedError("not here", "NOT_FOUND")
        yield b""


class Site:
    """An authority with one bundle for each role, and a hub with mutual TLS."""

    def __init__(self, directory):
        self.authority = Authority.create(directory / "certs", days=30)
        self.directory = directory
        self.bundles = {role: self.issue(role.value, role) for role in Role}
        self.security = SecurityConfig(credentials=self.bundles[Role.HUB], registry=self.authority.registry)

    def issue(self, name, role):
        hosts = ["127.0.0.1"] if role in {Role.HUB, Role.RELAY} else []
        return self.write(self.authority.issue(name, role, hosts, days=5), name)

    def write(self, bundle, name):
        path = self.directory / f"{name}.credentials"
        write_bundle(bundle, path)
        return path

    def serve(self, kind="hub"):
        if kind == "hub":
            return running_hub(MemoryStore(), MemoryBlobStore(), HubSettings(), security=self.security)
        security = SecurityConfig(credentials=self.bundles[Role.RELAY], registry=self.authority.registry)
        return running_relay(NoWeights(), self.directory / "relay", security=security)


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def shown(bundle):
    return channel_credentials(SecurityConfig(credentials=bundle))


async def code_of(address, credentials, method, request=b"", seconds=60.0):
    """How one call ends: None when it is answered, else (status, reason)."""
    channel = open_async_channel(address, credentials, [])
    call = start(channel, method)
    try:
        async with asyncio.timeout(seconds):
            await call(request)
    except grpc.aio.AioRpcError as error:
        return error.code(), getattr(from_rpc_error(error, method), "reason", "")
    except TimeoutError:
        return None  # let in, and waiting for what it asked
    finally:
        await channel.close()
    return None


def start(channel, method):
    """A call of any kind as bytes in, first answer out."""
    descriptor = METHODS.get(method)
    streams_in = descriptor is not None and descriptor.client_streaming
    streams_out = method.endswith("Watch") or (descriptor is not None and descriptor.server_streaming)

    async def call(request):
        if streams_in:
            return await channel.stream_unary(method)(iter([request]))
        if not streams_out:
            return await channel.unary_unary(method)(request)
        stream = channel.unary_stream(method)(request)
        return await stream.read()

    return call


async def refused(address, credentials, method, served):
    """Not let in; a method that is not served answers nobody."""
    outcome = await code_of(address, credentials, method)
    if outcome is not None and method not in served:
        return outcome[0] in {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE}
    return outcome is not None and (outcome[1] in REFUSALS or outcome[0] is grpc.StatusCode.UNAVAILABLE)


def test_the_table_names_every_method_and_no_other():
    assert set(METHOD_ROLES) == {*METHODS, *HEALTH}


def test_a_hubs_certificate_asks_for_health_and_nothing_else():
    assert [method for method, roles in METHOD_ROLES.items() if Role.HUB in roles] == [HEALTH[0]]


@pytest.mark.parametrize("kind", AT)
@pytest.mark.asyncio
async def test_every_method_answers_its_roles_and_refuses_the_others(site, kind):
    async with site.serve(kind) as server:
        for role in Role:
            credentials = shown(site.bundles[role])
            for method, roles in METHOD_ROLES.items():
                outcome = await code_of(server.address, credentials, method, seconds=5)
                if method not in AT[kind]:
                    assert outcome[0] is grpc.StatusCode.UNIMPLEMENTED, (role, method, outcome)
                    continue
                let_in = outcome is None or outcome[1] not in REFUSALS
                assert let_in == (role in roles), (role, method, outcome)


@pytest.mark.parametrize("kind", AT)
@pytest.mark.asyncio
async def test_every_method_refuses_whoever_has_no_valid_credentials(site, tmp_path, kind):
    stranger = Site(tmp_path / "other").bundles[Role.TRAINER]
    unregistered = unregistered_bundle(site)
    revoked = site.bundles[Role.TRAINER]
    site.authority.revoke("trainer")
    async with site.serve(kind) as server:
        for credentials in (None, shown(unregistered), shown(revoked), tls_only(site, stranger)):
            for method in METHOD_ROLES:
                assert await refused(server.address, credentials, method, AT[kind]), method


def tls_only(site, bundle):
    """Another authority's certificate, shown to a hub whose own authority the caller does trust."""
    other = read(bundle)
    return grpc.ssl_channel_credentials(
        read(site.bundles[Role.HUB]).certificate_authority.encode(),
        other.private_key.encode(),
        other.certificate.encode(),
    )


def read(path):
    return read_bundle(path)


def unregistered_bundle(site):
    """A certificate that the authority signed and its registry never saw."""
    held = read(site.bundles[Role.TRAINER])
    pair = issue_certificate(site.authority._pair(), Caller(Role.TRAINER, "trainer"), [], days=5)
    forged = dataclasses.replace(held, certificate=pair.certificate, private_key=pair.private_key)
    return site.write(forged, "forged")


@pytest.mark.parametrize("kind", AT)
@pytest.mark.asyncio
async def test_a_certificate_that_has_ended_is_refused(site, monkeypatch, kind):
    past = dt.datetime.now(dt.UTC) - dt.timedelta(days=2)
    monkeypatch.setattr(certificates, "_lifetime", lambda days: (past, past + dt.timedelta(days=1)))
    ended = site.authority.issue("late", Role.TRAINER, [], days=1)
    credentials = grpc.ssl_channel_credentials(
        ended.certificate_authority.encode(), ended.private_key.encode(), ended.certificate.encode()
    )
    async with site.serve(kind) as server:
        for method in METHOD_ROLES:
            assert await refused(server.address, credentials, method, AT[kind]), method


@pytest.mark.asyncio
async def test_a_certificate_without_its_token_is_refused(site):
    bundle = read(site.bundles[Role.OPERATOR])
    credentials = grpc.ssl_channel_credentials(
        bundle.certificate_authority.encode(), bundle.private_key.encode(), bundle.certificate.encode()
    )
    async with site.serve() as hub:
        status, reason = await code_of(hub.address, credentials, HEALTH[0])
    assert (status, reason) == (grpc.StatusCode.PERMISSION_DENIED, "NOT_AUTHORIZED")


@pytest.mark.asyncio
async def test_a_blocking_caller_shows_its_token_too(site):
    async with site.serve() as hub:
        with open_channel(hub.address, shown(site.bundles[Role.WORKER]), control_options()) as channel:
            answer = await asyncio.to_thread(channel.unary_unary(HEALTH[0]), b"", timeout=60)
    assert answer == SERVING


@pytest.mark.asyncio
async def test_credentials_with_a_token_show_it_in_grpcs_own_way_too(site):
    async with site.serve() as hub:
        credentials = shown(site.bundles[Role.WORKER])
        async with grpc.aio.secure_channel(hub.address, credentials) as channel:
            assert await channel.unary_unary(HEALTH[0])(b"", timeout=60) == SERVING


@pytest.mark.asyncio
async def test_a_channel_without_a_token_is_left_as_it_is(site):
    channel = open_async_channel("127.0.0.1:1", None, [])
    assert isinstance(channel, grpc.aio.Channel)
    await channel.close()


def test_a_revocation_counts_on_an_open_connection(site):
    clock = iter(range(0, 10_000, 2))
    callers = Callers(site.authority.registry, clock=lambda: float(next(clock)))
    bundle = read(site.bundles[Role.WORKER])
    peer = {
        "x509_pem_cert": [bundle.certificate.encode()],
        "x509_subject_alternative_name": [b"hetero-rl://worker/worker"],
    }
    call = (HEALTH[0], peer, [("authorization", f"Bearer {bundle.token}")])
    assert callers.admit(*call) == Caller(Role.WORKER, "worker")
    site.authority.revoke("worker")
    with pytest.raises(Exception, match="were revoked"):
        callers.admit(*call)


def test_a_certificate_that_names_two_callers_names_none(site):
    bundle = read(site.bundles[Role.WORKER])
    peer = {
        "x509_pem_cert": [bundle.certificate.encode()],
        "x509_subject_alternative_name": [b"hetero-rl://worker/worker", b"hetero-rl://trainer/worker"],
    }
    with pytest.raises(Exception, match="names no role"):
        Callers(None).admit(HEALTH[0], peer, [])


def test_a_damaged_registry_stops_the_hub_at_start_and_changes_nothing_later(site, caplog):
    site.authority.registry.write_text("{}")
    with pytest.raises(ConfigError, match="is no registry"):
        Callers(site.authority.registry)


@pytest.mark.asyncio
async def test_a_worker_speaks_under_its_own_name_only(site):
    request = rollout_service_pb2.LeaveRequest(
        worker=rollout_service_pb2.WorkerIdentity(worker_name="somebody", worker_epoch=1)
    )
    own = rollout_service_pb2.LeaveRequest(
        worker=rollout_service_pb2.WorkerIdentity(worker_name="worker-3", worker_epoch=1)
    )
    method = "/hetero_rl.v1.RolloutService/Leave"
    async with site.serve() as hub:
        credentials = shown(site.bundles[Role.WORKER])
        _, reason = await code_of(hub.address, credentials, method, request.SerializeToString())
        _, own_reason = await code_of(hub.address, credentials, method, own.SerializeToString())
    assert reason == "NOT_AUTHORIZED"
    assert own_reason == "NOT_FOUND"  # it never joined, but it may speak


@pytest.mark.asyncio
async def test_a_hub_takes_a_new_certificate_without_stopping(site):
    async with site.serve() as hub:
        first = await served_certificate(hub.address)
        site.issue("hub", Role.HUB)
        second = await served_certificate(hub.address)
    assert first != second


async def served_certificate(address):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()
    return certificate
