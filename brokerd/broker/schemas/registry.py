# Tests: tests/broker/test_schemas_registry.py
"""Schemas, registered, deleted and asked: ``broker.schemas``. docs/schemas.rst is the contract.

A change takes who makes it, for the audit trail; whether that one may is what the caller asks
first. It is applied at once, stands in one entry of the journal, and is durable with the next
commit. What a schema has to be looked at for calls ``done`` later; a registration then asks again
whether it may be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from brokerd.broker.context import Context
from brokerd.broker.journal import BATCH_FRAME_BYTES, Congested
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
"""Of all names together."""
TEXT_BYTES_MAX = 64 << 20
"""Definitions of all versions."""
NAME_VERSIONS_MAX = 1_000
NAME_TEXT_BYTES_MAX = 4 << 20
PARKED_MAX = 64
"""Registrations that wait for room in the log."""

ANYBODY = Requester()

Registered = Callable[[SchemaVersion | None, BrokerdError | None], None]
"""Takes the new version, or why there is none."""


class Schemas:
    """All schemas, and what fits them."""

    def __init__(self, context: Context, audit: AuditTrail, checker: Checker) -> None:
        self._registry = SchemaRegistry()
        self._journal = context.journal
        self._time = context.time
        self._audit = audit
        self._checker = checker
        self._parked = 0
        """Registrations that were looked at and wait for room in the log."""
        SchemaReplay(context.state, self._registry)

    # -- what there is ------------------------------------------------------------------------

    def names(self) -> list[SchemaName]:
        """All of them, sorted."""
        return [known for _, known in sorted(self._registry.names.items())]

    def named(self, name: str) -> SchemaName:
        """What there is of a name. Raises `UnknownSchema`."""
        known = self._registry.names.get(name)
        if known is None:
            raise UnknownSchema(f"schema not found: {name}")
        return known

    def versions(self, name: str) -> list[SchemaVersion]:
        """Those that are left of a name, in order; none of one that is not known."""
        known = self._registry.names.get(name)
        return [] if known is None else list(known.versions.values())

    def get(self, name: str, version: int = 0) -> SchemaVersion:
        """A version, 0 for the latest. Raises `UnknownSchema`."""
        known = self._registry.names.get(name)
        if not version:
            if known is None:
                raise UnknownSchema(f"no schema found for topic: {name}")
            return known.latest
        found = None if known is None else known.versions.get(version)
        if found is None:
            raise UnknownSchema(f"schema not found: {name} v{version}")
        return found

    def validate(
        self, name: str, message: bytes, done: CheckDone, requester: Requester = ANYBODY
    ) -> None:
        """Tell ``done`` why a message does not fit the latest version; nothing if it does.

        Raises `UnknownSchema`, or `LimitExceeded` when too much waits to be looked at; ``done`` may
        get `SchemaCheckFailed`.
        """
        self._checker.validation(self.named(name).latest.definition, message, done, requester)

    # -- changes ------------------------------------------------------------------------------

    def register(
        self,
        by: Access,
        name: str,
        kind: SchemaType,
        text: bytes,
        done: Registered,
        requester: Requester = ANYBODY,
    ) -> None:
        """Make the next version of a name.

        Raises `InvalidName`, `InvalidSchema` and `LimitExceeded`; ``done`` may get these and
        `IncompatibleSchema`, `SchemaCheckFailed`, `NoSpace` or `ShuttingDown`, and what
        `Access.require` raises if WRITE was taken away meanwhile.
        """
        if not check_name(name, "schema name"):
            raise InvalidName("a schema needs a name of 1 to 255 bytes of UTF-8")
        if name.startswith(RESERVED_PREFIX):
            raise InvalidName(
                f"schema names that begin with {RESERVED_PREFIX!r} are the broker's own; "
                "use another"
            )
        self._check_text(text)
        wanted = Definition(0, kind, text)

        def begin() -> None:
            before = self._registry.names.get(name)
            self._check_room(before, text)
            olds = [] if before is None else list(before.versions.values())[::-1]
            mode = Mode.BACKWARD if before is None else before.mode
            definitions = [one.definition for one in olds]
            self._checker.registration(
                wanted, definitions, mode, partial(looked, before), requester
            )

        def looked(
            before: SchemaName | None, texts: list[str] | None, error: BrokerdError | None
        ) -> None:
            if error is not None:
                done(None, error)
                return
            try:
                by.require(WRITE, name)
                if self._registry.names.get(name) is before:
                    self._check_room(before, text)  # others may have taken it meanwhile
                    done(self._put(by, name, wanted), None)
                else:  # somebody has changed what it was compared with
                    begin()
            except Congested:
                self._park(partial(looked, before, texts, None), partial(done, None))
            except BrokerdError as refusal:
                done(None, refusal)

        begin()

    def _park(self, go_on: Callable[[], None], refuse: Callable[[BrokerdError], None]) -> None:
        """Go on when there is room in the log; of those whose clients left, too, not many wait."""
        if self._parked >= PARKED_MAX:
            refuse(LimitExceeded("too many registrations wait for room in the log; try again"))
            return
        self._parked += 1

        def unparked() -> None:
            self._parked -= 1
            go_on()

        self._journal.when_uncongested(unparked)

    def _check_text(self, text: bytes) -> None:
        what = "failed to register schema: invalid schema definition: schema definition"
        if not text:
            raise InvalidSchema(f"{what} cannot be empty")
        if len(text) > DEFINITION_BYTES_MAX:
            raise InvalidSchema(f"{what} has {len(text)} bytes, and {DEFINITION_BYTES_MAX} may be")

    def _check_room(self, before: SchemaName | None, text: bytes) -> None:
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

    def _put(self, by: Access, name: str, wanted: Definition) -> SchemaVersion:
        known = self._registry.names.get(name)
        version = 1 if known is None else known.last + 1
        made = SchemaVersion(name, wanted._replace(version=version), self._time.time_us())
        details = {"version": str(version), "type": made.type.value}
        self._change(by, EventType.SCHEMA_REGISTERED, registered_map(made), details)
        return made

    def delete(self, by: Access, name: str, version: int = 0) -> None:
        """Delete a version, or with 0 all of them.

        Raises `UnknownSchema`, `NoSpace` or `Congested`.
        """
        known = self._registry.names.get(name)
        if known is None or (version and version not in known.versions):
            what = f"{name} v{version}" if version else name
            raise UnknownSchema(f"failed to delete schema: schema not found: {what}")
        details = {"version": str(version) if version else "all"}
        self._change(by, EventType.SCHEMA_DELETED, deleted_map(name, version), details)

    def set_mode(self, by: Access, name: str, mode: Mode) -> SchemaName:
        """Have the next registrations of a name compared in another way.

        Raises `UnknownSchema`, `NoSpace` or `Congested`.
        """
        fields = name_map(replace(self.named(name), mode=mode))
        self._change(by, EventType.SCHEMA_CONFIGURED, fields, {"compatibility": mode.value})
        return self.named(name)

    def _change(self, by: Access, kind: EventType, fields: Map, details: dict[str, str]) -> None:
        """Do what a map says, here and in the log. Raises `NoSpace` or `Congested`."""
        entry = entry_of(fields)
        size = len(entry.body) + BATCH_FRAME_BYTES

        def change() -> None:
            if kind is EventType.SCHEMA_REGISTERED:
                self._journal.admit(size)
            else:
                self._journal.admit_events(size)
            self._journal.add_entry(entry)
            apply(self._registry, fields)

        self._audit.carry_out(by.actor, kind, fields["name"], change, details)
