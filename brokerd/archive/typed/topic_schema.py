# Tests: tests/archive/test_topic_schema.py
"""The columns of a topic by all versions of its schema, and the conversion of its records.

Records do not name a version. A record has the version that was the latest at its append time. If
its value does not fit, it has the next older version that it fits: its producer had not changed
yet. So later versions never change the columns of a record. Avro and Protobuf that a version can
read, and whose columns have other types, are not read by older versions: these could find other
values in the bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from brokerd.archive.contract.layout import RECORDS
from brokerd.archive.contract.schemas import StoredSchema
from brokerd.archive.typed.avro_values import avro_decoder
from brokerd.archive.typed.json_values import json_decoder
from brokerd.archive.typed.protobuf_values import protobuf_decoder
from brokerd.archive.typed.types import (
    Conflict,
    Convert,
    Misfit,
    adapter,
    cell_counter,
    has_renamed,
    merge_structs,
    stored_type,
    struct_of,
    with_fields,
)
from brokerd.archive.typed.values import (
    CELLS_MAX,
    TOO_MANY_CELLS,
    Decoder,
    LibraryMissing,
    NoColumns,
)
from brokerd.errors import escaped

VERSION = "schema_version"
ERROR = "schema_error"
RESERVED = frozenset({*(column.name for column in RECORDS.columns), VERSION, ERROR})
"""Columns of records. A field with such a name gets another column."""
TRIES = 3
"""How many versions are tried for a value."""
REASON_CHARS_MAX = 300
PART_CELLS = 1 << 20
"""The number of fields inside arrays and maps that ends a part of converted records."""

_DECODERS = {"json": json_decoder, "avro": avro_decoder, "protobuf": protobuf_decoder}


class TypedRows(NamedTuple):
    """The typed columns of some neighbouring records."""

    versions: pa.Array
    """The version of each record; null if its value fits none."""
    errors: pa.Array
    """The reason why a value fits no version; null if it fits."""
    columns: pa.StructArray


class TopicSchema:
    """The versions of a topic's schema, in the order of registration. There is at least one.

    :param kind: the columns of the result. By default those of all versions.
    :raises LibraryMissing: this installation cannot decode a version. Then no record is converted:
        the schema error of a record must not depend on the installation.
    """

    def __init__(self, versions: Sequence[StoredSchema], kind: pa.StructType | None = None) -> None:
        self.versions = versions
        self.conflicts: list[Conflict] = []
        """Columns that cannot take the values of a version."""
        self.problems: dict[int, str] = {}
        """The reason why a version has no columns, by its number."""
        self._created = [one.created_us for one in versions]
        self._decoders = [self._decoder(one) for one in versions]
        merged = struct_of({})
        for version, decoder in zip(versions, self._decoders, strict=True):
            if decoder is not None:
                number, kinds = version.version, (merged, decoder.kind)
                merged = merge_structs(*kinds, "", number, self.conflicts, RESERVED)
        self.has_renamed = any(one and has_renamed(one.kind, merged) for one in self._decoders)
        """Whether fields of several versions compete for the name of a column."""
        self.kind: pa.StructType = merged if kind is None else _narrowed(merged, kind)
        """The columns, with types of `brokerd.archive.typed.types`."""
        self._adapters: list[Convert | None] = [
            None if one is None else adapter(one.kind, self.kind) for one in self._decoders
        ]
        self.stored_kind: pa.StructType = stored_type(self.kind)
        """The columns, with the types of files and queries."""
        self._count_cells = cell_counter(self.stored_kind)

    def _decoder(self, schema: StoredSchema) -> Decoder | None:
        make = _DECODERS.get(schema.type)
        if make is None:
            raise LibraryMissing(f"schemas of type {schema.type!r} are unknown: upgrade brokerd")
        try:
            return make(schema.text, RESERVED)
        except NoColumns as problem:
            self.problems[schema.version] = str(problem)
            return None

    def convert(
        self, values: pa.Array, encodings: pa.Array, times_us: pa.Array
    ) -> Iterator[TypedRows]:
        """Yield the typed columns of records, in parts of limited size.

        :param times_us: their append times.
        """
        versions: list[int | None] = []
        errors: list[str | None] = []
        rows: list[Mapping[str, Any] | None] = []
        cells = 0
        every = zip(values, encodings.to_pylist(), times_us.to_pylist(), strict=True)
        for value, encoding, time_us in every:
            version, error, row = self._convert(value.as_py(), encoding, time_us)
            if row is not None and self._count_cells is not None:
                count = self._count_cells(row)
                if count > CELLS_MAX:
                    version, error, row, count = None, _reason(version, TOO_MANY_CELLS), None, 0
                cells += count
            versions.append(version)
            errors.append(error)
            rows.append(row)
            if cells >= PART_CELLS:
                yield self._part(versions, errors, rows)
                versions, errors, rows, cells = [], [], [], 0
        if versions:
            yield self._part(versions, errors, rows)

    def _part(
        self,
        versions: list[int | None],
        errors: list[str | None],
        rows: list[Mapping[str, Any] | None],
    ) -> TypedRows:
        columns = self._columns(versions, errors, rows)
        return TypedRows(pa.array(versions, pa.int32()), pa.array(errors, pa.string()), columns)

    def _convert(
        self, value: bytes, encoding: int, time_us: int
    ) -> tuple[int | None, str | None, Mapping[str, Any] | None]:
        latest = max(bisect_right(self._created, time_us) - 1, 0)
        reason = ""
        for at in range(latest, max(latest - TRIES, -1), -1):
            version, decoder, adapt = self.versions[at], self._decoders[at], self._adapters[at]
            try:
                if decoder is None:
                    raise Misfit(self.problems[version.version])
                row = decoder.decode(value, encoding)
            except Misfit as misfit:
                reason = reason or _reason(version.version, misfit.text())
                continue
            try:
                return version.version, None, row if adapt is None else adapt(row)
            except Misfit as misfit:
                reason = reason or _reason(version.version, misfit.text())
                if version.type != "json":
                    break
        return None, reason, None

    def _columns(
        self,
        versions: list[int | None],
        errors: list[str | None],
        rows: list[Mapping[str, Any] | None],
    ) -> pa.StructArray:
        """Return rows as columns. A row that Arrow refuses does not fit, and becomes an error."""
        try:
            return pa.array(rows, self.stored_kind)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            for at, row in enumerate(rows):
                try:
                    pa.array([row], self.stored_kind)
                except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                    errors[at] = _reason(versions[at], str(error).partition("\n")[0])
                    versions[at] = rows[at] = None
            return pa.array(rows, self.stored_kind)


def _reason(version: int | None, text: str) -> str:
    """Return the text of an error. JSON may have surrogates alone, which UTF-8 cannot express."""
    text = escaped(f"version {version}: {text}")[:REASON_CHARS_MAX]
    return text.encode("utf-8", "backslashreplace").decode()


def _narrowed(merged: pa.StructType, kind: pa.StructType) -> pa.StructType:
    """Return the merged type of each column of a result, if it is stored with the same type."""
    known = {one.name: one for one in merged.fields}
    columns = []
    for one in with_fields(kind, merged).fields:
        other = known.get(one.name)
        is_same = other is not None and stored_type(other.type) == stored_type(one.type)
        columns.append(other if is_same else one)
    return pa.struct(columns)


def selected(kind: pa.StructType, names: Iterable[str]) -> pa.StructType:
    """Return some columns of a struct, in the given order."""
    by_name = {one.name: one.type for one in kind.fields}
    return struct_of({name: by_name[name] for name in names})
