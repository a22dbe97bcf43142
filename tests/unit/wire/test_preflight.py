"""The look at the hub before anything else names what is wrong."""

import socket

import pytest

from hetero_rl.config.tree import SecurityConfig
from hetero_rl.errors import ConfigError, RefusedError, UnreachableError
from hetero_rl.wire.credentials import channel_credentials, check_listen_address, server_credentials
from hetero_rl.wire.health import ServingStatus, decode_status, encode_status
from hetero_rl.wire.preflight import preflight
from hetero_rl.wire.refusal import to_refusal


def security(certificates, name):
    return SecurityConfig(
        certificate_authority=certificates / f"{name}-ca.pem",
        certificate=certificates / f"{name}.pem",
        private_key=certificates / f"{name}.key",
    )


def test_a_hub_that_serves_passes(serve):
    preflight(serve(), None, 60)


def test_nothing_listens_there():
    with socket.socket() as bound:  # holds the port, and does not listen
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        with pytest.raises(UnreachableError, match=f"nothing listens at 127.0.0.1:{port}"):
            preflight(f"127.0.0.1:{port}", None, 60)


def test_an_address_without_a_port_is_refused():
    with pytest.raises(RefusedError, match="expected host:port"):
        preflight("localhost", None, 60)


def test_a_hub_that_is_not_ready_may_become_so(serve):
    with pytest.raises(UnreachableError, match="NOT_SERVING"):
        preflight(serve(status=ServingStatus.NOT_SERVING), None, 60)


def test_a_hub_that_refuses_for_now_is_a_hub(serve):
    refusal = to_refusal(RefusedError("the hub is shutting down", "SHUTTING_DOWN"))
    with pytest.raises(UnreachableError, match="shutting down"):
        preflight(serve(refusal=refusal), None, 60)


@pytest.mark.parametrize("parts", [{"fleet": False}, {"status": None}])
def test_another_grpc_server_is_not_a_hub(serve, parts):
    with pytest.raises(RefusedError, match="not a hetero-rl hub") as caught:
        preflight(serve(**parts), None, 60)
    assert caught.value.reason == "INCOMPATIBLE"


def test_a_program_that_does_not_speak_grpc_is_not_a_hub():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises((RefusedError, UnreachableError), match="hub"):
            preflight(f"127.0.0.1:{port}", None, 1)


def test_mutual_tls_with_one_authority_passes(serve, certificates):
    site = security(certificates, "site")
    preflight(serve(credentials=server_credentials(site)), channel_credentials(site), 60)


def test_certificates_of_two_authorities_are_refused_at_once(serve, certificates):
    address = serve(credentials=server_credentials(security(certificates, "site")))
    with pytest.raises(RefusedError, match="certificates of one authority") as caught:
        preflight(address, channel_credentials(security(certificates, "other")), 60)
    assert caught.value.reason == "NOT_AUTHORIZED"


def test_plaintext_towards_a_hub_with_tls_is_refused_at_once(serve, certificates):
    address = serve(credentials=server_credentials(security(certificates, "site")))
    with pytest.raises(RefusedError, match="wants TLS"):
        preflight(address, None, 60)


def test_tls_towards_a_plaintext_hub_is_refused_at_once(serve, certificates):
    with pytest.raises(RefusedError, match="does not speak TLS"):
        preflight(serve(), channel_credentials(security(certificates, "site")), 60)


def test_without_settings_there_are_no_credentials():
    assert channel_credentials(SecurityConfig()) is None
    assert server_credentials(SecurityConfig()) is None


def test_a_certificate_that_cannot_be_read_is_named(tmp_path):
    paths = {name: tmp_path / name for name in ("certificate_authority", "certificate", "private_key")}
    with pytest.raises(ConfigError, match="No such file"):
        channel_credentials(SecurityConfig(**paths))


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.8.8.8:1", "localhost:1", "[::1]:1"])
def test_loopback_needs_no_tls(address):
    check_listen_address(address, SecurityConfig())


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "hub.example:1", ":1"])
def test_any_other_address_without_tls_is_refused_with_what_to_do(address):
    with pytest.raises(ConfigError, match=r"--insecure"):
        check_listen_address(address, SecurityConfig())
    check_listen_address(address, SecurityConfig(insecure=True))


@pytest.mark.parametrize("status", ServingStatus)
def test_the_health_messages_are_those_of_the_protocol(status):
    assert encode_status(status) == (b"\x08" + bytes([status]) if status else b"")
    assert decode_status(encode_status(status)) is status


@pytest.mark.parametrize("response", [b"\x08", b"\x08\x09", b"\x10\x01", b"\x08\x01\x00"])
def test_a_health_message_of_another_form_is_unknown(response):
    assert decode_status(response) is ServingStatus.UNKNOWN
