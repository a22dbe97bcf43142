"""The directory of an authority: its key, what it issued, what it revoked.

    DIR/authority.pem         certificate of the authority; not secret
    DIR/authority.key         its private key, mode 0600; never leaves this directory
    DIR/registry.json         callers, fingerprints, revocations; what a hub reads (`security.registry`)

Every change of the registry is one atomic replacement, so a hub never reads half of it.
"""

import datetime as dt
import fcntl
import json
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any, TypeVar

from hetero_rl.deploy.certificates import KeyPair, issue_certificate, new_authority
from hetero_rl.errors import ConfigError
from hetero_rl.files import write_whole
from hetero_rl.hub.callers import REGISTRY_FORMAT, Credential, fingerprint, read_registry, token_digest
from hetero_rl.wire.bundle import Bundle
from hetero_rl.wire.roles import Caller, Role, caller_uri

__all__ = ["Authority", "Issued"]

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class Issued:
    """One credential of the registry."""

    certificate_sha256: str
    credential: Credential


class Authority:
    """Issues and revokes the credentials of one run or site.

    Args:
        directory: Made by `create`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        if not self._certificate.exists():
            raise ConfigError(
                f"{directory} holds no authority: make one with `hetero-rl certs init --dir {directory}`"
            )

    @classmethod
    def create(cls, directory: Path, days: int) -> "Authority":
        """Makes a new authority in a directory that holds none.

        Raises:
            ConfigError: There is one already, or the directory cannot be written.
        """
        if (directory / "authority.key").exists():
            raise ConfigError(f"{directory} holds an authority already; every bundle it issued depends on it")
        pair = new_authority("hetero-rl", days)
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(directory / "authority.key", pair.private_key)
            write_whole(directory / "authority.pem", pair.certificate, 0o644)
            write_whole(directory / "registry.json", _document([]), 0o644)
        except OSError as error:
            raise ConfigError(f"{directory} cannot hold an authority: {error.strerror or error}") from error
        return cls(directory)

    def issue(self, name: str, role: Role, hosts: Sequence[str], days: int) -> Bundle:
        """Credentials for a name; what it had before stays valid until it ends or is revoked.

        Args:
            name: Letters, digits, dots, hyphens; a worker joins under it, or under NAME-anything.
            role: What the holder may do.
            hosts: Names under which peers dial the holder.
            days: How long they last.

        Raises:
            ConfigError: The name cannot be one, or another role has it.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} cannot name credentials: 1 to 63 letters, digits, '.', '_' and '-'")
        caller = Caller(role, name)
        pair = issue_certificate(self._pair(), caller, hosts, days)
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        credential = Credential(caller, token_digest(token), pair.not_after.isoformat())
        self._change(lambda entries: _add(entries, Issued(fingerprint(pair.certificate), credential)))
        return Bundle(
            name=name,
            role=role,
            not_after=pair.not_after,
            certificate_authority=self._certificate.read_text(encoding="utf-8"),
            certificate=pair.certificate,
            private_key=pair.private_key,
            token=token,
        )

    def revoke(self, name: str, *, keep_newest: bool = False) -> int:
        """Revokes what a name holds; returns how many credentials.

        Args:
            name: As it was issued.
            keep_newest: Leave the credentials that were issued last.

        Raises:
            ConfigError: The name has none that could be revoked.
        """
        return self._change(lambda entries: _revoke(entries, name, keep_newest=keep_newest))

    def issued(self) -> list[Issued]:
        """Everything that was issued, oldest first."""
        return list(starmap(Issued, read_registry(self.registry).items()))

    @property
    def registry(self) -> Path:
        """The file that a hub reads."""
        return self.directory / "registry.json"

    @property
    def _certificate(self) -> Path:
        return self.directory / "authority.pem"

    def _pair(self) -> KeyPair:
        try:
            key = (self.directory / "authority.key").read_text(encoding="utf-8")
            certificate = self._certificate.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"the authority in {self.directory} cannot be read: {error}") from error
        return KeyPair(certificate, key, dt.datetime.max.replace(tzinfo=dt.UTC))

    def _change(self, change: Callable[[list[Issued]], T]) -> T:
        """Applies a change to the entries of the registry and writes them back; one process at a time."""
        with (self.directory / "registry.lock").open("a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            entries = self.issued()
            outcome = change(entries)
            write_whole(self.registry, _document(entries), 0o644)
            return outcome


def _add(entries: list[Issued], new: Issued) -> None:
    caller = new.credential.caller
    for issued in entries:
        taken = issued.credential.caller
        if taken.name == caller.name and taken.role is not caller.role and not issued.credential.revoked:
            raise ConfigError(
                f"{caller.name!r} has credentials as {taken.role.value}: revoke them, or take another name"
            )
    entries.append(new)


def _revoke(entries: list[Issued], name: str, *, keep_newest: bool) -> int:
    held = [
        index
        for index, issued in enumerate(entries)
        if issued.credential.caller.name == name and not issued.credential.revoked
    ]
    if not held:
        known = sorted({issued.credential.caller.name for issued in entries})
        raise ConfigError(f"{name!r} has no credentials to revoke; issued were: {', '.join(known) or 'none'}")
    revoked = held[:-1] if keep_newest else held
    for index in revoked:
        issued = entries[index]
        entries[index] = Issued(issued.certificate_sha256, _revoked(issued.credential))
    return len(revoked)


def _revoked(credential: Credential) -> Credential:
    return Credential(credential.caller, credential.token_sha256, credential.not_after, revoked=True)


def _document(entries: Sequence[Issued]) -> str:
    credentials: list[dict[str, Any]] = [
        {
            "caller": caller_uri(issued.credential.caller),
            "certificate_sha256": issued.certificate_sha256,
            "token_sha256": issued.credential.token_sha256,
            "not_after": issued.credential.not_after,
            "revoked": issued.credential.revoked,
        }
        for issued in entries
    ]
    return json.dumps({"format": REGISTRY_FORMAT, "credentials": credentials}, indent=2) + "\n"
