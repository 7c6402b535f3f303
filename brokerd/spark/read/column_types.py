# Tests: tests/spark/test_column_types.py
"""Types of typed columns: Arrow's as Spark's, and back."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from brokerd.spark.options import BadOption

_PAIRS: list[tuple[pa.DataType, DataType]] = [
    (pa.bool_(), BooleanType()),
    (pa.int8(), ByteType()),
    (pa.int32(), IntegerType()),
    (pa.int64(), LongType()),
    (pa.float64(), DoubleType()),
    (pa.string(), StringType()),
    (pa.binary(), BinaryType()),
    (pa.date32(), DateType()),
    (pa.timestamp("us", tz="UTC"), TimestampType()),
]


def spark_type(kind: pa.DataType) -> DataType:
    """Return the Spark type of an Arrow type of `brokerd.archive.typed`."""
    if pa.types.is_struct(kind):
        return StructType([StructField(one.name, spark_type(one.type)) for one in kind.fields])
    if pa.types.is_list(kind):
        return ArrayType(spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return MapType(StringType(), spark_type(kind.item_type))
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    return next(found for one, found in _PAIRS if one == kind)


def arrow_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type of a Spark type. Raises `BadOption` for a type that no column has."""
    if isinstance(kind, StructType):
        return pa.struct([pa.field(one.name, arrow_type(one.dataType)) for one in kind.fields])
    if isinstance(kind, ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType)))
    if isinstance(kind, MapType):
        return pa.map_(arrow_type(kind.keyType), arrow_type(kind.valueType))
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    for found, one in _PAIRS:
        if one == kind:
            return found
    raise BadOption(f"schema(): no column has the type {kind.simpleString()}: leave the schema out")


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a Spark schema, with its nullability."""
    return pa.schema(
        [pa.field(one.name, arrow_type(one.dataType), one.nullable) for one in schema.fields]
    )
