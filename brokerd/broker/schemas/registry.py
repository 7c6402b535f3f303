# Tests: tests/broker/test_schemas_registry.py
"""Registers, finds, validates and deletes schemas: ``broker.schemas``.

docs/schemas.rst is the contract. The argument ``by`` is the client that makes a change; the audit
trail names it. The caller checks its permission first. A change takes effect at once, is one entry
of the journal, and is durable with the next commit. Methods that check a definition or a message in
another process call ``done`` later. A registration checks the permission again after that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from brokerd.archive.contract.schemas import StoredSchema
from brokerd.broker.context import Context
from brokerd.broker.group_commit import ENTRY_OVERHEAD_BYTES, Congested
from brokerd.broker.model.map_entries import Map
from brokerd.broker.model.topics import check_name
from brokerd.broker.schemas.entries import (
    SchemaName,
    SchemaRegistry,
    SchemaReplay,
    SchemaVersion,
    apply,
    deleted_map,
    entry_of,
    name_map,
    registered_map,
)
from brokerd.broker.security.audit import AuditTrail
from brokerd.errors import BrokerdError, InvalidName, InvalidSchema, LimitExceeded, UnknownSchema
from brokerd.schemas.checker import CheckDone, Checker, Requester
from brokerd.schemas.values import DEFINITION_BYTES_MAX, Definition, Mode, SchemaType
from brokerd.security.access import WRITE, Access
from brokerd.security.audit import EventType
from brokerd.values import RESERVED_PREFIX

NAMES_MAX = 10_000
VERSIONS_MAX = 20_000
"""Versions of all names together."""
TEXT_BYTES_MAX = 64 << 20
"""Bytes of the definitions of all versions."""
NAME_VERSIONS_MAX = 1_000
NAME_TEXT_BYTES_MAX = 4 << 20
WAITING_MAX = 64
"""Registrations that may wait for room in the log."""

ANONYMOUS = Requester()

RegisterDone = Callable[[SchemaVersion | None, BrokerdError | None], None]
"""Takes the new version, or an error."""


class Schemas:
    """The schemas of the broker."""

    def __init__(self, context: Context, audit: AuditTrail, checker: Checker) -> None:
        self.check_status = checker.status
        self._registry = SchemaRegistry()
        self._group_commit = context.group_commit
        self._time = context.time
        self._audit = audit
        self._checker = checker
        self._waiting = 0
        """Number of registrations that wait for room in the log."""
        self._stored: tuple[int, tuple[StoredSchema, ...]] = -1, ()
        SchemaReplay(context.state, self._registry)

    # -- queries ------------------------------------------------------------------------------

    def names(self) -> list[SchemaName]:
        """Return all names with their versions, sorted."""
        return [each for _, each in sorted(self._registry.names.items())]

    def find(self, name: str) -> SchemaName:
        """Return a name with its versions. Raises `UnknownSchema`."""
        current = self._registry.names.get(name)
        if current is None:
            raise UnknownSchema(f"schema not found: {name}")
        return current

    def versions(self, name: str) -> list[SchemaVersion]:
        """Return the versions of a name in order; an unknown name has none."""
        current = self._registry.names.get(name)
        return [] if current is None else list(current.versions.values())

    def get(self, name: str, version: int = 0) -> SchemaVersion:
        """Return a version of a name, by default the latest. Raises `UnknownSchema`."""
        current = self._registry.names.get(name)
        if not version:
            if current is None:
                raise UnknownSchema(f"no schema found for topic: {name}")
            return current.latest
        found = None if current is None else current.versions.get(version)
        if found is None:
            raise UnknownSchema(f"schema not found: {name} v{version}")
        return found

    def stored(self) -> tuple[StoredSchema, ...]:
        """Return all versions for ``state/schemas``: the same object while they are the same."""
        changes, stored = self._stored
        if changes != self._registry.changes:
            stored = tuple(
                StoredSchema(one.name, one.version, one.type.value, one.text, one.created_us)
                for name in self._registry.names.values()
                for one in name.versions.values()
            )
            self._stored = self._registry.changes, stored
        return stored

    def validate(
        self, name: str, message: bytes, done: CheckDone, requester: Requester = ANONYMOUS
    ) -> None:
        """Call ``done`` with the faults of a message by the latest version; none if it is valid.

        Raises `UnknownSchema`, and `LimitExceeded` when too many checks wait. ``done`` may get
        `SchemaCheckFailed`.
        """
        self._checker.validation(self.find(name).latest.definition, message, done, requester)

    # -- changes ------------------------------------------------------------------------------

    def register(
        self,
        by: Access,
        name: str,
        type_: SchemaType,
        text: bytes,
        done: RegisterDone,
        requester: Requester = ANONYMOUS,
    ) -> None:
        """Register the next version of a name.

        Raises `InvalidName`, `InvalidSchema` and `LimitExceeded`. ``done`` may get these,
        `IncompatibleSchema`, `SchemaCheckFailed`, `NoSpace` or `ShuttingDown`, and the errors of
        `Access.require` if the client has lost WRITE meanwhile.
        """
        if not check_name(name, "schema name"):
            raise InvalidName("a schema needs a name of 1 to 255 bytes of UTF-8")
        if name.startswith(RESERVED_PREFIX):
            raise InvalidName(
                f"schema names that begin with {RESERVED_PREFIX!r} are the broker's own; "
                "use another"
            )
        self._check_text(text)
        definition = Definition(0, type_, text)

        def begin() -> None:
            before = self._registry.names.get(name)
            self._check_limits(before, text)
            older = [] if before is None else list(before.versions.values())[::-1]
            mode = Mode.BACKWARD if before is None else before.mode
            self._checker.registration(
                definition,
                [each.definition for each in older],
                mode,
                partial(checked, before),
                requester,
            )

        def checked(
            before: SchemaName | None, texts: list[str] | None, error: BrokerdError | None
        ) -> None:
            if error is not None:
                done(None, error)
                return
            try:
                by.require(WRITE, name)
                if self._registry.names.get(name) is before:
                    self._check_limits(before, text)  # other names may have used them up meanwhile
                    done(self._add_version(by, name, definition), None)
                else:  # the versions that it was compared with have changed
                    begin()
            except Congested:
                self._when_room(partial(checked, before, texts, None), partial(done, None))
            except BrokerdError as refusal:
                done(None, refusal)

        begin()

    def _when_room(self, go_on: Callable[[], None], refuse: Callable[[BrokerdError], None]) -> None:
        """Call ``go_on`` when the log has room.

        `WAITING_MAX` counts also registrations whose clients have left.
        """
        if self._waiting >= WAITING_MAX:
            refuse(LimitExceeded("too many registrations wait for room in the log; try again"))
            return
        self._waiting += 1

        def on_room() -> None:
            self._waiting -= 1
            go_on()

        self._group_commit.when_uncongested(on_room)

    def _check_text(self, text: bytes) -> None:
        what = "failed to register schema: invalid schema definition: schema definition"
        if not text:
            raise InvalidSchema(f"{what} cannot be empty")
        if len(text) > DEFINITION_BYTES_MAX:
            raise InvalidSchema(
                f"{what} has {len(text)} bytes; the limit is {DEFINITION_BYTES_MAX}"
            )

    def _check_limits(self, before: SchemaName | None, text: bytes) -> None:
        registry = self._registry
        for count, most, what in (
            (len(registry.names) + (before is None), NAMES_MAX, "names of schemas"),
            (registry.versions + 1, VERSIONS_MAX, "versions of schemas"),
            (registry.text_bytes + len(text), TEXT_BYTES_MAX, "bytes of schemas"),
            (0 if before is None else len(before.versions) + 1, NAME_VERSIONS_MAX, "versions"),
            (
                0 if before is None else before.text_bytes + len(text),
                NAME_TEXT_BYTES_MAX,
                "bytes of all versions of one name",
            ),
        ):
            if count > most:
                raise LimitExceeded(
                    f"failed to register schema: there may be {most} {what}; delete some first"
                )

    def _add_version(self, by: Access, name: str, definition: Definition) -> SchemaVersion:
        current = self._registry.names.get(name)
        number = 1 if current is None else current.last + 1
        added = SchemaVersion(name, definition._replace(version=number), self._time.time_us())
        details = {"version": str(number), "type": added.type.value}
        self._change(by, EventType.SCHEMA_REGISTERED, registered_map(added), details)
        return added

    def delete(self, by: Access, name: str, version: int = 0) -> None:
        """Delete a version; 0 deletes the name with all versions.

        Raises `UnknownSchema`, `NoSpace` or `Congested`.
        """
        current = self._registry.names.get(name)
        if current is None or (version and version not in current.versions):
            what = f"{name} v{version}" if version else name
            raise UnknownSchema(f"failed to delete schema: schema not found: {what}")
        details = {"version": str(version) if version else "all"}
        self._change(by, EventType.SCHEMA_DELETED, deleted_map(name, version), details)

    def set_mode(self, by: Access, name: str, mode: Mode) -> SchemaName:
        """Set the compatibility mode of a name for its next registrations.

        Raises `UnknownSchema`, `NoSpace` or `Congested`.
        """
        fields = name_map(replace(self.find(name), mode=mode))
        self._change(by, EventType.SCHEMA_CONFIGURED, fields, {"compatibility": mode.value})
        return self.find(name)

    def _change(self, by: Access, type_: EventType, fields: Map, details: dict[str, str]) -> None:
        """Apply a map to the registry and add it to the log. Raises `NoSpace` or `Congested`."""
        entry = entry_of(fields)
        size = len(entry.body) + ENTRY_OVERHEAD_BYTES

        def change() -> None:
            if type_ is EventType.SCHEMA_REGISTERED:
                self._group_commit.admit(size)
            else:
                self._group_commit.admit_events(size)
            self._group_commit.add_entry(entry)
            apply(self._registry, fields)

        self._audit.carry_out(by.actor, type_, fields["name"], change, details)
