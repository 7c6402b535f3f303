# Tests: tests/protocols/test_rustlog.py
"""What RustLog answers to a Fetch: how much, and what becomes of gaps, in each dialect.

The binary dialect does not write offsets, so its records follow one another from the offset asked
for; JSON writes them and passes over gaps (page, section Fetch).
"""

from __future__ import annotations

from collections.abc import Sequence

from brokerd.broker.records.cold_reader import Unreadable
from brokerd.codecs.rustlog import (
    FETCHED_BYTES,
    LENGTH_BYTES,
    MAX_PAYLOAD,
    MAX_RECORD_BYTES,
    Dialect,
    Fetched,
    fetched_length,
)
from brokerd.errors import AuthenticationRequired, Denied
from brokerd.protocols.rustlog.refusals import FETCH_FAILED, PRODUCE_FAILED, Refusal
from brokerd.values import Record, columns_of

BINARY_RECORDS_MAX = 65_536
BINARY_BYTES_MAX = MAX_PAYLOAD - FETCHED_BYTES - BINARY_RECORDS_MAX * LENGTH_BYTES
JSON_RECORDS_MAX = 10_000
JSON_BYTES_MAX = 1 << 20
"""Payload takes up to four characters a byte, and about 10 ms a megabyte."""

LIMITS = {
    Dialect.BINARY: (BINARY_RECORDS_MAX, BINARY_BYTES_MAX),
    Dialect.JSON: (JSON_RECORDS_MAX, JSON_BYTES_MAX),
}
"""Records and bytes of one answer at most, unless the first record alone has more."""


def fetched(
    dialect: Dialect,
    offset: int,
    records: Sequence[Record],
    next_offset: int,
    error: Exception | None,
) -> Fetched:
    """The answer to a Fetch from ``offset`` on of what was read.

    Raises `Refusal`, and ``error`` itself if that says that the permission has gone.
    """
    if isinstance(error, Denied | AuthenticationRequired):
        raise error
    if error is not None:
        raise _unreadable(error, next_offset)
    if not records:
        return Fetched((), (), next_offset)
    if not _fits(dialect, records[0].offset, records[0].value):
        raise _too_large(records[0])
    offsets, _, values = columns_of(records)
    if dialect is Dialect.BINARY:
        return _without_gaps(offset, offsets, values)
    return Fetched(offsets, values, next_offset)


def _unreadable(error: Exception, next_offset: int) -> Refusal:
    if isinstance(error, Unreadable):
        return FETCH_FAILED.because(f"{error}; go on from offset {next_offset}")
    return FETCH_FAILED.because(f"{error}; try again")


def check_sizes(dialect: Dialect, base_offset: int, records: Sequence[bytes]) -> None:
    """Refuse records of a Produce that no Fetch of the same dialect could answer with.

    Needless when all of them together have no more than `JSON_BYTES_MAX`. Raises `Refusal`.
    """
    for offset, value in enumerate(records, base_offset):
        if not _fits(dialect, offset, value):
            raise PRODUCE_FAILED.because(
                f"a record of {len(value)} bytes is too large: no answer of {MAX_PAYLOAD} bytes "
                "could carry it; send smaller ones"
            )


def _fits(dialect: Dialect, offset: int, value: bytes) -> bool:
    """Whether an answer can carry a record; only the first of many can be so long."""
    size = len(value)
    if dialect is Dialect.BINARY:
        return size <= MAX_RECORD_BYTES
    if size <= JSON_BYTES_MAX:
        return True
    return 2 * size <= MAX_PAYLOAD and fetched_length(offset, value) <= MAX_PAYLOAD


def _too_large(record: Record) -> Refusal:
    return FETCH_FAILED.because(
        f"the record at offset {record.offset} has {len(record.value)} bytes, which no answer of "
        f"{MAX_PAYLOAD} bytes can carry; go on from offset {record.offset + 1}"
    )


def _without_gaps(offset: int, offsets: Sequence[int], values: Sequence[bytes]) -> Fetched:
    """The records up to the first gap; none, and where they go on, if there is one at once."""
    if offsets[0] != offset:
        return Fetched((), (), offsets[0])
    count = len(offsets)
    if offsets[-1] != offset + count - 1:
        count = next(index for index, one in enumerate(offsets) if one != offset + index)
        values = values[:count]
    end = offset + count
    return Fetched(range(offset, end), values, end)
