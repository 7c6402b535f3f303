# Tests: tests/broker/test_security_entries.py, tests/broker/test_schemas_registry.py
"""Replay of what the log says in maps: entries of one kind, and chunks of a snapshot full of them.

The ``op`` of a map says what it changes. A chunk holds the same maps as the entries.
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
    """Where maps about one subject stand."""

    kind: EntryKind
    chunk_kind: int
    key: str
    """Of the list of maps in the body of a chunk."""
    subject: str
    """What the maps speak of, in texts of errors."""

    def entry(self, fields: Map) -> Entry:
        """A log entry with this map."""
        return Entry(self.kind, 0, 0, 0, 0, msgpack.packb(fields))

    def chunk(self, number: int, lsn: int, maps: Iterable[Map]) -> SnapshotChunk:
        """A chunk of a snapshot with these maps."""
        body = msgpack.packb({self.key: [*maps]})
        return SnapshotChunk(self.chunk_kind, b"%d" % number, lsn, body)


class MapReplay:
    """Brings back what maps say, from snapshot and log.

    ``apply`` does what a map says, and returns False for an ``op`` that it does not know.
    """

    def __init__(self, state: State, layout: MapLayout, apply: Callable[[Map], bool]) -> None:
        self._subject = layout.subject
        self._key = layout.key
        self._apply = apply
        self._fresh_from = 0
        """LSN from which on entries say more than the snapshot."""
        state.appliers[layout.kind] = self._replay
        state.loaders[layout.chunk_kind] = self._load

    def _replay(self, frame: Frame, entry: Entry) -> None:
        """Do what an entry says, unless a chunk holds that already.

        Damage may have taken the entry that took it back, and a version of a schema that is put
        again might take the name's mode with it.
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
