"""Types of typed columns in Spark and in Arrow."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import FloatType, StructType

from brokerd.archive.typed.types import struct_of
from brokerd.spark.options import BadOption
from brokerd.spark.read.column_types import arrow_schema_of, arrow_type, spark_type

KIND = struct_of(
    {
        "flag": pa.bool_(),
        "list": pa.list_(pa.field("element", struct_of({"n": pa.int64(), "d": pa.float64()}))),
        "map": pa.map_(pa.string(), pa.binary()),
        "money": pa.decimal128(20, 2),
        "day": pa.date32(),
        "at": pa.timestamp("us", tz="UTC"),
        "text": pa.string(),
    }
)


def test_types_come_back() -> None:
    """Spark compares nullability, too."""
    found = spark_type(KIND)
    assert found.simpleString() == (
        "struct<flag:boolean,list:array<struct<n:bigint,d:double>>,map:map<string,binary>,"
        "money:decimal(20,2),day:date,at:timestamp,text:string>"
    )
    assert arrow_type(found) == KIND
    assert isinstance(found, StructType)
    found.fields[0].nullable = False
    assert [one.nullable for one in arrow_schema_of(found)] == [False] + [True] * 6


def test_other_types_are_refused() -> None:
    """A user's schema may have them."""
    with pytest.raises(BadOption, match="no column has the type float"):
        arrow_type(FloatType())
