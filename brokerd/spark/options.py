# Tests: tests/spark/test_options.py
"""Parses and checks the options of the source, which docs/spark.rst describes.

Spark passes strings, and ignores the case of option names. No pyspark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

from brokerd.archive.contract.layout import LAYOUTS, RECORDS
from brokerd.errors import BrokerdError, escaped
from brokerd.spark.request import PARTITION_BYTES, AsOf, Request

Payload = Literal["bytes", "json", "msgpack", "schema"]

NAMES = (
    "topics",
    "columns",
    "from",
    "to",
    "payload",
    "archive",
    "partitionBytes",
    "tail",
    "only",
    "maxBytesPerTrigger",
    "failOnDataLoss",
    "streamName",
    "streamServer",
    "streamKeyFile",
    "streamHoldsRetention",
    "failOnReportError",
    "tls",
    "tlsCaFile",
    "tlsCertificateFile",
    "tlsKeyFile",
    "tlsServerName",
    "table",
    "versionAsOf",
    "timestampAsOf",
    "lsnAsOf",
)
_AS_OF = NAMES[-3:]
_OF_REPORTS = NAMES[NAMES.index("streamName") : NAMES.index("table")]
"""The options of named streams: `brokerd.spark.stream_report`."""
_OF_ALL_TABLES = ("table", "columns", "archive", "partitionBytes")
ARCHIVE = "archive"
JOURNAL = "journal"
EARLIEST = "earliest"
LATEST = "latest"
OFFSET_MAX = (1 << 63) - 1
MAX_BYTES_MIN = 1 << 10
"""The smallest ``maxBytesPerTrigger``. With a smaller limit, most micro-batches would be empty."""

_KAFKA = {
    "kafka.bootstrap.servers": "load() takes the broker's data directory, or an archive",
    "subscribe": "topics names the topics",
    "subscribepattern": "topics names the topics, and * in it stands for any characters",
    "startingoffsets": "from is the beginning",
    "startingoffsetsbytimestamp": "from is the beginning, also as a time",
    "startingtimestamp": "from is the beginning, also as a time",
    "endingoffsets": "to is the end",
    "endingoffsetsbytimestamp": "to is the end, also as a time",
    "endingtimestamp": "to is the end, also as a time",
    "maxoffsetspertrigger": "maxBytesPerTrigger limits a micro-batch",
}
"""What takes the place of options of Spark's source for Kafka.

https://spark.apache.org/docs/latest/streaming/structured-streaming-kafka-integration.html
"""
_PATH = "path"
_PATHS = "paths"
"""Options of Spark itself: the path given to ``load``, and several paths as JSON."""
_LOCATION = "location"
"""The property of a table of Spark's catalog that has its path."""
_PROVIDER = "provider"
_OF_CATALOG = frozenset(
    {
        "collation",
        "comment",
        "external",
        "is_managed_location",
        _LOCATION,
        "owner",
        _PROVIDER,
        "table_type",
    }
)
"""Properties that Spark reserves (TableCatalog). It passes them when a table is created."""
_CATALOG_PREFIX = "option."
"""Begins further names of the options when a table is created: Spark passes both names."""
_PAYLOADS: dict[str, Payload] = {
    "bytes": "bytes",
    "json": "json",
    "msgpack": "msgpack",
    "schema": "schema",
}
_SIZE = re.compile(r"(\d{1,19}) ?(|KiB|MiB|GiB)", re.ASCII)
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_OFFSET = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_PARTITION = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_QUOTED_CHARACTERS = 60
_POSITIONS = (
    "a time such as 2026-11-01 or 2026-11-01T12:30:00Z, an offset such as 1200, or offsets by "
    'topic and partition such as {"orders": {"0": 1200}}'
)


class BadOption(BrokerdError):
    """An option is unknown, or has an invalid value."""


class Position(NamedTuple):
    """A position where reading begins or ends. At most one field is set; none means no limit."""

    time_us: int | None = None
    offset: int | None = None
    offsets: Mapping[str, Mapping[int, int]] = {}


