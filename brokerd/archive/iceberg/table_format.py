# Tests: tests/archive/test_iceberg.py
"""Converts a table's layout and the statistics of its files from Delta to Iceberg, version 2.

The specification is https://iceberg.apache.org/spec/. The files have no Iceberg field ids, so a
name mapping gives them. The partition column ``bucket`` is not in the files: readers take it from
the partition of a file, whose transform is the identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import msgspec
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataV2, new_table_metadata
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from brokerd.archive.contract.layout import (
    EVENTS,
    LOG_ID_PROPERTY,
    RECORDS,
    VERSION,
    VERSION_PROPERTY,
    Layout,
)
from brokerd.archive.iceberg.changes import DataFile

FORMAT_VERSION = 2
NAME_MAPPING = "schema.name-mapping.default"
_TYPES: dict[str, IcebergType] = {
    "byte": IntegerType(),
    "integer": IntegerType(),
    "long": LongType(),
    "string": StringType(),
    "binary": BinaryType(),
    "timestamp": TimestamptzType(),
}
_SORTED_BY = {RECORDS.name: ("topic_id", "partition", "offset"), EVENTS.name: ("lsn", "seq")}
"""The order of the rows of a file."""
_FIRST_PARTITION_FIELD = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def field_ids(layout: Layout) -> dict[str, int]:
    """Return the Iceberg field id of each column."""
    return {column.name: number for number, column in enumerate(layout.columns, 1)}


def new_metadata(layout: Layout, location: str, log_id: str) -> TableMetadataV2:
    """Return the metadata of a table without snapshots."""
    ids = field_ids(layout)
    # Optional, although it is never null: pyiceberg refuses files that lack a required column.
    optional = {c.name for c in layout.columns if c.nullable} | set(layout.partition_by)
    fields = [
        NestedField(ids[c.name], c.name, _TYPES[c.type], required=c.name not in optional)
        for c in layout.columns
    ]
    partition = [
        PartitionField(ids[name], _FIRST_PARTITION_FIELD + at, IdentityTransform(), name)
        for at, name in enumerate(layout.partition_by)
    ]
    order = [SortField(ids[name], IdentityTransform()) for name in _SORTED_BY.get(layout.name, ())]
    mapping = [{"field-id": ids[c.name], "names": [c.name]} for c in layout.columns]
    metadata: TableMetadataV2 = new_table_metadata(
        Schema(*fields),
        PartitionSpec(*partition),
        SortOrder(*order, order_id=1 if order else 0),
        location,
        {
            NAME_MAPPING: msgspec.json.encode(mapping).decode(),
            LOG_ID_PROPERTY: log_id,
            VERSION_PROPERTY: str(VERSION),
        },
    )
    return metadata


def manifest_entry(
    file: DataFile, layout: Layout, metadata: TableMetadataV2, snapshot_id: int
) -> ManifestEntry:
    """Return the entry of a manifest that adds a file."""
    ids = field_ids(layout)
    parts = [part for part in file.path.split("/")[:-1] if "=" in part]
    values = dict(part.split("=", 1) for part in parts)
    data_file = IcebergFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{metadata.location}/{file.path}",
        file_format=FileFormat.PARQUET,
        partition=Record(*(int(values[name]) for name in layout.partition_by)),
        record_count=file.rows,
        file_size_in_bytes=file.size,
        null_value_counts={ids[name]: count for name, count in file.nulls.items()},
        value_counts={ids[name]: file.rows for name in file.nulls},
        lower_bounds=_bounds(file.minimum, layout),
        upper_bounds=_bounds(file.maximum, layout),
        sort_order_id=metadata.default_sort_order_id or None,
    )
    data_file.spec_id = metadata.default_spec_id
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, data_file=data_file
    )


def _bounds(values: Mapping[str, int | str], layout: Layout) -> dict[int, bytes]:
    """Return values as Iceberg encodes them, by field id."""
    ids = field_ids(layout)
    types = {column.name: _TYPES[column.type] for column in layout.columns}
    return {
        ids[name]: to_bytes(types[name], _literal(value, types[name]))
        for name, value in values.items()
    }


def _literal(value: int | str, kind: IcebergType) -> int | str:
    """Convert a time from Delta's text to microseconds."""
    if isinstance(kind, TimestamptzType) and isinstance(value, str):
        return microseconds(value)
    return value


def microseconds(text: str) -> int:
    """Convert a time such as ``2026-11-28T12:00:00.123Z`` to microseconds since the epoch."""
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)
