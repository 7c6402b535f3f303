"""What a split gives."""

from __future__ import annotations

from brokerd.spark.planning import Request
from brokerd.spark.reading import schema_of


def test_rows_have_the_columns_that_were_asked_for_in_that_order() -> None:
    assert schema_of(Request(columns=("offset", "topic"))).names == ["offset", "topic"]
