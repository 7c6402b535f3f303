# Tests: tests/archive/test_schemas_file.py
"""The file ``state/schemas``: the registered schemas of a log (docs/archive-format.rst).

The broker writes it before ``state/bounds`` if schemas changed. So a reader that reads the bounds
first finds all schemas up to their LSN. The rollup keeps a copy beside the tables, in which deleted
versions stay.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct
from xxhash import xxh3_64_hexdigest

from brokerd.errors import DamagedData, NewerFormat

VERSION = 1
FILE_NAME = "schemas"
FILE_BYTES_MAX = 1 << 30
MAGIC = b"brokerd schemas "


class StoredSchema(Struct, frozen=True, array_like=True):
    """One version of a schema."""

    name: str
    version: int
    type: str
    """``json``, ``avro`` or ``protobuf``."""
    text: bytes
    created_us: int
    """The broker time of the registration."""


class StoredSchemas(Struct, frozen=True):
    """The content of the file."""

    log_id: str
    versions: list[StoredSchema] = []

    def of_topic(self, name: str) -> list[StoredSchema]:
        """Return the versions of a topic's schema, in the order of their registration."""
        own = [one for one in self.versions if one.name == name]
        return sorted(own, key=lambda one: (one.created_us, one.version))


def encode_schemas(schemas: StoredSchemas) -> bytes:
    """Encode the file: a line with version and checksum, then JSON."""
    body = msgspec.json.encode(schemas)
    return MAGIC + f"{VERSION} {xxh3_64_hexdigest(body)}\n".encode() + body + b"\n"


def decode_schemas(data: bytes) -> StoredSchemas:
    """Decode the file. Raises DamagedData, and NewerFormat for a later version."""
    head, _, rest = data.partition(b"\n")
    words = head.removeprefix(MAGIC).split(b" ")
    if not (head.startswith(MAGIC) and len(words) == 2 and words[0].isdigit() and int(words[0])):
        raise DamagedData("the first line is not that of a schemas file")
    if int(words[0]) > VERSION:
        raise NewerFormat(f"schemas version {int(words[0])}; upgrade brokerd to read it")
    body = rest.removesuffix(b"\n")
    if words[1] != xxh3_64_hexdigest(body).encode():
        raise DamagedData("the checksum does not match")
    try:
        return msgspec.json.decode(body, type=StoredSchemas)
    except msgspec.MsgspecError as error:
        raise DamagedData(f"the content is invalid: {error}") from None


def merge_schemas(kept: StoredSchemas, newer: Iterable[StoredSchema]) -> StoredSchemas:
    """Add versions to those that a copy keeps. Deleted versions stay in the copy."""
    found = {(one.name, one.version, one.created_us): one for one in kept.versions}
    found |= {(one.name, one.version, one.created_us): one for one in newer}
    return StoredSchemas(kept.log_id, [found[key] for key in sorted(found)])