class Options(NamedTuple):
    """All options of a user."""

    path: str
    archive: str | None
    table: str
    """A table of the archive. ``records`` stands for the whole log."""
    payload: Payload
    request: Request
    start: str | None
    """The option ``from``, in the user's form."""
    to: str | None
    max_bytes: int | None
    """The size of a micro-batch, in bytes of the journal."""
    fail_on_data_loss: bool | None = None
    """Whether a stream fails if records were removed before it read them. None: not given."""
    report: Mapping[str, str] = {}
    """The options of a named stream that are given."""
    typed_columns: tuple[str, ...] | None = None
    """The option ``columns`` with ``payload=schema``, which may name fields of the schema."""

    @property
    def topic(self) -> str:
        """Return the only topic, for ``payload=schema``."""
        (name,) = self.request.topics or ()
        return name


def is_of_catalog(given: Mapping[str, str]) -> bool:
    """Return whether Spark passes the properties of a table that it is creating."""
    return any(name.lower() == _PROVIDER for name in given)


def option_texts(options: Mapping[str, object]) -> dict[str, str]:
    """Convert the values of options to text as Spark does."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


def parse_options(given: Mapping[str, str]) -> Options:
    """Parse and check the options of a batch or of a stream.

    :param given: option names in any case.
    :raises BadOption: the text names the option, its value and the allowed values.
    """
    values = {name.lower(): value for name, value in given.items()}
    if _PATHS in values:
        raise BadOption("load() takes one path: load each path alone, and union the results")
    path = values.pop(_PATH, "") or values.get(_LOCATION, "")
    known = {name.lower(): name for name in NAMES}
    values = {
        name: value
        for name, value in values.items()
        if name not in _OF_CATALOG and not name.startswith(_CATALOG_PREFIX)
    }
    for name in values:
        if name not in known:
            hint = _KAFKA.get(name, f"the options are {', '.join(NAMES)}")
            raise BadOption(f"unknown option {_quoted(name)}; {hint}")
    values = {known[name]: value for name, value in values.items()}
    table = _table(values)
    only = _only(values)
    payload = _payload(values)
    typed_columns = None
    if payload == "schema":
        if "columns" in values:
            typed_columns = tuple(name.strip() for name in values.pop("columns").split(","))
        _check_one_topic(_topics(values))
    request = Request(
        topics=_topics(values),
        columns=_columns(values, table),
        partition_bytes=parse_size(values, "partitionBytes") or PARTITION_BYTES,
        tail=parse_boolean(values, "tail", True),
        archived=only != JOURNAL,
        unarchived=only != ARCHIVE,
        as_of=_as_of(values),
    )
    max_bytes = parse_size(values, "maxBytesPerTrigger")
    if max_bytes is not None and max_bytes < MAX_BYTES_MIN:
        raise BadOption(
            f"maxBytesPerTrigger={max_bytes} is too small: give {MAX_BYTES_MIN} or more"
        )
    options = Options(
        path=path,
        archive=_nonempty(values, "archive"),
        table=table,
        payload=payload,
        request=request,
        start=values.get("from"),
        to=values.get("to"),
        max_bytes=max_bytes,
        fail_on_data_loss=(
            parse_boolean(values, "failOnDataLoss", True) if "failOnDataLoss" in values else None
        ),
        report={name: values[name] for name in _OF_REPORTS if name in values},
        typed_columns=typed_columns,
    )
    if options.report and "streamName" not in options.report:
        raise BadOption(
            f"{next(iter(options.report))} is for named streams: give streamName, too, or leave it "
            "out"
        )
    if options.start is not None:
        parse_start(options.start)
    if options.to is not None:
        _parse_position("to", options.to)
    return options


def batch_request(options: Options) -> Request:
    """Return the request of a batch. Raises `BadOption` for an option of streams."""
    if options.max_bytes is not None:
        raise BadOption("maxBytesPerTrigger is for streams: leave it out, or use readStream")
    if options.fail_on_data_loss is not None:
        raise BadOption("failOnDataLoss is for streams: leave it out, or use readStream")
    if options.report:
        raise BadOption(f"{next(iter(options.report))} is for streams: leave it out")
    if options.start == LATEST:
        raise BadOption(
            "from=latest is for streams: a batch ends at the end of the log, so it would have "
            "no rows; give a time or an offset"
        )
    start = Position() if options.start is None else parse_start(options.start)
    to = Position() if options.to is None else _parse_position("to", options.to)
    if options.request.as_of is not None and (start.offsets or to.offsets):
        raise BadOption(
            "the topics of an earlier version are unknown, so from and to take no offsets by "
            "topic: give one offset or a time, or conditions on the rows"
        )
    return options.request._replace(
        to_time_us=to.time_us, to_offset=to.offset, to_offsets=to.offsets, **_start_fields(start)
    )


def stream_request(options: Options) -> Request:
    """Return the request of a stream's micro-batches, without the LSNs of a single batch.

    :raises BadOption: for an option of batches.
    """
    if options.table != RECORDS.name:
        raise BadOption(f"the table {options.table} cannot be streamed: use spark.read")
    if options.to is not None:
        raise BadOption(
            "to is for batches: leave it out and end the stream at the end of the log with "
            "Trigger.AvailableNow, or use spark.read"
        )
    if options.request.as_of is not None:
        raise BadOption(f"{', '.join(_AS_OF)} are for batches: use spark.read")
    if not (options.request.archived and options.request.unarchived):
        raise BadOption(
            "only is for batches: a stream reads each record where it is at that moment; leave it "
            "out, or use spark.read"
        )
    return options.request._replace(unknown_topics=True)


def add_start(request: Request, start: str | None) -> Request:
    """Return a stream's request with its ``from``, which must not be `LATEST`."""
    return request if start is None else request._replace(**_start_fields(parse_start(start)))


