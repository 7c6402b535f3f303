# Tests: tests/broker/test_security_entries.py, tests/broker/test_schemas_registry.py
"""Entries of the log, and chunks of a snapshot, whose bodies are MessagePack maps; their replay.

The ``op`` of a map names the change. A chunk has the same maps as the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgpack

from brokerd.broker.model.state import State
from brokerd.errors import NewerFormat
from brokerd.wal import Frame, SnapshotChunk
from brokerd.walformat import Entry, EntryKind

Map = dict[str, Any]


class MapLayout(NamedTuple):
    """The entries and chunks that have the maps of one subject."""

    kind: EntryKind
    chunk_kind: int
    key: str
    """Key of the list of maps in the body of a chunk."""
    subject: str
    """Name of the subject in error texts."""

    def entry(self, fields: Map) -> Entry:
        """Make a log entry with this map."""
        return Entry(self.kind, 0, 0, 0, 0, msgpack.packb(fields))

    def chunk(self, number: int, lsn: int, maps: Iterable[Map]) -> SnapshotChunk:
        """Make a chunk of a snapshot with these maps."""
        body = msgpack.packb({self.key: [*maps]})
        return SnapshotChunk(self.chunk_kind, b"%d" % number, lsn, body)


class MapReplay:
    """Applies the maps of snapshot and log.

    ``apply`` applies one map, and returns False for an unknown ``op``.
    """

    def __init__(self, state: State, layout: MapLayout, apply: Callable[[Map], bool]) -> None:
        self._subject = layout.subject
        self._key = layout.key
        self._apply = apply
        self._fresh_from = 0
        """LSN from which entries are newer than the snapshot."""
        state.appliers[layout.kind] = self._replay
        state.loaders[layout.chunk_kind] = self._load

    def _replay(self, frame: Frame, entry: Entry) -> None:
        """Apply an entry, unless the snapshot includes it.

        Applying it twice could be wrong: a later entry that undoes it may be lost to damage, and
        adding a schema's version again may reset the mode of its name.
        """
        if frame.lsn >= self._fresh_from:
            self._do(msgpack.unpackb(entry.body), f"the frame at {frame.lsn}")

    def _load(self, lsn: int, fields: dict[str, Any]) -> None:
        self._fresh_from = lsn
        for one in fields[self._key]:
            self._do(one, "the snapshot")

    def _do(self, fields: Map, source: str) -> None:
        if not self._apply(fields):
            raise NewerFormat(
                f"{source} says {fields['op']!r} of {self._subject}, which this version does not "
                "know; upgrade brokerd"
            )
