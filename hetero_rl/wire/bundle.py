"""A credentials bundle: everything that one host needs to call the hub, in one file to copy.

The file is JSON with mode 0600: certificate, private key, the authority's certificate, a token, and in plain words whose
they are and until when. `hetero-rl certs issue` writes it; `security.credentials` names it.
"""

import datetime as dt
import functools
import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from hetero_rl.errors import ConfigError
from hetero_rl.files import write_whole
from hetero_rl.wire.roles import Caller, Role

__all__ = ["BUNDLE_FORMAT", "Bundle", "read_bundle", "unpack_bundle", "write_bundle"]

BUNDLE_FORMAT = "hetero-rl-credentials/1"
_MOST_BYTES = 2**20
_WARNING_DAYS = 14
_FIELDS = {
    "format",
    "name",
    "role",
    "not_after",
    "certificate_authority",
    "certificate",
    "private_key",
    "token",
}

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bundle:
    """Credentials of one name in one role. PEM texts; `token` never appears in logs or reports."""

    name: str
    role: Role
    not_after: dt.datetime
    """When the certificate ends, UTC."""
    certificate_authority: str
    certificate: str
    private_key: str
    token: str

    def __repr__(self) -> str:
        return f"Bundle(name={self.name!r}, role={self.role.value!r}, not_after={self.not_after:%Y-%m-%d})"

    @property
    def caller(self) -> Caller:
        """Whom the hub will see."""
        return Caller(self.role, self.name)


def write_bundle(bundle: Bundle, path: Path) -> None:
    """Writes a bundle that its owner alone can read. An existing file is replaced in one step."""
    fields = {"format": BUNDLE_FORMAT, **asdict(bundle), "not_after": bundle.not_after.isoformat()}
    write_whole(path, json.dumps(fields, indent=2) + "\n")


def unpack_bundle(bundle: Bundle, directory: Path, *, group_readable: bool = False) -> tuple[str, ...]:
    """Writes what is in a bundle as files, for programs that know no bundles; returns the names of the files.

    Args:
        bundle: Credentials.
        directory: Made where it is missing.
        group_readable: Whether the group of the files may read them too.
    """
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o750 if group_readable else 0o700)
    files = {
        "ca.pem": bundle.certificate_authority,
        "certificate.pem": bundle.certificate,
        "key.pem": bundle.private_key,
        "token": bundle.token,
    }
    for name, text in files.items():
        write_whole(directory / name, text, 0o640 if group_readable else 0o600)
    return tuple(files)


def read_bundle(path: Path) -> Bundle:
    """Reads a bundle; says in the log when others can read the file, or when the certificate ends soon.

    Raises:
        ConfigError: The file cannot be read, is no bundle, or its certificate has ended.
    """
    try:
        status = path.stat()
        if status.st_size > _MOST_BYTES:
            raise ConfigError(f"{path} has {status.st_size} bytes, which is no credentials bundle")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"security.credentials is {path}, which cannot be read: {error}") from error
    bundle = _parse(text, path)
    _note(bundle, path, others_read=bool(status.st_mode & 0o077))
    return bundle


def _parse(text: str, path: Path) -> Bundle:
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} is no credentials bundle: {error}") from error
    if not isinstance(fields, dict) or fields.get("format") != BUNDLE_FORMAT:
        raise ConfigError(
            f"{path} is no credentials bundle of the format {BUNDLE_FORMAT!r}: make one with `hetero-rl certs issue`"
        )
    if set(fields) != _FIELDS or not all(isinstance(value, str) for value in fields.values()):
        raise ConfigError(
            f"{path} is a damaged credentials bundle: it must have the text fields {sorted(_FIELDS)}"
        )
    try:
        role = Role(fields["role"])
        not_after = dt.datetime.fromisoformat(fields["not_after"])
    except ValueError as error:
        raise ConfigError(f"{path} is a damaged credentials bundle: {error}") from error
    del fields["format"]
    return Bundle(**{**fields, "role": role, "not_after": not_after})


def _note(bundle: Bundle, path: Path, *, others_read: bool) -> None:
    left = bundle.not_after - dt.datetime.now(dt.UTC)
    if left.total_seconds() <= 0:
        raise ConfigError(
            f"{path}: the certificate of {bundle.name!r} ended on {bundle.not_after:%Y-%m-%d}; issue another with"
            f" `hetero-rl certs issue {bundle.name}` and copy it here"
        )
    _warn_once(path, f"{bundle!r}", others_read, left.days if left.days < _WARNING_DAYS else None)


@functools.lru_cache(maxsize=64)
def _warn_once(path: Path, shown: str, others_read: bool, days_left: int | None) -> None:
    if others_read:
        _logger.warning("%s can be read by others than its owner: chmod 600 %s", path, path)
    if days_left is not None:
        _logger.warning("%s: %s ends in %d days; issue another in time", path, shown, days_left)
