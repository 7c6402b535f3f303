# Tests: tests/broker/test_schemas_registry.py
"""The registry of schemas, and its changes as bodies of SCHEMA entries.

docs/wal-format.rst, section "SCHEMA body", is the contract. Chunks of a snapshot hold the same
maps, one for each version and one for each name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from brokerd.broker.model.map_entries import Map, MapLayout, MapReplay
from brokerd.broker.model.state import Encode, State
from brokerd.schemas.values import Definition, Mode, SchemaType
from brokerd.wal import SnapshotChunk
from brokerd.walformat import Entry, EntryKind

SNAPSHOT_SCHEMAS = 9
CHUNK_MAPS = 5_000
"""Limit on the versions and names in one chunk of a snapshot."""
CHUNK_BYTES = 1 << 20
"""Limit on the bytes of definitions in one chunk; a larger definition has its own."""

LAYOUT = MapLayout(EntryKind.SCHEMA, SNAPSHOT_SCHEMAS, "schemas", "a schema")


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version of a schema."""

    name: str
    definition: Definition
    created_us: int
    """Broker time."""

    @property
    def version(self) -> int:
        return self.definition.version

    @property
    def type(self) -> SchemaType:
        return self.definition.type

    @property
    def text(self) -> bytes:
        return self.definition.text


@dataclass(frozen=True)
class SchemaName:
    """A name with its versions and its mode. A change replaces the object."""

    name: str
    mode: Mode = Mode.BACKWARD
    last: int = 0
    """The highest version ever registered. A deleted number is not used again."""
    versions: dict[int, SchemaVersion] = field(default_factory=dict)
    """Existing versions in order."""

    @property
    def latest(self) -> SchemaVersion:
        return self.versions[next(reversed(self.versions))]

    @property
    def text_bytes(self) -> int:
        return sum(len(each.text) for each in self.versions.values())


class SchemaRegistry:
    """All schemas, with the totals that limits apply to."""

    def __init__(self) -> None:
        self.names: dict[str, SchemaName] = {}
        self.versions = 0
        self.text_bytes = 0
        self.changes = 0
        """Number of changes, so that a reader notices them."""

    def put_version(self, version: SchemaVersion) -> None:
        """Add or replace a version."""
        name = version.name
        self.remove(name, version.version)
        current = self.names.get(name) or SchemaName(name)
        versions = {**current.versions, version.version: version}
        self.names[name] = replace(
            current,
            last=max(current.last, version.version),
            versions=dict(sorted(versions.items())),
        )
        self.versions += 1
        self.text_bytes += len(version.text)
        self.changes += 1

    def put_name(self, name: str, mode: Mode, last: int) -> None:
        """Set mode and last version of a name; do nothing for a name without versions."""
        current = self.names.get(name)
        if current is not None:
            self.names[name] = replace(current, mode=mode, last=max(current.last, last))

    def remove(self, name: str, version: int) -> None:
        """Remove a version; 0 removes all versions. A name without versions is removed too."""
        current = self.names.get(name)
        if current is None:
            return
        kept = dict(current.versions) if version else {}
        kept.pop(version, None)
        self.changes += 1
        removed = [each for each in current.versions.values() if each.version not in kept]
        self.versions -= len(removed)
        self.text_bytes -= sum(len(each.text) for each in removed)
        if kept:
            self.names[name] = replace(current, versions=kept)
        else:
            del self.names[name]


def registered_map(version: SchemaVersion) -> Map:
    """Return the map that adds a version."""
    return {
        "op": "registered",
        "name": version.name,
        "version": version.version,
        "type": version.type.value,
        "definition": version.text,
        "created_us": version.created_us,
    }


def name_map(current: SchemaName) -> Map:
    """Return the map that sets mode and last version of a name."""
    return {"op": "name", "name": current.name, "mode": current.mode.value, "last": current.last}


def deleted_map(name: str, version: int) -> Map:
    """Return the map that deletes a version; 0 deletes all versions."""
    return {"op": "deleted", "name": name, "version": version}


def entry_of(fields: Map) -> Entry:
    """Return the log entry with this map."""
    return LAYOUT.entry(fields)


def apply(registry: SchemaRegistry, fields: Map) -> bool:
    """Apply a map; return False if its ``op`` is unknown."""
    change = _CHANGES.get(fields["op"])
    if change is None:
        return False
    change(registry, fields)
    return True


def _put_version(registry: SchemaRegistry, fields: Map) -> None:
    definition = Definition(fields["version"], SchemaType(fields["type"]), fields["definition"])
    registry.put_version(SchemaVersion(fields["name"], definition, fields["created_us"]))


_CHANGES: dict[str, Callable[[SchemaRegistry, Map], object]] = {
    "registered": _put_version,
    "name": lambda registry, fields: registry.put_name(
        fields["name"], Mode(fields["mode"]), fields["last"]
    ),
    "deleted": lambda registry, fields: registry.remove(fields["name"], fields["version"]),
}


class SchemaReplay(MapReplay):
    """Restores a registry from snapshot and log, and captures it for the next snapshot."""

    def __init__(self, state: State, registry: SchemaRegistry) -> None:
        super().__init__(state, LAYOUT, partial(apply, registry))
        self._registry = registry
        state.captures.append(self._captures)

    def _captures(self, lsn: int) -> list[Encode]:
        """Return encoders of the registry's chunks."""
        return [
            partial(_chunk, lsn, number, items)
            for number, items in enumerate(_chunk_items(list(self._registry.names.values())))
        ]


Item = SchemaVersion | SchemaName


def _chunk_items(names: list[SchemaName]) -> Iterator[list[Item]]:
    """Yield the items of each chunk. A name follows its versions."""
    chunk: list[Item] = []
    size = 0
    for current in names:
        items: list[Item] = [*current.versions.values(), current]
        for item in items:
            added = len(item.text) if isinstance(item, SchemaVersion) else 0
            if chunk and (len(chunk) >= CHUNK_MAPS or size + added > CHUNK_BYTES):
                yield chunk
                chunk, size = [], 0
            chunk.append(item)
            size += added
    if chunk:
        yield chunk


def _chunk(lsn: int, number: int, items: list[Item]) -> SnapshotChunk:
    maps = [
        registered_map(one) if isinstance(one, SchemaVersion) else name_map(one) for one in items
    ]
    return LAYOUT.chunk(number, lsn, maps)