def parse_start(text: str) -> Position:
    """Parse the option ``from``. `EARLIEST` and `LATEST` set no limit. Raises `BadOption`."""
    return Position() if text in (EARLIEST, LATEST) else _parse_position("from", text)


def _start_fields(start: Position) -> dict[str, Any]:
    return {
        "from_time_us": start.time_us,
        "from_offset": start.offset,
        "from_offsets": start.offsets,
    }


# -- Values --------------------------------------------------------------------------------------


def _parse_position(name: str, text: str) -> Position:
    stripped = text.strip()
    if stripped.startswith("{"):
        return Position(offsets=_offsets(name, stripped))
    if _OFFSET.fullmatch(stripped):
        return Position(offset=_check_offset(name, stripped, int(stripped)))
    try:
        time = datetime.fromisoformat(stripped)
    except ValueError:
        allowed = _POSITIONS + (", or earliest or latest" if name == "from" else "")
        raise BadOption(f"{name}={_quoted(text)} is not a position: give {allowed}") from None
    return Position(time_us=microseconds(time if time.tzinfo else time.replace(tzinfo=UTC)))


def microseconds(time: datetime) -> int:
    """Convert a time with a time zone to microseconds since the Unix epoch."""
    return (time - _EPOCH) // _MICROSECOND


def _offsets(name: str, text: str) -> dict[str, dict[int, int]]:
    offsets: dict[str, dict[int, int]] = {}
    for topic, partitions in _json(name, text).items():
        if not isinstance(partitions, dict):
            raise BadOption(
                f"{name}: topic {_quoted(topic)} has the value {_quoted(partitions)}: give an "
                'object of partitions and their offsets, such as {"0": 1200}'
            )
        offsets[topic] = {}
        for partition, offset in partitions.items():
            where = escaped(f"{name}: {topic}, partition {partition}")
            if not _PARTITION.fullmatch(partition):
                raise BadOption(f"{where}: this is not a partition number")
            offsets[topic][int(partition)] = _check_offset(where, offset, offset)
    return offsets


def _check_offset(where: str, written: object, offset: object) -> int:
    is_number = isinstance(offset, int) and not isinstance(offset, bool)
    if not isinstance(offset, int) or not is_number or not 0 <= offset <= OFFSET_MAX:
        raise BadOption(
            f"{where}: {_quoted(written)} is not an offset: give a whole number, 0 or more"
        )
    return offset


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadOption(f"{name}={_quoted(text)} is not JSON: {error}") from None


