"""Mutual TLS or plaintext: credentials from the security settings, and which listen addresses they allow."""

from pathlib import Path

import grpc

from hetero_rl.config.tree import SecurityConfig
from hetero_rl.errors import ConfigError
from hetero_rl.wire.channels import is_loopback

__all__ = ["channel_credentials", "check_listen_address", "server_credentials"]


def channel_credentials(security: SecurityConfig) -> grpc.ChannelCredentials | None:
    """Credentials that a worker, trainer or CLI shows to the hub; None for plaintext.

    Raises:
        ConfigError: A file cannot be read.
    """
    if security.certificate_authority is None or security.certificate is None or security.private_key is None:
        return None
    return grpc.ssl_channel_credentials(
        root_certificates=_read(security.certificate_authority, "security.certificate_authority"),
        private_key=_read(security.private_key, "security.private_key"),
        certificate_chain=_read(security.certificate, "security.certificate"),
    )


def server_credentials(security: SecurityConfig) -> grpc.ServerCredentials | None:
    """Credentials of the hub, which asks every caller for a certificate of the same authority; None for plaintext.

    Raises:
        ConfigError: A file cannot be read.
    """
    if security.certificate_authority is None or security.certificate is None or security.private_key is None:
        return None
    private_key = _read(security.private_key, "security.private_key")
    certificate = _read(security.certificate, "security.certificate")
    return grpc.ssl_server_credentials(
        [(private_key, certificate)],
        root_certificates=_read(security.certificate_authority, "security.certificate_authority"),
        require_client_auth=True,
    )


def check_listen_address(address: str, security: SecurityConfig) -> None:
    """Refuses to listen where strangers can call without a certificate.

    Args:
        address: host:port that the hub is about to listen on.
        security: Settings of the transport.

    Raises:
        ConfigError: The address is not loopback, TLS is off and `security.insecure` is not set.
    """
    if security.enabled or security.insecure or is_loopback(address):
        return
    raise ConfigError(
        f"hub.listen is {address!r}, which other machines can reach, and TLS is off: set security.certificate_authority,"
        " security.certificate and security.private_key, listen on 127.0.0.1, or set security.insecure = true if the"
        " network itself keeps strangers out"
    )


def _read(path: Path, setting: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting} is {path}, which cannot be read: {error.strerror or error}") from error
