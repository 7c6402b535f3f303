"""Files that say nothing of themselves: what was written comes back, or an error that names it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
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
