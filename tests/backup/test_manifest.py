"""The bytes of a manifest, and names of files."""

from __future__ import annotations

import pytest
from xxhash import xxh3_64_hexdigest

from brokerd.backup.manifest import (
    ArchiveVersion,
    FileKey,
    Manifest,
    StoredSegment,
    StoredSnapshot,
    decode_manifest,
    encode_manifest,
    parse_path,
    stored_file,
)
from brokerd.errors import DamagedData, NewerFormat

ID = "ab" * 16
SEGMENT = stored_file(FileKey("wal", 0, ID), 8192, "1" * 16)
INDEX = stored_file(FileKey("idx", 0, ID), 128, "2" * 16)
SNAPSHOT = stored_file(FileKey("snap", 4096, ID), 200, "3" * 16)
BOUNDS = stored_file(FileKey("bounds", 8192, ID), 300, "4" * 16)
MANIFEST = Manifest(
    "0" * 32,
    17,
    "0.1.0",
    8192,
    5,
    [StoredSegment(0, 8192, ID, 3, SEGMENT, INDEX)],
    [(0, 0)],
    [StoredSnapshot(4096, 8000, SNAPSHOT)],
    BOUNDS,
    ("c" * 16, 4096),
    ArchiveVersion("/srv/archive", "c" * 16, 4096, {"records": 3}),
    ["a place"],
)


def test_a_manifest_comes_back_as_it_went_in() -> None:
    assert decode_manifest(encode_manifest(MANIFEST)) == MANIFEST
    assert MANIFEST.files() == [SEGMENT, INDEX, SNAPSHOT, BOUNDS]


def test_names_are_those_of_the_format_page() -> None:
    assert SEGMENT.path == f"wal/{0:020d}-{ID}-8192-{'1' * 16}.wal"
    assert INDEX.path == f"wal/{0:020d}-{ID}-128-{'2' * 16}.idx"
    assert SNAPSHOT.path == f"state/{4096:020d}-{ID}-200-{'3' * 16}.snap"
    assert BOUNDS.path == f"state/{8192:020d}-{ID}-300-{'4' * 16}.bounds"
    for file in MANIFEST.files():
        assert parse_path(file.path) == file
    assert SEGMENT.key == FileKey("wal", 0, ID)


def test_every_flipped_byte_is_found() -> None:
    data = encode_manifest(MANIFEST)
    for position in range(len(data)):
        bad = bytearray(data)
        bad[position] ^= 1
        with pytest.raises((DamagedData, NewerFormat)):
            decode_manifest(bytes(bad))
    for end in range(len(data)):
        with pytest.raises(DamagedData):
            decode_manifest(data[:end])


def test_a_later_version_is_refused_by_name() -> None:
    data = encode_manifest(MANIFEST).replace(b"backup 1 ", b"backup 2 ", 1)
    with pytest.raises(NewerFormat, match="backup version 2; upgrade brokerd"):
        decode_manifest(data)


def _again(old: bytes, new: bytes) -> bytes:
    """The manifest with a changed body and the right checksum."""
    body = encode_manifest(MANIFEST).partition(b"\n")[2].replace(old, new)
    return f"brokerd backup 1 {xxh3_64_hexdigest(body)}\n".encode() + body


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"path":"wal/', b'"path":"../wal/'),
        (b'"path":"wal/', b'"path":"state/'),
        (b'"size":8192', b'"size":8193'),
        (b'"lsn":8192', b'"lsn":"8192"'),
    ],
)
def test_a_path_leads_nowhere_else_and_values_have_their_types(old: bytes, new: bytes) -> None:
    with pytest.raises(DamagedData):
        decode_manifest(_again(old, new))


@pytest.mark.parametrize(
    "path",
    ["wal/x.wal", "wal/../" + SEGMENT.path, SEGMENT.path + "x", SEGMENT.path.replace("wal/", "a/")],
)
def test_other_names_are_no_files_of_a_backup(path: str) -> None:
    assert parse_path(path) is None
