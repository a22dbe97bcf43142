"""Keeps what looks like a secret out of everything that is printed."""

import re

__all__ = ["REDACTED", "is_secret_key", "shown_value"]

REDACTED = "<redacted>"

# The tree itself has no secret: keys and certificates are paths. The free tables (`task.options`,
# `estimator.options`) take what a user puts there.
_SECRET_KEY = re.compile(
    r"(^|[_-])(secret|password|passphrase|token|api[_-]?key|credentials?)$", re.IGNORECASE
)


def is_secret_key(key: str) -> bool:
    """Whether a setting of that name is kept out of what is shown."""
    return _SECRET_KEY.search(key) is not None


def shown_value(key: str, value: object) -> str:
    """The value as text, or a stand-in when its key says that it is secret."""
    return REDACTED if is_secret_key(key) and isinstance(value, str) else repr(value)