def _topics(values: Mapping[str, str]) -> tuple[str, ...] | None:
    text = values.get("topics")
    if text is None:
        return None
    names: Any
    if text.lstrip().startswith("["):
        names = _json("topics", text)
        if not all(isinstance(name, str) for name in names):
            raise BadOption(f"topics={_quoted(text)}: every item of the array must be a string")
    else:
        names = [name.strip() for name in text.split(",")]
        if not all(names):
            names = []
    if not names:
        raise BadOption(
            f"topics={_quoted(text)} lacks a name: give names with commas, or a JSON array; "
            "leave it out to read all topics"
        )
    return tuple(dict.fromkeys(names))


def _check_one_topic(topics: tuple[str, ...] | None) -> None:
    if topics is None or len(topics) != 1 or "*" in topics[0]:
        raise BadOption(
            "payload=schema has the columns of one topic: give its name alone in the option topics"
        )


def _table(values: Mapping[str, str]) -> str:
    table = values.get("table", RECORDS.name).strip().lower()
    if table not in LAYOUTS:
        raise BadOption(f"table={_quoted(table)} is unknown: give {', '.join(LAYOUTS)}")
    for name in values:
        if table != RECORDS.name and name not in _OF_ALL_TABLES:
            raise BadOption(f"{name} is for the table records, not for {table}: leave it out")
    return table


def _columns(values: Mapping[str, str], table: str) -> tuple[str, ...]:
    text = values.get("columns")
    every = tuple(column.name for column in LAYOUTS[table].file_columns())
    if text is None:
        return every
    by_name = {name.lower(): name for name in every}
    columns: list[str] = []
    for written in text.split(","):
        name = by_name.get(written.strip().lower())
        if name is None or name in columns:
            problem = "is given twice" if name else "is not a column"
            raise BadOption(
                f"columns={_quoted(text)}: {_quoted(written.strip())} {problem}; the columns are "
                f"{', '.join(every)}"
            )
        columns.append(name)
    return tuple(columns)


def _only(values: Mapping[str, str]) -> str | None:
    text = values.get("only")
    if text is not None and text.strip().lower() not in (ARCHIVE, JOURNAL):
        raise BadOption(f"only={_quoted(text)} is unknown: give {ARCHIVE} or {JOURNAL}")
    return None if text is None else text.strip().lower()


def _as_of(values: Mapping[str, str]) -> AsOf | None:
    given = [name for name in _AS_OF if name in values]
    if not given:
        return None
    if len(given) > 1:
        raise BadOption(f"{' and '.join(given)} exclude each other: give one of them")
    for name in ("only", "tail"):
        if name in values:
            raise BadOption(f"{name} has no effect with {given[0]}: leave it out")
    name, text = given[0], values[given[0]].strip()
    if name == "timestampAsOf":
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise BadOption(
                f"{name}={_quoted(text)} is not a time: give one such as 2026-11-01T12:30:00Z"
            ) from None
        return AsOf(time_us=microseconds(time if time.tzinfo else time.replace(tzinfo=UTC)))
    if not _OFFSET.fullmatch(text) or not 0 <= int(text) <= OFFSET_MAX:
        raise BadOption(f"{name}={_quoted(text)} is not a whole number, 0 or more")
    return AsOf(version=int(text)) if name == "versionAsOf" else AsOf(lsn=int(text))


def _payload(values: Mapping[str, str]) -> Payload:
    text = values.get("payload", "bytes")
    payload = _PAYLOADS.get(text.strip().lower())
    if payload is None:
        raise BadOption(f"payload={_quoted(text)} is unknown: give {', '.join(_PAYLOADS)}")
    return payload


def parse_size(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    size = _SIZE.fullmatch(text.strip())
    if size is None or not 0 < int(size[1]) * _UNITS[size[2]] <= OFFSET_MAX:
        raise BadOption(f"{name}={_quoted(text)} is not a size: give bytes, as 67108864, or 64MiB")
    return int(size[1]) * _UNITS[size[2]]


def parse_boolean(values: Mapping[str, str], name: str, default: bool) -> bool:
    text = values.get(name)
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise BadOption(f"{name}={_quoted(text)} is neither true nor false")
    return text.strip().lower() == "true"


def _nonempty(values: Mapping[str, str], name: str) -> str | None:
    text = values.get(name)
    if text is not None and not text.strip():
        raise BadOption(f"{name} is empty: give an address, or leave the option out")
    return text


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _QUOTED_CHARACTERS else f"{text[:_QUOTED_CHARACTERS]}…"
