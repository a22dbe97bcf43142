"""One look at the hub before anything else: tells a wrong setting from a hub that is not there yet.

A failed TLS handshake and a dead network are the same status to gRPC (UNAVAILABLE), so a loop that waits for the hub
would wait for ever on a wrong certificate. The check asks the socket, then TLS, then the health service, in this order,
and names the first that fails.
"""

import contextlib
import socket
import ssl
import time

import grpc

from hetero_rl.errors import RefusedError, UnreachableError
from hetero_rl.v1 import fleet_service_pb2, fleet_service_pb2_grpc
from hetero_rl.wire.channels import control_options, open_channel
from hetero_rl.wire.health import CHECK_METHOD, ServingStatus, decode_status
from hetero_rl.wire.refusal import carries_refusal

__all__ = ["preflight"]

_HANDSHAKE_SECONDS = 10.0
_NOT_A_HUB = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND)


def preflight(address: str, credentials: grpc.ChannelCredentials | None, timeout: float) -> None:
    """Returns when a hub serves at `address`; blocks for at most about `timeout` seconds.

    Args:
        address: host:port.
        credentials: What later calls will show; None for plaintext.
        timeout: Seconds.

    Raises:
        UnreachableError: Nothing listens there, the hub does not answer in time or does not serve now: it may be worth
            coming back.
        RefusedError: TLS failed (NOT_AUTHORIZED), or whoever answers is no hub of hetero-rl (INCOMPATIBLE): a setting is
            wrong and waiting does not help.
    """
    deadline = time.monotonic() + timeout
    _check_socket(address, timeout)
    with open_channel(address, credentials, control_options()) as channel:
        try:
            status = _check_health(channel, deadline)
            _check_service(channel, deadline)
        except grpc.RpcError as error:
            code, text = _code_and_text(error)
            if carries_refusal(error):
                raise UnreachableError(f"the hub at {address} does not serve now: {text}") from error
            raise _explain(address, credentials, code, text) from error
    if status is not ServingStatus.SERVING:
        raise UnreachableError(
            f"the hub at {address} is up but says {status.name}: it is starting, shutting down, or cannot write its journal"
        )


def _check_socket(address: str, timeout: float) -> None:
    try:
        with socket.create_connection(_host_and_port(address), timeout):
            return
    except TimeoutError as error:
        raise UnreachableError(
            f"{address} did not answer within {timeout:g} s: check the address and the firewall"
        ) from error
    except OSError as error:
        raise UnreachableError(
            f"nothing listens at {address} ({error.strerror or error}): start the hub or correct hub.address"
        ) from error


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise RefusedError(f"hub.address is {address!r}, expected host:port", "INCOMPATIBLE")
    return host.strip("[]"), int(port)


def _check_health(channel: grpc.Channel, deadline: float) -> ServingStatus:
    # Without serializers the call passes bytes: an empty request asks for the whole server.
    check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(CHECK_METHOD)
    return decode_status(check(b"", timeout=_remaining(deadline)))


def _check_service(channel: grpc.Channel, deadline: float) -> None:
    stub = fleet_service_pb2_grpc.FleetServiceStub(channel)
    stub.GetRunStatus(fleet_service_pb2.GetRunStatusRequest(), timeout=_remaining(deadline))


def _remaining(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.1)


def _code_and_text(error: object) -> tuple[grpc.StatusCode, str]:
    if isinstance(error, grpc.Call):
        return error.code(), error.details() or ""
    return grpc.StatusCode.UNKNOWN, str(error)


def _explain(
    address: str, credentials: grpc.ChannelCredentials | None, code: grpc.StatusCode, text: str
) -> RefusedError | UnreachableError:
    if code in _NOT_A_HUB:
        return RefusedError(
            f"{address} speaks gRPC but is not a hetero-rl hub ({text}): correct hub.address", "INCOMPATIBLE"
        )
    if code in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}:
        return RefusedError(
            f"the hub at {address} does not let this certificate in: {text}", "NOT_AUTHORIZED"
        )
    if code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}:
        return _explain_connection(address, credentials, text)
    return UnreachableError(f"the hub at {address} did not answer: {code.name}: {text}")


def _explain_connection(
    address: str, credentials: grpc.ChannelCredentials | None, text: str
) -> RefusedError | UnreachableError:
    """The socket opened and gRPC failed: does whoever listens there speak TLS?"""
    speaks_tls = _speaks_tls(address)
    if credentials is not None and speaks_tls:
        return RefusedError(
            f"TLS with the hub at {address} failed ({text}): both sides need certificates of one authority, and the hub's"
            " must name this host",
            "NOT_AUTHORIZED",
        )
    if credentials is not None:
        return RefusedError(
            f"{address} does not speak TLS but security.certificate is set: start the hub with certificates too",
            "NOT_AUTHORIZED",
        )
    if speaks_tls:
        return RefusedError(
            f"the hub at {address} wants TLS: set security.certificate_authority, security.certificate and"
            " security.private_key",
            "NOT_AUTHORIZED",
        )
    return RefusedError(f"{address} is not a hetero-rl hub ({text}): correct hub.address", "INCOMPATIBLE")


def _speaks_tls(address: str) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Nothing is sent and nothing is trusted: the question is only whether a handshake begins.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with contextlib.suppress(OSError):
        plain = socket.create_connection(_host_and_port(address), _HANDSHAKE_SECONDS)
        with plain, context.wrap_socket(plain):
            return True
    return False
