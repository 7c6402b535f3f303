# Tests: tests/archive/test_topic_schema.py
"""Types of columns, and their evolution over the versions of a schema (docs/typed-tables.rst).

A type is an Arrow type. Every column may be null. `JSON_TEXT` marks text that holds JSON; files and
queries have it as text. The fields of a struct carry the names of the schema's fields as metadata,
because two of them may differ only in ways that columns cannot express.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

JSON_TEXT = pa.large_string()
"""A value without a type of its own, as JSON."""
LONG, DOUBLE, STRING, BINARY = pa.int64(), pa.float64(), pa.string(), pa.binary()
TIMESTAMP = pa.timestamp("us", tz="UTC")
DECIMAL_DIGITS_MAX = 38
DEPTH_MAX = 32
"""The deepest nesting of columns. Deeper values are JSON."""

Convert = Callable[[Any], Any]
"""Converts one value. Raises `Misfit`."""

CONTENT = "content"
"""The column of values that are not objects with fields."""
_FIELD = b"field"
"""Metadata of a struct's field: the name in the schema."""
_CONTENT_FIELD = b"\xff"
"""The name of `CONTENT`. No field of a schema has it, because it is not UTF-8."""

_NOT_IN_NAMES = dict.fromkeys(
    [*map(ord, " ,;{}()="), *range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000)], "_"
)
"""Characters that Delta tables refuse in names of columns, control characters, and surrogates,
which UTF-8 cannot express."""


class Misfit(Exception):
    """A value does not fit a column. The message has the reason."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path = path

    def inside(self, name: str) -> Misfit:
        """Return the misfit as seen from the value that holds it under a name."""
        return Misfit(self.reason, f"{name}.{self.path}".removesuffix("."))

    def text(self) -> str:
        """Return the reason with the path, in which ``$`` is the value itself."""
        return self.reason.replace("%", self.path or "$", 1)


class Conflict(NamedTuple):
    """A column whose type changed so that it cannot hold the values of a version."""

    version: int
    path: str
    kept: pa.DataType
    refused: pa.DataType

    def text(self) -> str:
        """Return the conflict in words."""
        kept, refused = type_name(self.kept), type_name(self.refused)
        return f"column {self.path} stays {kept}, and version {self.version} has {refused}"


class ColumnNames:
    """Gives fields the names of columns, which differ also without regard to case.

    :param used: the columns of other fields.
    """

    def __init__(self, reserved: Iterable[str] = (), used: Iterable[str] = ()) -> None:
        self._reserved = frozenset(reserved)
        self._used = {one.lower() for one in used}

    def add(self, field: str) -> str:
        """Return the column of a field."""
        name = field.translate(_NOT_IN_NAMES) or "_"
        if name.lower() in self._reserved:
            name = f"value_{name}"
        wanted, number = name, 2
        while name.lower() in self._used:
            name, number = f"{wanted}_{number}", number + 1
        self._used.add(name.lower())
        return name


def struct_of(columns: Mapping[str, pa.DataType]) -> pa.StructType:
    """Return the struct with these columns."""
    return pa.struct([pa.field(name, kind) for name, kind in columns.items()])


def struct_of_fields(fields: Iterable[tuple[str, str, pa.DataType]]) -> pa.StructType:
    """Return the struct of some fields of a schema: their names, columns and types."""
    return pa.struct([_column(name, kind, _encode(field)) for field, name, kind in fields])


def struct_of_content(kind: pa.DataType) -> pa.StructType:
    """Return the struct of values that are not objects with fields."""
    return pa.struct([_column(CONTENT, kind, _CONTENT_FIELD)])


def _column(name: str, kind: pa.DataType, field: bytes) -> pa.Field:
    return pa.field(name, kind, metadata={_FIELD: field})


def _encode(field: str) -> bytes:
    return field.encode("utf-8", "surrogatepass")


def _field_of(column: pa.Field) -> bytes:
    """Return the name of a column's field. Without metadata it is that of the column."""
    found: bytes = (column.metadata or {}).get(_FIELD, _encode(column.name))
    return found


