"""The file ``state/schemas``, and its copy in the archive."""

from __future__ import annotations

import pytest

from brokerd.archive.contract.schemas import (
    StoredSchema,
    StoredSchemas,
    decode_schemas,
    encode_schemas,
    merge_schemas,
)
from brokerd.errors import DamagedData, NewerFormat

ONE = StoredSchema("t", 1, "json", b"\xff{}", 5)
TWO = StoredSchema("t", 2, "avro", b'"int"', 6)


def test_what_is_written_is_read() -> None:
    """Definitions are bytes."""
    stored = StoredSchemas("a" * 32, [ONE, TWO])
    assert decode_schemas(encode_schemas(stored)) == stored


def test_damage_and_newer_versions_are_refused() -> None:
    """Every flipped byte is noticed."""
    data = encode_schemas(StoredSchemas("a" * 32, [ONE]))
    for at in range(len(data) - 1):
        flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises((DamagedData, NewerFormat)):
            decode_schemas(flipped)
    with pytest.raises(NewerFormat, match="schemas version 2; upgrade brokerd"):
        decode_schemas(data.replace(b"schemas 1", b"schemas 2", 1))


def test_a_copy_keeps_deleted_versions() -> None:
    """A name that was deleted and registered anew begins with version 1 again."""
    again = StoredSchema("t", 1, "json", b"{}", 9)
    other = StoredSchema("u", 1, "json", b"{}", 1)
    merged = merge_schemas(StoredSchemas("a", [ONE, TWO]), [other, again])
    assert merged.of_topic("t") == [ONE, TWO, again]
    assert merge_schemas(merged, [again]) == merged
