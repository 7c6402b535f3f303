# Tests: tests/archive/test_iceberg.py
"""The files below ``metadata/`` of a table, in a directory or in a bucket.

Names are those of Iceberg's Hadoop tables: ``v7.metadata.json`` and ``version-hint.text``, which
names the newest version. Manifests and lists of manifests have random names.
"""

from __future__ import annotations

import io
import json
import re
import secrets
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from pyiceberg.table.metadata import TableMetadataUtil, TableMetadataV2

from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.errors import JobFailed
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.store import Store, open_store

METADATA = "metadata"
"""The directory, below the table's."""
HINT = "version-hint.text"
KEPT_VERSIONS = 20
"""Metadata files that stay, for readers that have just read the hint."""
FILE_BYTES_MAX = 1 << 30
_VERSION = re.compile(r"v(\d{1,18})\.metadata\.json")
_AVRO = re.compile(r"brokerd-[0-9a-f]{16}\.avro")
_TEMPORARY = re.compile(r"\.(?:put|commit)-[0-9a-f]{16}\.tmp")


def location_of(table: Place) -> str:
    """Return the location of a table as Iceberg writes it. Raises JobFailed for some paths."""
    if not isinstance(table, Path):
        return str(table)
    if re.search(r"[%?#]", str(table)):
        raise JobFailed(
            f"archive.iceberg: Iceberg readers cannot open {table}, because its path has one of "
            "the characters % ? #; move the archive, or set archive.iceberg = false"
        )
    return f"file://{table}"


class _Stream(io.BytesIO):
    """A file in memory that stays readable after its writer has closed it."""

    def close(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass


class MemoryFile:
    """A file that pyiceberg writes or reads, in memory."""

    def __init__(self, location: str, data: bytes = b"") -> None:
        self.location = location
        self._stream = _Stream(data)

    def __len__(self) -> int:
        return len(self._stream.getbuffer())

    def create(self, overwrite: bool = False) -> _Stream:
        return self._stream

    def open(self, seekable: bool = True) -> io.BytesIO:
        return io.BytesIO(self._stream.getbuffer())

    @property
    def data(self) -> bytes:
        return self._stream.getvalue()


class Version(NamedTuple):
    """A metadata file."""

    number: int
    metadata: TableMetadataV2


class MetadataFiles:
    """The directory ``metadata`` of one table."""

    def __init__(self, table: Place) -> None:
        self._table = table
        self._store: Store = open_store(table)
        self._location = location_of(table)

    # -- Reading ---------------------------------------------------------------------------------

    def newest(self) -> Version | None:
        """Read the newest version, or return None. Raises JobFailed if it is damaged."""
        number = max(self._versions(), default=0)
        if not number:
            return None
        path = f"{METADATA}/v{number}.metadata.json"
        text = self._store.read(path, FILE_BYTES_MAX)
        try:
            metadata = TableMetadataUtil.parse_obj(json.loads(text))
        except ValueError as error:
            raise self.damaged(f"{path}: {str(error).splitlines()[0]}") from error
        return Version(number, metadata)

    def _versions(self) -> list[int]:
        found = map(_VERSION.fullmatch, self._store.names(METADATA))
        return [int(one[1]) for one in found if one is not None]

    def damaged(self, problem: str) -> JobFailed:
        """Return the error for metadata that is not as brokerd wrote it."""
        return JobFailed(
            f"{self._table / METADATA}: Iceberg metadata is damaged: {problem}; remove the "
            "directory, and the next run writes it again"
        )

    def new_input(self, location: str) -> MemoryFile:
        """Read a file. pyiceberg calls this method of its ``FileIO``."""
        path = location.removeprefix(f"{self._location}/")
        try:
            return MemoryFile(location, self._store.read(path, FILE_BYTES_MAX))
        except FileNotFoundError as error:
            raise self.damaged(f"{path} is missing") from error

    # -- Writing ---------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the directory."""
        self._store.make_directory(METADATA)

    def new_file(self) -> MemoryFile:
        """Begin an Avro file; `put` writes it."""
        name = f"brokerd-{secrets.token_hex(8)}.avro"
        return MemoryFile(f"{self._location}/{METADATA}/{name}")

    def put(self, file: MemoryFile) -> None:
        """Write a file durably."""
        self._store.put(file.location.removeprefix(f"{self._location}/"), file.data)

    def publish(self, version: Version) -> None:
        """Write a version. Raises JobFailed if it exists."""
        path = f"{METADATA}/v{version.number}.metadata.json"
        data = version.metadata.model_dump_json(by_alias=True, exclude_none=True).encode()
        if not self._store.put_if_absent(path, data):
            raise JobFailed(f"{self._table / path}: another process wrote it; run again")
        self._store.sync_directory(METADATA)

    def set_hint(self, number: int) -> None:
        """Let the hint name a version. A stopped run leaves it at an older one."""
        path, data = f"{METADATA}/{HINT}", str(number).encode()
        with suppress(FileNotFoundError, ArchiveUnavailable):  # missing or longer: write it
            if self._store.read(path, len(data)) == data:
                return
        self._store.put(path, data)

    def metadata_location(self, number: int) -> str:
        """Return the location of a version."""
        return f"{self._location}/{METADATA}/v{number}.metadata.json"

    def clean(self, used: Collection[str], before_ms: int) -> int:
        """Delete older metadata files, and files of stopped runs. Return the number.

        A stopped run leaves Avro files that no version uses, and temporary files. Files of catalogs
        have other names, and stay.

        :param used: locations of Avro files.
        :param before_ms: younger files stay.
        """
        kept = sorted(self._versions())[-KEPT_VERSIONS:]
        gone = []
        for entry in self._store.list(METADATA):
            name = entry.path.rpartition("/")[2]
            version = _VERSION.fullmatch(name)
            is_old = version is not None and int(version[1]) not in kept
            is_unused = _TEMPORARY.fullmatch(name) is not None or (
                _AVRO.fullmatch(name) is not None
                and f"{self._location}/{METADATA}/{name}" not in used
            )
            if is_old or (is_unused and entry.changed_ms < before_ms):
                gone.append(entry.path)
        self._store.delete(gone)
        return len(gone)