def with_fields(kind: pa.DataType, known: pa.DataType) -> pa.DataType:
    """Return a stored type with the names of fields that the columns have in another type."""
    if pa.types.is_struct(kind) and pa.types.is_struct(known):
        columns = {one.name: one for one in known.fields}
        return pa.struct(
            [
                _column(one.name, with_fields(one.type, other.type), _field_of(other))
                if (other := columns.get(one.name)) is not None
                else one
                for one in kind.fields
            ]
        )
    if pa.types.is_list(kind) and pa.types.is_list(known):
        return pa.list_(pa.field("element", with_fields(kind.value_type, known.value_type)))
    if pa.types.is_map(kind) and pa.types.is_map(known):
        return pa.map_(STRING, with_fields(kind.item_type, known.item_type))
    return kind


def has_renamed(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether a field has another column in the merged type than in the type of a version.

    Then a field of another version has the column.
    """
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        columns = {_field_of(one): one for one in new.fields}
        pairs = [(one, columns[_field_of(one)]) for one in old.fields]
        return any(one.name != to.name or has_renamed(one.type, to.type) for one, to in pairs)
    if pa.types.is_list(old) and pa.types.is_list(new):
        return has_renamed(old.value_type, new.value_type)
    is_map = pa.types.is_map(old) and pa.types.is_map(new)
    return is_map and has_renamed(old.item_type, new.item_type)


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in files and queries. Fields without content are left out."""
    if kind == JSON_TEXT:
        return STRING
    if pa.types.is_struct(kind):
        fields = [one for one in kind.fields if not _is_empty(one.type)]
        return struct_of({one.name: stored_type(one.type) for one in fields})
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", stored_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(STRING, stored_type(kind.item_type))
    return kind


def _is_empty(kind: pa.DataType) -> bool:
    """Return whether a type has structs without fields alone, which Parquet cannot express."""
    if pa.types.is_struct(kind):
        return all(_is_empty(one.type) for one in kind.fields)
    if pa.types.is_list(kind):
        return _is_empty(kind.value_type)
    return pa.types.is_map(kind) and _is_empty(kind.item_type)


def type_name(kind: pa.DataType) -> str:
    """Return a type in the words of SQL."""
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{o.name}: {type_name(o.type)}' for o in kind.fields)}>"
    if pa.types.is_list(kind):
        return f"array<{type_name(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<string, {type_name(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _NAMES[kind]


_NAMES = {
    pa.bool_(): "boolean",
    LONG: "bigint",
    DOUBLE: "double",
    STRING: "string",
    BINARY: "binary",
    pa.date32(): "date",
    TIMESTAMP: "timestamp",
    JSON_TEXT: "JSON",
}


# -- Size ----------------------------------------------------------------------------------------


def cell_counter(kind: pa.DataType) -> Callable[[Any], int] | None:
    """Return a function that counts the fields inside arrays and maps of a value of a column.

    Absent fields count, because columns have space for them. None: the type has no array or map.
    """
    if pa.types.is_struct(kind):
        found = [(one.name, cell_counter(one.type)) for one in kind.fields]
        counters = [(name, count) for name, count in found if count is not None]
        return partial(_count_struct, counters) if counters else None
    if pa.types.is_list(kind):
        return partial(_count_items, _width(kind.value_type), cell_counter(kind.value_type))
    if pa.types.is_map(kind):
        return partial(_count_entries, 1 + _width(kind.item_type), cell_counter(kind.item_type))
    return None


def _width(kind: pa.DataType) -> int:
    """Return the number of fields of a type, without those inside arrays and maps."""
    is_struct = pa.types.is_struct(kind)
    return 1 + sum(_width(one.type) for one in kind.fields) if is_struct else 1


def _count_struct(
    counters: Sequence[tuple[str, Callable[[Any], int]]], value: Mapping[str, Any]
) -> int:
    items = ((count, value.get(name)) for name, count in counters)
    return sum(count(item) for count, item in items if item is not None)


def _count_items(width: int, count: Callable[[Any], int] | None, items: Collection[Any]) -> int:
    inner = 0 if count is None else sum(count(one) for one in items if one is not None)
    return width * len(items) + inner


def _count_entries(
    width: int, count: Callable[[Any], int] | None, entries: Mapping[str, Any]
) -> int:
    return _count_items(width, count, entries.values())


# -- Evolution -----------------------------------------------------------------------------------


def merge_types(
    old: pa.DataType, new: pa.DataType, path: str, version: int, conflicts: list[Conflict]
) -> pa.DataType:
    """Return the type of a column that takes the values of an older and a newer type.

    Fields are added and numbers widened. Otherwise the column keeps its type.

    :param conflicts: gets the columns that cannot take the values of the version.
    """
    if old.equals(new, check_metadata=True):
        return old
    if {old, new} == {LONG, DOUBLE}:
        return DOUBLE
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        scale = max(old.scale, new.scale)
        digits = max(old.precision - old.scale, new.precision - new.scale) + scale
        if digits <= DECIMAL_DIGITS_MAX:
            return pa.decimal128(digits, scale)
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return merge_structs(old, new, path, version, conflicts)
    if pa.types.is_list(old) and pa.types.is_list(new):
        inner = (old.value_type, new.value_type, f"{path}.element")
        return pa.list_(pa.field("element", merge_types(*inner, version, conflicts)))
    if pa.types.is_map(old) and pa.types.is_map(new):
        inner = (old.item_type, new.item_type, f"{path}.value")
        return pa.map_(STRING, merge_types(*inner, version, conflicts))
    conflicts.append(Conflict(version, path, old, new))
    return old


def merge_structs(
    old: pa.StructType,
    new: pa.StructType,
    path: str,
    version: int,
    conflicts: list[Conflict],
    reserved: Iterable[str] = (),
) -> pa.StructType:
    """Merge the columns of two structs as `merge_types` does.

    Each field has a column of its own. A new field whose column is taken gets a number.
    """
    columns = {_field_of(one): one for one in old.fields}
    names = ColumnNames(reserved, [one.name for one in old.fields])
    for one in new.fields:
        field = _field_of(one)
        known = columns.get(field)
        if known is None:
            is_content = field == _CONTENT_FIELD
            text = CONTENT if is_content else field.decode("utf-8", "surrogatepass")
            columns[field] = _column(names.add(text), one.type, field)
            continue
        inner = f"{path}.{known.name}".lstrip(".")
        kind = merge_types(known.type, one.type, inner, version, conflicts)
        columns[field] = _column(known.name, kind, field)
    return pa.struct(list(columns.values()))


def adapter(old: pa.DataType, new: pa.DataType) -> Convert | None:
    """Return the conversion of a value of one type to a column's type; None if none is needed."""
    if old.equals(new, check_metadata=True):
        return None
    if old == LONG and new == DOUBLE:
        return float
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return _struct_adapter(old, new)
    if pa.types.is_list(old) and pa.types.is_list(new):
        return _items_adapter(adapter(old.value_type, new.value_type))
    if pa.types.is_map(old) and pa.types.is_map(new):
        return _map_adapter(adapter(old.item_type, new.item_type))
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        is_wide = new.precision - new.scale >= old.precision - old.scale and new.scale >= old.scale
        return None if is_wide else _refusal(old, new)
    return None if old == new else _refusal(old, new)


def _refusal(old: pa.DataType, new: pa.DataType) -> Convert:
    text = f"column % is {type_name(new)}, and the value {type_name(old)}"

    def refuse(value: Any) -> Any:
        raise Misfit(text)

    return refuse


def _struct_adapter(old: pa.StructType, new: pa.StructType) -> Convert | None:
    columns = {_field_of(one): one for one in new.fields}
    others = set(new.names)
    moves: list[tuple[str, str, Convert | None]] = []
    is_same = True
    for one in old.fields:
        column = columns.get(_field_of(one))
        if column is not None:
            convert = adapter(one.type, column.type)
            moves.append((one.name, column.name, convert))
            is_same = is_same and one.name == column.name and convert is None
        else:
            is_same = is_same and one.name not in others
    if is_same:
        return None  # Arrow ignores further fields

    def adapt(value: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for name, column, convert in moves:
            item = value.get(name)
            if item is None:
                continue
            found[column] = item if convert is None else converted(convert, item, column)
        return found

    return adapt


def converted(convert: Convert, value: Any, name: str) -> Any:
    """Convert the value of a field. Raises `Misfit` with the field in its path."""
    try:
        return convert(value)
    except Misfit as misfit:
        raise misfit.inside(name) from None


def _items_adapter(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None

    def adapt(values: Sequence[Any]) -> list[Any]:
        return [None if one is None else converted(convert, one, "element") for one in values]

    return adapt


def _map_adapter(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None

    def adapt(values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: None if one is None else converted(convert, one, "value")
            for key, one in values.items()
        }

    return adapt
