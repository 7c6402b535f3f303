# Tests: tests/spark/test_options.py
"""The options of the source, as docs/spark.rst has them: words that people write, checked.

Spark hands over strings, and takes no notice of the case of their names. No pyspark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

from brokerd.archive.contract.layout import LAYOUTS, RECORDS
from brokerd.errors import BrokerdError, escaped
from brokerd.spark.plan.plan import PARTITION_BYTES, Request

Payload = Literal["bytes", "json", "msgpack"]

NAMES = (
    "topics",
    "columns",
    "from",
    "to",
    "payload",
    "archive",
    "partitionBytes",
    "tail",
    "maxBytesPerTrigger",
    "table",
)
_OF_ALL_TABLES = ("table", "columns", "archive", "partitionBytes")
EARLIEST = "earliest"
LATEST = "latest"
OFFSET_MAX = (1 << 63) - 1
MAX_BYTES_MIN = 1 << 10
"""With fewer most micro-batches would hold no record."""

_PATH = "path"
_PATHS = "paths"
"""Spark's own: what ``load`` was called with, and that as JSON if it were several."""
_PAYLOADS: dict[str, Payload] = {"bytes": "bytes", "json": "json", "msgpack": "msgpack"}
_SIZE = re.compile(r"(\d{1,19}) ?(|KiB|MiB|GiB)", re.ASCII)
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_OFFSET = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_PARTITION = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SHOWN_CHARACTERS = 60
_PLACES = (
    "a time such as 2026-11-01 or 2026-11-01T12:30:00Z, an offset such as 1200, or offsets by "
    'topic and partition such as {"orders": {"0": 1200}}'
)


class BadOption(BrokerdError):
    """An option is not one of those there are, or has a value that means nothing."""


class Bound(NamedTuple):
    """Where reading begins or ends: at most one of these is given; none: nothing limits it."""

    time_us: int | None = None
    offset: int | None = None
    offsets: Mapping[str, Mapping[int, int]] = {}


class Options(NamedTuple):
    """All that a user said."""

    path: str
    archive: str | None
    table: str
    """Of the archive; ``records`` is the whole log."""
    payload: Payload
    request: Request
    start: str | None
    """The option ``from``, as it was written."""
    to: str | None
    max_bytes: int | None
    """Of the journal, for one micro-batch."""


def parse_options(given: Mapping[str, str]) -> Options:
    """Understand what the user of a batch or of a stream said.

    :param given: names in any case.
    :raises BadOption: naming the option, its value, and what may stand there.
    """
    values = {name.lower(): value for name, value in given.items()}
    if _PATHS in values:
        raise BadOption("load() takes one place: read several one by one, and unite them")
    path = values.pop(_PATH, "")
    known = {name.lower(): name for name in NAMES}
    for name in values:
        if name not in known:
            raise BadOption(f"there is no option {_shown(name)}; there are {', '.join(NAMES)}")
    found = {known[name]: value for name, value in values.items()}
    table = _table(found)
    request = Request(
        topics=_topics(found),
        columns=_columns(found, table),
        partition_bytes=_size(found, "partitionBytes") or PARTITION_BYTES,
        tail=_truth(found, "tail", True),
    )
    max_bytes = _size(found, "maxBytesPerTrigger")
    if max_bytes is not None and max_bytes < MAX_BYTES_MIN:
        raise BadOption(f"maxBytesPerTrigger={max_bytes} is too small: {MAX_BYTES_MIN} at least")
    options = Options(
        path=path,
        archive=_filled(found, "archive"),
        table=table,
        payload=_payload(found),
        request=request,
        start=found.get("from"),
        to=found.get("to"),
        max_bytes=max_bytes,
    )
    if options.start is not None:
        parse_start(options.start)
    if options.to is not None:
        _parse_bound("to", options.to)
    return options


def batch_request(options: Options) -> Request:
    """What a batch reads. Raises `BadOption` for what only a stream may be told."""
    if options.max_bytes is not None:
        raise BadOption("maxBytesPerTrigger is for streams: leave it out, or use readStream")
    if options.start == LATEST:
        raise BadOption(
            "from=latest is for streams: a batch ends where the log ends now, so there would be "
            "no rows; name a time or an offset"
        )
    start = Bound() if options.start is None else parse_start(options.start)
    to = Bound() if options.to is None else _parse_bound("to", options.to)
    return options.request._replace(
        to_time_us=to.time_us, to_offset=to.offset, to_offsets=to.offsets, **_from(start)
    )


def stream_request(options: Options) -> Request:
    """What each micro-batch reads, but for where it begins and ends.

    :raises BadOption: for what only a batch may be told.
    """
    if options.table != RECORDS.name:
        raise BadOption(f"the table {options.table} is no stream: use spark.read")
    if options.to is not None:
        raise BadOption(
            "to is not for streams: leave it out, and let Trigger.AvailableNow end the stream "
            "where the log ends, or use spark.read"
        )
    return options.request._replace(unknown_topics=True)


def began_at(request: Request, start: str | None) -> Request:
    """The request of a stream that began at this ``from``, which is not `LATEST`."""
    return request if start is None else request._replace(**_from(parse_start(start)))


