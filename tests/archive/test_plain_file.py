"""Files that say nothing of themselves: what was written comes back, or an error that names it."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brokerd.archive.parquet import plain_file
from brokerd.archive.parquet.plain_file import PlainFileReader, PlainFileWriter
from brokerd.archive.storage.address import ObjectAddress, Place
from brokerd.archive.storage.store import open_store
from brokerd.errors import DamagedData

SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])
ROWS = pa.table({"number": [3, 1, None, 2], "text": ["c", "a", None, "b"]}, SCHEMA)


@pytest.fixture(params=["disk", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path, bucket: ObjectAddress) -> Place:
    return tmp_path if request.param == "disk" else bucket


def test_what_is_written_comes_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its order, with what was to be known of it, and not before it is complete."""
    monkeypatch.setattr(plain_file, "GROUP_ROWS", 3)
    store = open_store(place)
    with PlainFileWriter(store, "some/where", SCHEMA, ["number"]) as writer:
        for turn in range(3):
            writer.write(ROWS.slice(turn))
        assert [entry for entry in store.list("some") if "unfinished" not in entry.path] == []
        info = writer.close("some/where/file.parquet")
    assert info[:5] == ("some/where/file.parquet", info.size, 9, {"number": 1}, {"number": 3})
    assert store.stat(info.path).size == info.size
    file = PlainFileReader(store, info.path)
    groups = list(file.read(SCHEMA))
    assert [len(rows) for rows in groups] == [4, 3, 2]
    assert pa.concat_tables(groups).column("text").to_pylist() == [
        *("c", "a", None, "b", "a", None, "b", None, "b")
    ]
    other = pa.schema([("text", pa.large_string())])
    assert next(file.read(other)).schema == other


def test_large_values_end_a_row_group(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writer and readers hold a row group in memory."""
    monkeypatch.setattr(plain_file, "GROUP_BYTES", 100_000)
    store = open_store(place)
    with PlainFileWriter(store, "some", SCHEMA) as writer:
        for number in range(7):
            writer.write(pa.table({"number": [number], "text": ["x" * 40_000]}, SCHEMA))
        path = writer.close("some/file.parquet").path
    assert [len(rows) for rows in PlainFileReader(store, path).read(SCHEMA)] == [3, 3, 1]


def test_no_filter_loses_rows_with_nan(tmp_path: Path) -> None:
    """Arrow's statistics leave NaN out, and other programs take it for the largest number."""
    kind = pa.struct(
        [
            ("n", pa.int64()),
            ("x", pa.float64()),
            ("l", pa.list_(pa.field("element", pa.float64()))),
            ("m", pa.map_(pa.string(), pa.float64())),
        ]
    )
    nan = float("nan")
    values = [{"n": 1, "x": x, "l": [x], "m": {"k": x}} for x in (1.0, nan)]
    columns = {"x": [1.0, nan], "n": [1, 2], "s.t": ["a", "b"], "s": values}
    schema = pa.schema([("x", pa.float64()), ("n", pa.int64()), ("s.t", pa.string()), ("s", kind)])
    with PlainFileWriter(open_store(tmp_path), "some", schema) as writer:
        writer.write(pa.table(columns, schema))
        path = tmp_path / writer.close("some/file.parquet").path
    for where, found in (
        ("x > 100", [2]),
        ("x = 'NaN'::double", [2]),
        ("s.x > 100", [2]),
        ("n > 1", [2]),
        ("n > 2", []),
    ):
        query = duckdb.sql(f"SELECT n FROM '{path}' WHERE {where}")
        assert [n for (n,) in query.fetchall()] == found, where
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    assert {one.path_in_schema for one in columns if one.statistics is not None} == {
        *("n", "s.t", "s.n", "s.m.key_value.key")
    }


def test_a_file_without_rows_is_one(place: Place) -> None:
    store = open_store(place)
    with PlainFileWriter(store, "some", SCHEMA) as writer:
        info = writer.close("some/file.parquet")
    assert (info.rows, info.minimum) == (0, {})
    assert list(PlainFileReader(store, info.path).read(SCHEMA)) == []


def test_what_is_not_closed_leaves_nothing(place: Place) -> None:
    """Whatever stops it."""
    store = open_store(place)
    with pytest.raises(KeyError), PlainFileWriter(store, "some", SCHEMA) as writer:
        writer.write(ROWS)
        raise KeyError
    assert list(store.list("some", hidden=True)) == []


def test_a_damaged_file_is_named(place: Place) -> None:
    """A flipped bit of a page is found by its checksum; half a file is none."""
    store = open_store(place)
    with PlainFileWriter(store, "some", SCHEMA) as writer:
        writer.write(pa.table({"number": range(5000), "text": ["text"] * 5000}, SCHEMA))
        path = writer.close("some/file.parquet").path
    data = bytearray(store.read(path, 1 << 20))
    data[1000] ^= 1
    store.put(path, bytes(data))
    with pytest.raises(DamagedData, match=r"some/file\.parquet is damaged: "):
        list(PlainFileReader(store, path).read(SCHEMA))
    store.put(path, bytes(data[: len(data) // 2]))
    with pytest.raises(DamagedData, match=r"some/file\.parquet is damaged: "):
        PlainFileReader(store, path)
    with pytest.raises(FileNotFoundError):
        PlainFileReader(store, "some/other.parquet")
