# Tests: tests/broker/test_schemas_registry.py
"""What the log says of schemas: bodies of SCHEMA entries, and the registry that they make.

docs/wal-format.rst, section "SCHEMA body", is the contract. Chunks of a snapshot hold the same
maps: each version that there is, and one of each name.
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
"""Versions and names in one chunk of a snapshot, at the most."""
CHUNK_BYTES = 1 << 20
"""Definitions in one chunk, unless one alone is larger."""

LAYOUT = MapLayout(EntryKind.SCHEMA, SNAPSHOT_SCHEMAS, "schemas", "a schema")


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version of a schema. It is never changed."""

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
    """What is known of a name that has versions; it is replaced when that changes."""

    name: str
    mode: Mode = Mode.BACKWARD
    last: int = 0
    """The highest version that it ever had."""
    versions: dict[int, SchemaVersion] = field(default_factory=dict)
    """Those that are left, in order."""

    @property
    def latest(self) -> SchemaVersion:
        return self.versions[next(reversed(self.versions))]

    @property
    def text_bytes(self) -> int:
        return sum(len(one.text) for one in self.versions.values())


class SchemaRegistry:
    """All schemas."""

    def __init__(self) -> None:
        self.names: dict[str, SchemaName] = {}
        self.versions = 0
        self.text_bytes = 0

    def put_version(self, version: SchemaVersion) -> None:
        """Have a version, whether it was there or not."""
        name = version.name
        self.remove(name, version.version)
        known = self.names.get(name) or SchemaName(name)
        versions = {**known.versions, version.version: version}
        self.names[name] = replace(
            known,
            last=max(known.last, version.version),
            versions=dict(sorted(versions.items())),
        )
        self.versions += 1
        self.text_bytes += len(version.text)

    def put_name(self, name: str, mode: Mode, last: int) -> None:
        """Have other settings of a name; of one without versions there are none."""
        known = self.names.get(name)
        if known is not None:
            self.names[name] = replace(known, mode=mode, last=max(known.last, last))

    def remove(self, name: str, version: int) -> None:
        """Have a version no more, or with 0 none; a name without versions is forgotten."""
        known = self.names.get(name)
        if known is None:
            return
        gone = [one for one in known.versions.values() if version in (0, one.version)]
        left = {
            one.version: one for one in known.versions.values() if version not in (0, one.version)
        }
        self.versions -= len(gone)
        self.text_bytes -= sum(len(one.text) for one in gone)
        if left:
            self.names[name] = replace(known, versions=left)
        else:
            del self.names[name]


def registered_map(version: SchemaVersion) -> Map:
    """A version is there."""
    return {
        "op": "registered",
        "name": version.name,
        "version": version.version,
        "type": version.type.value,
        "definition": version.text,
        "created_us": version.created_us,
    }


def name_map(known: SchemaName) -> Map:
    """What is so of a name, besides its versions."""
    return {"op": "name", "name": known.name, "mode": known.mode.value, "last": known.last}


def deleted_map(name: str, version: int) -> Map:
    """A version is gone, or with 0 all of them."""
    return {"op": "deleted", "name": name, "version": version}


def entry_of(fields: Map) -> Entry:
    """The log entry that says so."""
    return LAYOUT.entry(fields)


def apply(registry: SchemaRegistry, fields: Map) -> bool:
    """Do what a map says; False if its ``op`` is not known."""
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
    """Brings a registry back from snapshot and log."""

    def __init__(self, state: State, registry: SchemaRegistry) -> None:
        super().__init__(state, LAYOUT, partial(apply, registry))
        self._registry = registry
        state.captures.append(self._captures)

    def _captures(self, lsn: int) -> list[Encode]:
        """All that there is now, in chunks."""
        return [
            partial(_chunk, lsn, number, things)
            for number, things in enumerate(_portions(list(self._registry.names.values())))
        ]


Thing = SchemaVersion | SchemaName


def _portions(names: list[SchemaName]) -> Iterator[list[Thing]]:
    """What goes into each chunk. A name stands behind its versions."""
    portion: list[Thing] = []
    size = 0
    for known in names:
        things: list[Thing] = [*known.versions.values(), known]
        for thing in things:
            added = len(thing.text) if isinstance(thing, SchemaVersion) else 0
            if portion and (len(portion) >= CHUNK_MAPS or size + added > CHUNK_BYTES):
                yield portion
                portion, size = [], 0
            portion.append(thing)
            size += added
    if portion:
        yield portion


def _chunk(lsn: int, number: int, things: list[Thing]) -> SnapshotChunk:
    maps = [
        registered_map(one) if isinstance(one, SchemaVersion) else name_map(one) for one in things
    ]
    return LAYOUT.chunk(number, lsn, maps)
