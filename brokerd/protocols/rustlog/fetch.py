# Tests: tests/protocols/test_rustlog.py
"""RustLog's answers to Fetch: their limits, and gaps between offsets in each dialect.

Answers of the binary dialect contain no offsets, so their records have consecutive offsets from the
requested one. JSON answers contain offsets and may have gaps (page, section Fetch).
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
"""One byte of payload takes up to four characters. One megabyte takes about 10 ms to encode."""

LIMITS = {
    Dialect.BINARY: (BINARY_RECORDS_MAX, BINARY_BYTES_MAX),
    Dialect.JSON: (JSON_RECORDS_MAX, JSON_BYTES_MAX),
}
"""Largest number of records and bytes of one answer. The first record alone may be larger."""


def fetch_answer(
    dialect: Dialect,
    offset: int,
    records: Sequence[Record],
    next_offset: int,
    error: Exception | None,
) -> Fetched:
    """Return the answer to a Fetch from ``offset`` on, with the records that were read.

    Raises `Refusal`, or ``error`` itself if it is `Denied` or `AuthenticationRequired`.
    """
    if isinstance(error, Denied | AuthenticationRequired):
        raise error
    if error is not None:
        raise _unreadable(error, next_offset)
    if not records:
        return Fetched((), (), next_offset)
    if not _fits(dialect, records[0].offset, records[0].value):
        raise _too_large(records[0])
    offsets, _, values, _ = columns_of(records)
    if dialect is Dialect.BINARY:
        return _without_gaps(offset, offsets, values)
    return Fetched(offsets, values, next_offset)


def _unreadable(error: Exception, next_offset: int) -> Refusal:
    if isinstance(error, Unreadable):
        return FETCH_FAILED.because(f"{error}; go on from offset {next_offset}")
    return FETCH_FAILED.because(f"{error}; try again")


def check_sizes(dialect: Dialect, base_offset: int, records: Sequence[bytes]) -> None:
    """Raise `Refusal` for records of a Produce that do not fit an answer of the same dialect.

    Records of at most `JSON_BYTES_MAX` bytes together always fit.
    """
    for offset, value in enumerate(records, base_offset):
        if not _fits(dialect, offset, value):
            raise PRODUCE_FAILED.because(
                f"a record of {len(value)} bytes does not fit an answer of {MAX_PAYLOAD} bytes; "
                "send smaller ones"
            )


def _fits(dialect: Dialect, offset: int, value: bytes) -> bool:
    """Return whether a record fits an answer."""
    size = len(value)
    if dialect is Dialect.BINARY:
        return size <= MAX_RECORD_BYTES
    if size <= JSON_BYTES_MAX:
        return True
    return 2 * size <= MAX_PAYLOAD and fetched_length(offset, value) <= MAX_PAYLOAD


def _too_large(record: Record) -> Refusal:
    return FETCH_FAILED.because(
        f"the record at offset {record.offset} has {len(record.value)} bytes and does not fit an "
        f"answer of {MAX_PAYLOAD} bytes; go on from offset {record.offset + 1}"
    )


def _without_gaps(offset: int, offsets: Sequence[int], values: Sequence[bytes]) -> Fetched:
    """Return the records up to the first gap; if it is at ``offset``, none and the next offset."""
    if offsets[0] != offset:
        return Fetched((), (), offsets[0])
    count = len(offsets)
    if offsets[-1] != offset + count - 1:
        count = next(index for index, one in enumerate(offsets) if one != offset + index)
        values = values[:count]
    end = offset + count
    return Fetched(range(offset, end), values, end)
