# Tests: tests/admin/test_openapi.py
"""Types of requests and answers: they decode requests, encode answers and describe both.

Times are ISO 8601 in UTC, in broker time. Durations are seconds (docs/admin-api.rst). Docstrings
of the types are descriptions in the OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated, TypeVar

from msgspec import Meta, Struct

PAGE_MAX = 10_000
"""Most entries of one page."""
PAGE_PARTITIONS = 40_000
"""Most partitions of all entries of one page, because each takes time to describe."""
NUMBER_MAX = (1 << 62) - 1
SECONDS_MAX = 100 * 365 * 86_400
"""A hundred years, the limit on durations in all wire formats."""

Offset = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Index = Annotated[int, Meta(ge=0, le=32_767)]
Limit = Annotated[int, Meta(ge=1, le=PAGE_MAX)]
Seconds = Annotated[float, Meta(ge=0, le=SECONDS_MAX)]
Bytes = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Time = Annotated[datetime, Meta(tz=True)]

Entry = TypeVar("Entry")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def time_of(time_us: int) -> datetime:
    """Convert broker time to a datetime; a time past the year 9999 becomes the last one in it."""
    try:
        return _EPOCH + time_us * _MICROSECOND
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def time_us_of(time: datetime) -> int:
    """Convert a datetime to broker time in microseconds."""
    return (time - _EPOCH) // _MICROSECOND


def seconds_of(duration_us: int) -> float:
    """Convert microseconds to seconds."""
    return duration_us / 1e6


def us_of(seconds: float) -> int:
    """Convert seconds to microseconds."""
    return round(seconds * 1e6)


class Refusal(Struct):
    """The answer to a refused request."""

    error: str
    """The reason, its place, and a remedy."""
    retryable: bool
    """Whether the same request may succeed later, unchanged."""


class Query(Struct, frozen=True, forbid_unknown_fields=True):
    """A query string. Unknown parameters are refused."""


class Page(Query, frozen=True):
    """A page of a list: the number of entries to skip, and the number to return."""

    first: Offset = 0
    limit: Limit = 1_000

    def select(self, entries: Iterable[Entry], partitions: int) -> tuple[list[Entry], int | None]:
        """Return (entries of the page, ``first`` of the next page or None).

        Each entry has this many partitions. A page has fewer entries if they have many.
        """
        most = min(self.limit, max(1, PAGE_PARTITIONS // max(1, partitions)))
        page = list(islice(entries, self.first, self.first + most + 1))
        return page[:most], self.first + most if len(page) > most else None


class OffsetPage(Query, frozen=True):
    """A page of a list by offset: its first position, and the number of entries to return."""

    partition: Index = 0
    offset: Offset = 0
    limit: Limit = 1_000


class LetterQuery(OffsetPage, frozen=True):
    """A page of the dead letters that match."""

    reason: str | None = None
    before: Time | None = None


class RecordQuery(Query, frozen=True):
    """A range of records to read."""

    partition: Index = 0
    offset: Offset = 0
    limit: Limit = 100
    bytes_max: Annotated[int, Meta(ge=1, le=1 << 20)] = 256 << 10


class TimeQuery(Query, frozen=True):
    """A partition and a time."""

    time: Time
    partition: Index = 0


class ScheduleQuery(Query, frozen=True):
    """A page of delayed messages."""

    first_id: Offset = 0
    limit: Limit = 1_000


class NextPlace(Struct):
    """The first position of the next page."""

    partition: int
    offset: int


class Deleted(Struct):
    """The name of the deleted object."""

    deleted: str
