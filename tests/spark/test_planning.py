"""What a query would read."""

from __future__ import annotations

from brokerd.spark.planning import COLUMNS, Request


def test_a_request_asks_for_all_columns_unless_it_names_some() -> None:
    assert Request().columns == COLUMNS
    assert "bucket" not in COLUMNS
