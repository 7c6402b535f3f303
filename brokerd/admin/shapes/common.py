# Tests: tests/admin/test_openapi.py
"""What the API takes and answers, as types: they read requests, write answers and describe both.

Times are ISO 8601 in UTC, by broker time; durations are seconds (docs/admin-api.rst).
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
"""How many partitions, of all its entries, one page looks at."""
NUMBER_MAX = (1 << 62) - 1
SECONDS_MAX = 100 * 365 * 86_400
"""A hundred years, as everywhere."""

Offset = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Index = Annotated[int, Meta(ge=0, le=32_767)]
Limit = Annotated[int, Meta(ge=1, le=PAGE_MAX)]
Seconds = Annotated[float, Meta(ge=0, le=SECONDS_MAX)]
Bytes = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Time = Annotated[datetime, Meta(tz=True)]

Thing = TypeVar("Thing")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def time_of(time_us: int) -> datetime:
    """Broker time for people and programs; what no calendar holds is its end."""
    try:
        return _EPOCH + time_us * _MICROSECOND
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def time_us_of(time: datetime) -> int:
    """Broker time in microseconds."""
    return (time - _EPOCH) // _MICROSECOND


def seconds_of(duration_us: int) -> float:
    """A duration in seconds."""
    return duration_us / 1e6


def us_of(seconds: float) -> int:
    """A duration in microseconds."""
    return round(seconds * 1e6)


class Refusal(Struct):
    """Why a request was refused."""

    error: str
    """What is wrong, where, and what to do."""
    retryable: bool
    """Whether the same request may succeed later, unchanged."""


class Query(Struct, frozen=True, forbid_unknown_fields=True):
    """A query string; what it does not name is refused."""


class Page(Query, frozen=True):
    """A page of a list: how many to skip, how many to show."""

    first: Offset = 0
    limit: Limit = 1_000

    def of(self, found: Iterable[Thing], partitions: int) -> tuple[list[Thing], int | None]:
        """(what to show, where the next page begins); ``partitions`` are those of each thing.

        What has many partitions takes long to describe, so fewer of it are a page.
        """
        most = min(self.limit, max(1, PAGE_PARTITIONS // max(1, partitions)))
        page = list(islice(found, self.first, self.first + most + 1))
        return page[:most], self.first + most if len(page) > most else None


class Place(Query, frozen=True):
    """A page of a list by offset: where it begins, how many to show."""

    partition: Index = 0
    offset: Offset = 0
    limit: Limit = 1_000


class LetterQuery(Place, frozen=True):
    """Which dead letters to show."""

    reason: str | None = None
    before: Time | None = None


class RecordQuery(Query, frozen=True):
    """Which records to read."""

    partition: Index = 0
    offset: Offset = 0
    limit: Limit = 100
    bytes_max: Annotated[int, Meta(ge=1, le=1 << 20)] = 256 << 10


class ScheduleQuery(Query, frozen=True):
    """Which delayed messages to show."""

    first_id: Offset = 0
    limit: Limit = 1_000


class NextPlace(Struct):
    """Where the next page begins."""

    partition: int
    offset: int


class Deleted(Struct):
    """What was deleted."""

    deleted: str
