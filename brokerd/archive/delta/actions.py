# Tests: tests/archive/test_table.py
"""Builds the actions of a commit. `brokerd.archive.delta.log_files` decodes them.

They follow the Delta protocol, section "Actions":
https://github.com/delta-io/delta/blob/master/PROTOCOL.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import uuid4

import msgspec

from brokerd.archive.contract.layout import LOG_ID_PROPERTY, VERSION, VERSION_PROPERTY, Layout
from brokerd.archive.delta.log_files import (
    PROTOCOL,
    TAG,
    FileStats,
    encode_stats,
)
from brokerd.archive.parquet.plain_file import PlainFileInfo
from brokerd.archive.parquet.writer import FileInfo

Action = dict[str, Any]

_YEAR_9999_US = 253_370_764_800_000_000
"""The end of the times that Delta readers can express."""
STATISTICS_PROPERTY = "delta.dataSkippingStatsColumns"
"""Without it, deltalake skips all files when a filter uses a column without statistics."""
_PROPERTIES = {
    VERSION_PROPERTY: str(VERSION),
    "delta.checkpointInterval": "1000000",
    "delta.enableExpiredLogCleanup": "false",
}


class AddFile(NamedTuple):
    """A file for a commit to add. The file and its directory are durable."""

    path: str
    """Relative to the table. Directories ``column=value`` give values of partition columns."""
    size: int
    stats: FileStats
    minimum: Mapping[str, int | str] = {}
    """The smallest values of some columns; times in microseconds."""
    maximum: Mapping[str, int | str] = {}
    nulls: Mapping[str, int] = {}
    """The number of nulls of each column. Other programs skip no file without it."""


def add_file(file: FileInfo) -> AddFile:
    """Convert a file of `brokerd.archive.parquet.writer.FileWriter`."""
    time = "append_time" if "append_time" in file.minimum else "time"
    stats = FileStats(
        rows=file.rows,
        content=file.content,
        first_time_us=file.minimum.get(time, -1),
        last_time_us=file.maximum.get(time, -1),
        first_lsn=file.minimum.get("lsn", -1),
        last_lsn=file.maximum.get("lsn", -1),
        keyed=file.keyed,
        tombstones=file.tombstones,
        expiring=file.expiring,
        described=1,
        text=int(file.text),
    )
    return AddFile(file.path, file.size, stats, *_limits(file), file.nulls)


def add_plain_file(file: PlainFileInfo, time: str) -> AddFile:
    """Convert a file of `brokerd.archive.parquet.plain_file.PlainFileWriter`.

    :param file: has a path relative to the table.
    :param time: the column with the time of a row.
    """
    stats = FileStats(
        rows=file.rows,
        first_time_us=file.minimum[time],
        last_time_us=file.maximum[time],
        first_lsn=file.minimum.get("lsn", -1),
        last_lsn=file.maximum.get("lsn", -1),
        described=1,
    )
    return AddFile(file.path, file.size, stats, *_limits(file), file.nulls)


def _limits(file: FileInfo | PlainFileInfo) -> tuple[dict[str, int | str], dict[str, int | str]]:
    """Return the smallest and the largest values of a file's columns."""
    minimum: dict[str, int | str] = {**file.minimum}
    maximum: dict[str, int | str] = {**file.maximum}
    for name, (low, high) in file.texts.items():
        minimum[name], maximum[name] = low, high
    return minimum, maximum


def add_action(file: AddFile, layout: Layout, now_ms: int, *, data_change: bool = True) -> Action:
    """Build the action that adds a file.

    :param data_change: whether the commit changes the rows of the table.
    """
    statistics = {
        "numRecords": file.stats.rows,
        "minValues": dict(_statistics(file.minimum, layout, 0)),
        "maxValues": dict(_statistics(file.maximum, layout, 999)),
        "nullCount": dict(file.nulls),
    }
    directories = file.path.split("/")[:-1]
    return {
        "add": {
            "path": _quoted(file.path),
            "partitionValues": dict(part.split("=", 1) for part in directories if "=" in part),
            "size": file.size,
            "modificationTime": now_ms,
            "dataChange": data_change,
            "stats": msgspec.json.encode(statistics).decode(),
            "tags": {TAG: encode_stats(file.stats)},
        }
    }


def _statistics(
    values: Mapping[str, int | str], layout: Layout, round_us: int
) -> Iterator[tuple[str, int | str]]:
    """Yield values with times in Delta's milliseconds, after adding ``round_us`` to round up."""
    times = {column.name for column in layout.columns if column.type == "timestamp"}
    for name, value in values.items():
        if name not in times or isinstance(value, str):
            yield name, value
        elif 0 <= value < _YEAR_9999_US:
            since = timedelta(milliseconds=(value + round_us) // 1000)
            moment = datetime.fromtimestamp(0, UTC) + since
            yield name, moment.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def remove_action(path: str, now_ms: int, *, data_change: bool = True) -> Action:
    """Build the action that removes a file; ``data_change`` as in `add_action`."""
    return {
        "remove": {
            "path": _quoted(path),
            "deletionTimestamp": now_ms,
            "dataChange": data_change,
            "extendedFileMetadata": False,
        }
    }


def _quoted(path: str) -> str:
    return quote(path, safe="/=-._")


def transaction_action(app_id: str, version: int, now_ms: int) -> Action:
    """Build the action that sets the version of an app transaction."""
    return {"txn": {"appId": app_id, "version": version, "lastUpdated": now_ms}}


def create_actions(
    layout: Layout, log_id: str, now_ms: int, further: Mapping[str, str] | None = None
) -> list[Action]:
    """Build the actions that create an empty table.

    :param further: properties of its own.
    """
    properties = {
        **_PROPERTIES,
        **(further or {}),
        STATISTICS_PROPERTY: statistics_of(layout),
        LOG_ID_PROPERTY: log_id,
    }
    return [protocol_action(), metadata_action(layout, str(uuid4()), properties, now_ms)]


def metadata_action(
    layout: Layout, table_id: str, properties: Mapping[str, str], created_ms: int
) -> Action:
    """Build the action with the schema and the properties of a table."""
    columns: list[dict[str, Any]] = [
        {"name": c.name, "type": _type(c.type), "nullable": c.nullable, "metadata": {}}
        for c in layout.columns
    ]
    metadata = {
        "id": table_id,
        "name": layout.name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": msgspec.json.encode({"type": "struct", "fields": columns}).decode(),
        "partitionColumns": list(layout.partition_by),
        "configuration": dict(properties),
        "createdTime": created_ms,
    }
    return {"metaData": metadata}


def _type(name: str) -> str | msgspec.Raw:
    """Return the JSON of a type: a name, or the object of a nested type."""
    return msgspec.Raw(name.encode()) if name.startswith("{") else name


def statistics_of(layout: Layout) -> str:
    """Return the value of `STATISTICS_PROPERTY`."""
    return ",".join(layout.skipping)


def protocol_action() -> Action:
    """Build the action that keeps other writers out."""
    return {
        "protocol": {
            "minReaderVersion": PROTOCOL.reader,
            "minWriterVersion": PROTOCOL.writer,
            "writerFeatures": list(PROTOCOL.features),
        }
    }
