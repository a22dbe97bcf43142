"""How a field is refused: one wording for conversion and validation."""

from hetero_rl.errors import InvalidMessageError

__all__ = ["invalid"]


def invalid(field: str, problem: str, reason: str = "INVALID_FIELD") -> InvalidMessageError:
    """The error that refuses a field.

    Args:
        field: Path of the field, such as `TrajectoryBatch.log_probs`.
        problem: The rest of the sentence: the value found and what is expected.
        reason: `RefusalReason` name.

    Example:
        >>> str(invalid("Lease.attempt", "is -1, expected at least 0"))
        'Lease.attempt is -1, expected at least 0'
    """
    return InvalidMessageError(f"{field} {problem}", field, reason)
