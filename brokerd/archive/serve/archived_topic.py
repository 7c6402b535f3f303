# Tests: tests/cli/test_restore_topic.py
"""Reads the records of a topic from one version of an archive, to append them to a new topic.

`ArchivedTopic` reads each partition in the order of its offsets, and verifies every checksum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow.compute as pc

from brokerd.archive.contract.layout import RECORDS, Range, bucket_of, parse_records_name
from brokerd.archive.contract.ranges import merge_ranges
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.delta.log_files import Snapshot
from brokerd.archive.delta.log_reader import DeltaLog, read_log_id
from brokerd.archive.parquet.reader import open_file
from brokerd.archive.serve.delta_archive import DeltaArchive, DeltaArchiveView
from brokerd.archive.serve.file_map import FileMap
from brokerd.archive.storage.address import Place
from brokerd.errors import UnknownTopic
from brokerd.walformat import RecordColumns

READ_BYTES = 1 << 20


class ArchivedRecord(NamedTuple):
    """A record of the archive."""

    offset: int
    value: bytes
    encoding: int
    key: bytes | None
    metadata: bytes | None
    append_time_us: int
    producer_time: int | None


class ArchivedTopic:
    """The records of one topic id in one version of an archive.

    :param topic_id: the id, or None for the only topic of this name in the version.
    :param version: a version of the table ``records``, or None for the newest.
    :raises UnknownTopic: there is no such topic, or several have had the name.
    :raises ArchiveUnavailable: the archive or the version cannot be read.
    :raises ForeignArchive: the address has another program's tables.
    """

    def __init__(
        self, root: Place, name: str, topic_id: int | None = None, version: int | None = None
    ) -> None:
        self._table = root / RECORDS.name
        log_id = read_log_id(self._table)
        if log_id is None:
            raise UnknownTopic(f"{self._table} does not exist: nothing was archived there")
        snapshot = self._snapshot(log_id, version)
        self.version = snapshot.version
        self.lsn = snapshot.state.lsn
        """The version has the log below this LSN."""
        self._sizes = dict(
            zip(
                snapshot.files["path"].to_pylist(),
                snapshot.files["size"].to_pylist(),
                strict=True,
            )
        )
        self.topic_id = self._only_id(name) if topic_id is None else topic_id
        self._view = DeltaArchiveView(
            DeltaArchive(root, log_id), FileMap(snapshot.files), snapshot, None
        )
        self.ranges = self._ranges()
        """The covered ranges of all partitions, in order."""
        if not self.ranges:
            raise UnknownTopic(
                f"version {self.version} of {self._table} has no records of topic {name!r} with "
                f"the id {self.topic_id}"
            )

    def _snapshot(self, log_id: str, version: int | None) -> Snapshot:
        log = DeltaLog(self._table, log_id)
        if version is not None:
            return log.read_at(version)
        found = log.read()
        if found is None:
            raise ArchiveUnavailable(f"{self._table} is gone; restore it")
        return found

    def _only_id(self, name: str) -> int:
        """Return the id of the topic with a name. Reads the names of all records."""
        found: set[int] = set()
        for path, size in self._sizes.items():
            file = open_file(self._table, path, size)
            for group in range(len(file.groups)):
                rows = file.read_table([group], ("topic", "topic_id"))
                found.update(
                    rows.filter(pc.equal(rows["topic"], name))["topic_id"].unique().to_pylist()
                )
        if len(found) == 1:
            return found.pop()
        if not found:
            raise UnknownTopic(
                f"version {self.version} of {self._table} has no records of a topic {name!r}"
            )
        ids = ", ".join(map(str, sorted(found)))
        raise UnknownTopic(
            f"several topics had the name {name!r}, with the ids {ids}: give one by --topic-id"
        )

    def _ranges(self) -> list[Range]:
        found = []
        for path, size in self._sizes.items():
            name = parse_records_name(path)
            if name.bucket != bucket_of(self.topic_id):
                continue
            if name.first_topic_id <= self.topic_id <= name.last_topic_id:
                ranges = open_file(self._table, path, size).ranges.tolist()
                found += [Range(*one) for one in ranges if one[0] == self.topic_id]
        return merge_ranges(found)

    @property
    def partitions(self) -> int:
        """Return the number of partitions up to the last one with records."""
        return self.ranges[-1].partition + 1

    def read(self, partition: int) -> Iterator[list[ArchivedRecord]]:
        """Yield the records of a partition in the order of their offsets, some at a time.

        Raises DamagedArchive and `ArchiveUnavailable`.
        """
        for one in self.ranges:
            offset = one.first
            while one.partition == partition and offset < one.end:
                rows = self._view.read(self.topic_id, partition, offset, READ_BYTES)
                if rows is None:
                    raise ArchiveUnavailable(
                        f"{self._table}: no file covers partition {partition} offset {offset}"
                    )
                if len(rows.offsets):
                    yield _records(rows.offsets, rows.columns)
                offset = rows.end


def _records(offsets: Sequence[int], columns: RecordColumns) -> list[ArchivedRecord]:
    count = len(offsets)

    def every(column: Sequence[Any] | int | None) -> Iterable[Any]:
        """Return a value of a column for each record."""
        return column if isinstance(column, Sequence) else repeat(column, count)

    rows = zip(
        offsets,
        columns.values,
        every(columns.encodings),
        every(columns.keys),
        every(columns.metadata),
        every(columns.append_time_us),
        every(columns.producer_time),
        strict=True,
    )
    return [
        ArchivedRecord(offset, bytes(value), encoding, key, metadata, time_us, sent)
        for offset, value, encoding, key, metadata, time_us, sent in rows
    ]
