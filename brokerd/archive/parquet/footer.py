# Tests: tests/archive/test_writer.py
"""Encodes brokerd's part of the footer of a Parquet file (docs/archive-format.rst, "Files")."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from brokerd.archive.contract.layout import Range
from brokerd.errors import DamagedData, NewerFormat

FOOTER_VERSION = 1
METADATA_KEY = b"brokerd"
FIRST_GROUP_POSITION = 4
"""The position after the magic bytes of the file."""

KEY = ("topic_id", "partition", "offset")
GROUP = np.dtype(
    [
        ("position", "<i8"),
        ("bytes", "<i8"),
        ("checksum", "<u8"),
        ("rows", "<i8"),
        ("first", [(name, "<i8") for name in KEY]),
        ("last", [(name, "<i8") for name in KEY]),
        ("time_min", "<i8"),
        ("time_max", "<i8"),
        ("content", "<i8"),
    ]
)
"""The dtype of one row group."""
Groups = npt.NDArray[np.void]

_RANGE = np.dtype("<i8")


class Footer(Struct, frozen=True):
    """The JSON object in the footer of a file."""

    version: int
    table: str
    log_id: str
    rows: int
    content: int
    """Bytes of keys, values and metadata."""
    minimum: dict[str, int]
    """The smallest values of columns; empty if the file has no rows."""
    maximum: dict[str, int]
    keyed: int
    """Rows with a key."""
    tombstones: int
    """Rows with a key and an empty value."""
    expiring: int
    digest: str
    """The digest of the rows: `brokerd.archive.parquet.digest`, 16 hexadecimal digits."""
    ranges: bytes = field(default=b"")
    """The result of `pack_ranges`."""
    row_groups: bytes = field(default=b"")
    """An array of `GROUP`."""


def pack_ranges(ranges: Sequence[Range]) -> bytes:
    """Encode covered ranges."""
    return np.array(ranges, _RANGE).tobytes()


def unpack_ranges(data: bytes) -> npt.NDArray[np.int64]:
    """Decode covered ranges to rows of four numbers. Raises DamagedData."""
    if len(data) % 32:
        raise DamagedData("its covered ranges are truncated")
    return np.frombuffer(data, _RANGE).reshape(-1, 4)


def unpack_groups(data: bytes, footer_position: int) -> Groups:
    """Decode the row groups of a footer that begins at ``footer_position``. Raises DamagedData."""
    if len(data) % GROUP.itemsize:
        raise DamagedData("its list of row groups is truncated")
    groups: Groups = np.frombuffer(data, GROUP)
    edges = np.append(groups["position"], footer_position)
    sizes = np.diff(edges)
    if edges[0] != FIRST_GROUP_POSITION or (sizes != groups["bytes"]).any() or (sizes <= 0).any():
        raise DamagedData("its row groups do not fill it")
    return groups


def encode_footer(footer: Footer) -> bytes:
    """Encode the value of the key `METADATA_KEY`."""
    return msgspec.json.encode(footer)


def decode_footer(metadata: dict[bytes, bytes] | None) -> Footer:
    """Decode the key-value metadata of a file. Raises DamagedData and NewerFormat."""
    data = (metadata or {}).get(METADATA_KEY)
    if data is None:
        raise DamagedData("its footer has no key of brokerd")
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version > FOOTER_VERSION:
            raise NewerFormat(f"file version {version}; upgrade brokerd to read it")
        return msgspec.json.decode(data, type=Footer)
    except msgspec.MsgspecError as error:
        raise DamagedData(f"its footer is invalid: {error}") from None


class _Version(Struct):
    version: int
