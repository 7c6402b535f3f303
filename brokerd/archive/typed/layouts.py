# Tests: tests/archive/test_typed_tables.py
"""The tables of a topic with a schema: typed rows, and records that do not fit.

``archive/typed/TOPIC_ID/rows`` and ``archive/typed/TOPIC_ID/rejected`` (docs/typed-tables.rst).
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from brokerd.archive.contract.layout import Column, Layout
from brokerd.archive.delta.tables import is_table
from brokerd.archive.storage.store import Store
from brokerd.archive.typed.types import BINARY, LONG, STRING, TIMESTAMP, type_name

DIRECTORY = "typed"
ROWS = "rows"
REJECTED = "rejected"
TYPED_APP = "brokerd-typed"
"""Its version is the LSN up to which a table has the archived records of its topic."""
STATISTICS = ("partition", "offset", "append_time", "lsn")

RECORD_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32(), False),
        pa.field("offset", LONG, False),
        pa.field("append_time", TIMESTAMP, False),
        pa.field("producer_time", LONG),
        pa.field("lsn", LONG, False),
        pa.field("key", BINARY),
    ]
)
"""The columns of both tables."""
REJECTED_SCHEMA = pa.schema(
    [
        *RECORD_SCHEMA,
        pa.field("value", BINARY, False),
        pa.field("encoding", pa.int8(), False),
        pa.field("schema_error", STRING, False),
    ]
)


def rows_schema(kind: pa.StructType) -> pa.Schema:
    """Return the columns of typed rows."""
    return pa.schema([*RECORD_SCHEMA, pa.field("schema_version", pa.int32(), False), *kind.fields])


def table_name(topic_id: int, part: str) -> str:
    """Return the path of a table in the archive."""
    return f"{DIRECTORY}/{topic_id}/{part}"


def typed_layouts(store: Store) -> list[Layout]:
    """Return the layouts of the existing typed tables of an archive, without their columns."""
    names = [
        f"{DIRECTORY}/{topic_id}/{part}"
        for topic_id in sorted(store.names(DIRECTORY))
        for part in (ROWS, REJECTED)
    ]
    return [Layout(name, ()) for name in names if is_table(store, name)]


def layout_of(name: str, schema: pa.Schema) -> Layout:
    """Return the layout of a table with the columns of an Arrow schema."""
    columns = tuple(Column(one.name, delta_type(one.type), one.nullable) for one in schema)
    return Layout(name, columns, statistics=STATISTICS)


def delta_type(kind: pa.DataType) -> str:
    """Return the name of a type in Delta, or the JSON object of a nested type."""
    found = _type(kind)
    return found if isinstance(found, str) else json.dumps(found)


def _type(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        fields = [
            {"name": one.name, "type": _type(one.type), "nullable": True, "metadata": {}}
            for one in kind.fields
        ]
        return {"type": "struct", "fields": fields}
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _type(kind.value_type), "containsNull": True}
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": "string",
            "valueType": _type(kind.item_type),
            "valueContainsNull": True,
        }
    return _NAMES.get(kind) or type_name(kind)


_NAMES = {pa.int8(): "byte", pa.int32(): "integer", LONG: "long"}