def parse_start(text: str) -> Bound:
    """Understand a ``from``. Raises `BadOption`. `EARLIEST` and `LATEST` limit nothing."""
    return Bound() if text in (EARLIEST, LATEST) else _parse_bound("from", text)


def _from(start: Bound) -> dict[str, Any]:
    return {
        "from_time_us": start.time_us,
        "from_offset": start.offset,
        "from_offsets": start.offsets,
    }


# -- Values --------------------------------------------------------------------------------------


def _parse_bound(name: str, text: str) -> Bound:
    said = text.strip()
    if said.startswith("{"):
        return Bound(offsets=_offsets(name, said))
    if _OFFSET.fullmatch(said):
        return Bound(offset=_checked_offset(name, said, int(said)))
    try:
        time = datetime.fromisoformat(said)
    except ValueError:
        places = _PLACES + (", or earliest or latest" if name == "from" else "")
        raise BadOption(f"{name}={_shown(text)} says no place in the log: give {places}") from None
    return Bound(time_us=microseconds(time if time.tzinfo else time.replace(tzinfo=UTC)))


def microseconds(time: datetime) -> int:
    """Microseconds since the Unix epoch of a time that has a time zone."""
    return (time - _EPOCH) // _MICROSECOND


def _offsets(name: str, text: str) -> dict[str, dict[int, int]]:
    found = _json(name, text)
    offsets: dict[str, dict[int, int]] = {}
    for topic, partitions in found.items():
        if not isinstance(partitions, dict):
            raise BadOption(
                f"{name}: of the topic {_shown(topic)} it says {_shown(partitions)}: give an "
                'object of partitions and their offsets, such as {"0": 1200}'
            )
        offsets[topic] = {}
        for partition, offset in partitions.items():
            where = f"{name}: {topic}, partition {partition}"
            if not _PARTITION.fullmatch(partition):
                raise BadOption(f"{escaped(where)}: that is no number of a partition")
            offsets[topic][int(partition)] = _checked_offset(escaped(where), offset, offset)
    return offsets


def _checked_offset(where: str, said: object, offset: object) -> int:
    is_number = isinstance(offset, int) and not isinstance(offset, bool)
    if not isinstance(offset, int) or not is_number or not 0 <= offset <= OFFSET_MAX:
        raise BadOption(f"{where}: {_shown(said)} is no offset: give a whole number from 0 on")
    return offset


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadOption(f"{name}={_shown(text)} is not JSON: {error}") from None


def _topics(found: Mapping[str, str]) -> tuple[str, ...] | None:
    text = found.get("topics")
    if text is None:
        return None
    names: Any
    if text.lstrip().startswith("["):
        names = _json("topics", text)
        if not all(isinstance(name, str) for name in names):
            raise BadOption(f"topics={_shown(text)}: all of the array must be strings")
    else:
        names = [name.strip() for name in text.split(",")]
        if not all(names):
            names = []
    if not names:
        raise BadOption(
            f"topics={_shown(text)} lacks a name: give names with commas between, or a JSON array; "
            "leave it out to read all topics"
        )
    return tuple(dict.fromkeys(names))


def _table(found: Mapping[str, str]) -> str:
    table = found.get("table", RECORDS.name).strip().lower()
    if table not in LAYOUTS:
        raise BadOption(f"table={_shown(table)} is none: give {', '.join(LAYOUTS)}")
    for name in found:
        if table != RECORDS.name and name not in _OF_ALL_TABLES:
            raise BadOption(f"{name} is for the table records, not for {table}: leave it out")
    return table


def _columns(found: Mapping[str, str], table: str) -> tuple[str, ...]:
    text = found.get("columns")
    every = tuple(column.name for column in LAYOUTS[table].file_columns())
    if text is None:
        return every
    by_name = {name.lower(): name for name in every}
    columns = []
    for said in text.split(","):
        name = by_name.get(said.strip().lower())
        if name is None or name in columns:
            what = "is there twice" if name else "is no column"
            raise BadOption(
                f"columns={_shown(text)}: {_shown(said.strip())} {what}; there are "
                f"{', '.join(every)}"
            )
        columns.append(name)
    return tuple(columns)


def _payload(found: Mapping[str, str]) -> Payload:
    text = found.get("payload", "bytes")
    payload = _PAYLOADS.get(text.strip().lower())
    if payload is None:
        raise BadOption(f"payload={_shown(text)} is none: give {', '.join(_PAYLOADS)}")
    return payload


def _size(found: Mapping[str, str], name: str) -> int | None:
    text = found.get(name)
    if text is None:
        return None
    size = _SIZE.fullmatch(text.strip())
    if size is None or not 0 < int(size[1]) * _UNITS[size[2]] <= OFFSET_MAX:
        raise BadOption(f"{name}={_shown(text)} is no size: give bytes, such as 67108864, or 64MiB")
    return int(size[1]) * _UNITS[size[2]]


def _truth(found: Mapping[str, str], name: str, default: bool) -> bool:
    text = found.get(name)
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise BadOption(f"{name}={_shown(text)} says neither true nor false")
    return text.strip().lower() == "true"


def _filled(found: Mapping[str, str], name: str) -> str | None:
    text = found.get(name)
    if text is not None and not text.strip():
        raise BadOption(f"{name} is empty: give an address, or leave the option out")
    return text


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
