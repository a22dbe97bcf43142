"""Mutual TLS or plaintext: credentials from the security settings, and which listen addresses they allow."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from hetero_rl.config.tree import SecurityConfig
from hetero_rl.errors import ConfigError
from hetero_rl.telemetry.logs import hide
from hetero_rl.wire.bundle import read_bundle
from hetero_rl.wire.channels import is_loopback
from hetero_rl.wire.tokens import TokenCredentials

__all__ = ["Identity", "channel_credentials", "check_listen_address", "server_credentials", "server_identity"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """What one side shows in a handshake, and whom it believes. PEM bytes."""

    authority: bytes
    certificate: bytes
    private_key: bytes
    token: str = ""

    def __repr__(self) -> str:
        return "Identity(<redacted>)"


def channel_credentials(security: SecurityConfig) -> grpc.ChannelCredentials | None:
    """Credentials that a worker, trainer or CLI shows to the hub; None for plaintext.

    Raises:
        ConfigError: A file cannot be read, or the certificate has ended.
    """
    identity = _identity(security, security.credentials)
    if identity is None:
        return None
    transport = grpc.ssl_channel_credentials(
        root_certificates=identity.authority,
        private_key=identity.private_key,
        certificate_chain=identity.certificate,
    )
    if not identity.token:
        return transport
    return TokenCredentials(transport, identity.token)


def server_credentials(security: SecurityConfig) -> grpc.ServerCredentials | None:
    """Credentials of the hub, which asks every caller for a certificate of the same authority; None for plaintext.

    The files are looked at again at each handshake, so a certificate is replaced without stopping the hub.

    Raises:
        ConfigError: A file cannot be read, or the certificate has ended.
    """
    bundle = security.hub_credentials or security.credentials
    identity = server_identity(security)
    if identity is None:
        return None
    paths = (
        [bundle] if bundle else [security.certificate_authority, security.certificate, security.private_key]
    )
    watched = [path for path in paths if path is not None]
    reload = _Reload(watched, lambda: _identity(security, bundle))
    return grpc.dynamic_ssl_server_credentials(
        _configuration(identity),
        reload.changed_configuration,  # type: ignore[arg-type]  # None is documented: unchanged
        require_client_authentication=True,
    )


def server_identity(security: SecurityConfig) -> Identity | None:
    """What a server of this process shows, and whom it believes; None for plaintext.

    Raises:
        ConfigError: A file cannot be read, or the certificate has ended.
    """
    return _identity(security, security.hub_credentials or security.credentials)


class _Reload:
    """The certificate again when its files changed. gRPC asks at each handshake, from threads of its own."""

    def __init__(self, paths: list[Path], read: Callable[[], Identity | None]) -> None:
        self._paths = paths
        self._read = read
        self._lock = threading.Lock()
        self._stamp = _stamp(paths)

    def changed_configuration(self) -> grpc.ServerCertificateConfiguration | None:
        """The new configuration; None while nothing changed, and while what is there cannot be used."""
        with self._lock:
            stamp = _stamp(self._paths)
            if stamp == self._stamp:
                return None
            try:
                identity = self._read()
            except ConfigError as error:
                _logger.warning("the hub keeps its former certificate: %s", error)
                return None
            self._stamp = stamp
            return None if identity is None else _configuration(identity)


def _stamp(paths: list[Path]) -> list[tuple[int, int, int]]:
    stamps = []
    for path in paths:
        try:
            status = path.stat()
            stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            stamps.append((0, 0, 0))
    return stamps


def _configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(identity.private_key, identity.certificate)], root_certificates=identity.authority
    )


def _identity(security: SecurityConfig, bundle: Path | None) -> Identity | None:
    if bundle is not None:
        held = read_bundle(bundle)
        hide(held.token, held.private_key)
        return Identity(
            held.certificate_authority.encode(),
            held.certificate.encode(),
            held.private_key.encode(),
            held.token,
        )
    if security.certificate_authority is None or security.certificate is None or security.private_key is None:
        return None
    return Identity(
        _read(security.certificate_authority, "security.certificate_authority"),
        _read(security.certificate, "security.certificate"),
        _read(security.private_key, "security.private_key"),
    )


def check_listen_address(
    address: str, security: SecurityConfig, setting: str = "hub.listen", role: str = "hub"
) -> None:
    """Refuses to listen where strangers can call without a certificate.

    Args:
        address: host:port that is about to be listened on.
        security: Settings of the transport.
        setting: Where the address comes from, for the message.
        role: Whose bundle would allow it, for the message.

    Raises:
        ConfigError: The address is not loopback, TLS is off and `security.insecure` is not set.
    """
    if security.serves_tls or security.insecure or is_loopback(address):
        return
    bundle = "security.hub_credentials" if role == "hub" else "--credentials"
    raise ConfigError(
        f"{setting} is {address!r}, which other machines can reach, and TLS is off: set {bundle} to a bundle of"
        f" `hetero-rl certs issue --role {role}`, listen on 127.0.0.1, or type --insecure if the network itself"
        " keeps strangers out"
    )


def _read(path: Path, setting: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting} is {path}, which cannot be read: {error.strerror or error}") from error
