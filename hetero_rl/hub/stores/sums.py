"""Checksums of rows: SQLite keeps none, so a flipped bit in a value would be read as another value.

A sum is the CRC-32 of all other values of its row, as SQLite returns them; it finds every single flipped bit and every burst of
up to 32. It is held against the row whenever the row is read. Rows that are older than the sums have NULL in their place and
are not checked; in a journal that began with sums, NULL is damage too.
"""

import zlib
from collections.abc import Iterable
from pathlib import Path

from hetero_rl.errors import DamagedJournalError

__all__ = ["SUM_FUNCTION", "Sums", "real", "row_sum", "sum_of_values"]

SUM_FUNCTION = "row_sum"
"""Name under which statements call `sum_of_values`."""


def row_sum(values: Iterable[object], *blobs: bytes | None) -> int:
    """CRC-32 of values and blobs.

    Args:
        values: Integers, floats, texts, None, or tuples and lists of them; of no other class, not even a derived one.
        blobs: Large values, which come after the others whatever their columns are.
    """
    # In a damaged row anything may stand where a blob was.
    lengths = [len(blob) if isinstance(blob, bytes) else blob for blob in blobs]
    # Text that is no UTF-8 comes from nobody but a damaged disk.
    crc = zlib.crc32(repr((tuple(values), lengths)).encode(errors="surrogatepass"))
    for blob in blobs:
        if blob and isinstance(blob, bytes):
            crc = zlib.crc32(blob, crc)
    return crc


def real(value: float) -> float:
    """A number as a column of the type REAL returns it: a float, and without the sign of a zero."""
    return float(value) + 0.0


def sum_of_values(*values: object) -> int:
    """`row_sum` for statements that change rows which they do not read; what is bytes is a blob."""
    blobs = [value for value in values if isinstance(value, bytes)]
    return row_sum((value for value in values if not isinstance(value, bytes)), *blobs)


class Sums:
    """Holds sums against rows of one journal.

    Args:
        path: The journal, for messages.
        all_rows: Whether every row has a sum.
    """

    def __init__(self, path: Path, *, all_rows: bool) -> None:
        self._path = path
        self._all_rows = all_rows

    def fits(self, found: int | None, values: Iterable[object], *blobs: bytes | None) -> bool:
        """Whether the sum `found` beside a row is that of its values."""
        if found is None:
            return not self._all_rows
        return found == row_sum(values, *blobs)

    def require(self, what: str, found: int | None, values: Iterable[object], *blobs: bytes | None) -> None:
        """Raises DamagedJournalError, naming `what`, when the sum does not fit: nothing can stand in for such a row."""
        if not self.fits(found, values, *blobs):
            raise DamagedJournalError(
                f"{self._path} is damaged: {what} does not have the checksum that was stored with it; "
                "see docs/operations.md, section Damaged journals"
            )
