"""The hub's answer to "who are you, and may you call this?": certificate, registry, token, role, in this order.

The registry is a file that `hetero-rl certs` keeps: who was given credentials, the fingerprints of certificates and of
tokens, and what was revoked. It holds no secret. The hub looks whether it changed at most once a second, so a
revocation counts at the next call, without a restart and on connections that are open.
"""

import hashlib
import hmac
import json
import logging
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hetero_rl.errors import ConfigError, RefusedError
from hetero_rl.wire.roles import METHOD_ROLES, Caller, caller_of_uri

__all__ = [
    "REGISTRY_FORMAT",
    "Callers",
    "Credential",
    "Registry",
    "fingerprint",
    "read_registry",
    "token_digest",
]

REGISTRY_FORMAT = "hetero-rl-registry/1"
_LOOK_SECONDS = 1.0
_REMEMBERED_CERTIFICATES = 4096

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Credential:
    """One certificate and its token, as the registry knows them."""

    caller: Caller
    token_sha256: str
    not_after: str
    """ISO 8601, UTC."""
    revoked: bool = False


Registry = Mapping[str, Credential]
"""Credentials by the fingerprint of their certificate."""


def fingerprint(certificate_pem: str) -> str:
    """SHA-256 of the first certificate of a PEM text, in hexadecimal."""
    marker = "-----END CERTIFICATE-----"
    first = certificate_pem.partition(marker)[0] + marker
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first[first.index("-----BEGIN") :])).hexdigest()


def token_digest(token: str) -> str:
    """What the registry keeps of a token. Tokens are random and long, so a plain hash does not give them away."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_registry(path: Path) -> Registry:
    """Reads the registry.

    Raises:
        ConfigError: The file cannot be read or is none.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != REGISTRY_FORMAT:
            raise ConfigError(f"security.registry is {path}, whose format is not {REGISTRY_FORMAT!r}")
        return {
            entry["certificate_sha256"]: Credential(
                _caller(entry["caller"]), entry["token_sha256"], entry["not_after"], bool(entry["revoked"])
            )
            for entry in document["credentials"]
        }
    except OSError as error:
        raise ConfigError(f"security.registry is {path}, which cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"security.registry is {path}, which is no registry: {error!r}") from error


def _caller(uri: str) -> Caller:
    caller = caller_of_uri(uri)
    if caller is None:
        raise ValueError(f"{uri!r} names no caller")
    return caller


class Callers:
    """Decides for every call who makes it and whether it is let in.

    Args:
        registry: File of `hetero-rl certs`; None trusts each certificate of the authority for what it says.
        clock: Seconds, monotonic.

    Raises:
        ConfigError: The registry cannot be read.
    """

    def __init__(self, registry: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = registry
        self._clock = clock
        self._credentials = read_registry(registry) if registry is not None else None
        self._stamp = _stamp(registry)
        self._looked = clock()
        self._seen: dict[bytes, tuple[str, Caller | None]] = {}

    def admit(
        self, method: str, peer: Mapping[str, Iterable[bytes]], metadata: Iterable[tuple[str, str | bytes]]
    ) -> Caller:
        """Who calls.

        Args:
            method: Full name, such as /hetero_rl.v1.FleetService/ListWorkers.
            peer: What gRPC says of the peer's certificate.
            metadata: Of the call.

        Raises:
            RefusedError: NOT_AUTHORIZED, with what is missing.
        """
        pem = b"".join(peer.get("x509_pem_cert", ()))
        if not pem:
            raise _refused("the call came without a certificate")
        mark, caller = self._known(pem, peer)
        if caller is None:
            raise _refused("the certificate names no role: it needs a name of the form hetero-rl://ROLE/NAME")
        self._check_registered(mark, caller, metadata)
        allowed = METHOD_ROLES.get(method)
        if allowed is None or caller.role not in allowed:
            raise _refused(f"{caller.name!r} has the role {caller.role.value!r}, which may not call {method}")
        return caller

    def _known(self, pem: bytes, peer: Mapping[str, Iterable[bytes]]) -> tuple[str, Caller | None]:
        known = self._seen.get(pem)
        if known is None:
            names = peer.get("x509_subject_alternative_name", ())
            callers = [caller_of_uri(name.decode(errors="replace")) for name in names]
            named = [caller for caller in callers if caller is not None]
            known = fingerprint(pem.decode()), named[0] if len(named) == 1 else None
            if len(self._seen) >= _REMEMBERED_CERTIFICATES:
                self._seen.clear()
            self._seen[pem] = known
        return known

    def _check_registered(
        self, mark: str, caller: Caller, metadata: Iterable[tuple[str, str | bytes]]
    ) -> None:
        self._look()
        if self._credentials is None:
            return
        credential = self._credentials.get(mark)
        if credential is None or credential.caller != caller:
            raise _refused(f"the registry does not know this certificate of {caller.name!r}")
        if credential.revoked:
            raise _refused(f"the credentials of {caller.name!r} were revoked")
        if not hmac.compare_digest(token_digest(_token(metadata)), credential.token_sha256):
            raise _refused(
                f"the token of {caller.name!r} is missing or is not the one issued with its certificate"
            )

    def _look(self) -> None:
        """Reads the registry again when it changed; one that cannot be read leaves the former one in force."""
        now = self._clock()
        if self._path is None or now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        try:
            self._credentials = read_registry(self._path)
            self._stamp = stamp
        except ConfigError as error:
            _logger.warning("the former registry stays in force: %s", error)


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    if path is None:
        return None
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _token(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    for key, value in metadata:
        if key == "authorization" and isinstance(value, str) and value.startswith("Bearer "):
            return value.removeprefix("Bearer ")
    return ""


def _refused(problem: str) -> RefusedError:
    return RefusedError(f"not authorized: {problem}", "NOT_AUTHORIZED")
