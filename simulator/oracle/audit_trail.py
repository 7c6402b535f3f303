# Tests: tests/simulator/test_oracle_audit_trail.py
"""Check the answers of searches of the audit trail: promise 1.

Each change that an operator, a registrar or the auditor made by the admin API has one event, with
its type, its resource and the name of the client. A refused change has none. A page has every
matching event that an earlier answer has, and an event never changes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from simulator.history.operations import (
    NEVER,
    AuditRow,
    AuditSearch,
    Configure,
    ConfigureTopic,
    DeleteGroup,
    DeleteTopic,
    DropStream,
    History,
    Operation,
    Pause,
    Purge,
    Release,
    Replay,
    ReportStream,
    Resume,
    Seek,
    SetClock,
    Trim,
)
from simulator.history.registry import (
    DeleteList,
    DeleteQuota,
    DeleteSchema,
    MakeKey,
    PutAccount,
    PutList,
    PutPassword,
    PutQuota,
    RegisterSchema,
    SetMode,
)
from simulator.oracle.timeline.spans import Lives, Span
from simulator.oracle.violation import Violation, violation

MAMAMIA = "mamamia"
"""The format of operators in a plan, and of no other client that makes such a change."""
ADMIN = "admin"
"""The format of events of operators."""
KEPT_US = 80 * 86_400_000_000
"""The broker keeps events a little longer; a clock that runs ahead as far may remove them."""
RESOURCE_BYTES_MAX = 255

GROUP_TYPES: dict[type[Operation], str] = {
    Pause: "group.pause",
    Resume: "group.resume",
    Configure: "group.configure",
    Seek: "group.seek",
    DeleteGroup: "group.delete",
    Release: "group.release",
    Replay: "dlq.replay",
    Purge: "dlq.purge",
}
TOPIC_TYPES: dict[type[Operation], str] = {
    Trim: "topic.trim",
    ConfigureTopic: "topic.configure",
    DeleteTopic: "topic.delete",
}
NAME_TYPES: dict[type[Operation], str] = {
    PutPassword: "password.change",
    RegisterSchema: "schema.register",
    DeleteSchema: "schema.delete",
    SetMode: "schema.configure",
}
OTHER_TYPES: dict[type[Operation], str] = {
    PutList: "acl.set",
    DeleteList: "acl.delete",
    MakeKey: "key.create",
    PutQuota: "quota.set",
    DeleteQuota: "quota.delete",
}
"""Changes of which clients do not know the resource. Their events are counted by type."""
MAY_BE_NO_CHANGE = (RegisterSchema, ReportStream)
"""A schema that exists is not registered again, and only the first report creates a stream."""
COUNTED_BY_TYPE = frozenset(OTHER_TYPES.values())


class Subject(NamedTuple):
    """What an event says."""

    type: str
    user: str
    resource: str


class Page(NamedTuple):
    """An answered search and its time."""

    op: AuditSearch
    span: Span

    @property
    def first_id(self) -> int:
        """The lowest id that the page covers."""
        return self.op.next_before or 0

    def covers(self, row: AuditRow) -> bool:
        """Return whether the page must have this event."""
        before = self.op.before
        return self.first_id <= row.id and (before is None or row.id < before) and self.matches(row)

    def matches(self, row: AuditRow) -> bool:
        """Return whether an event matches the filter."""
        return self.asks_for(Subject(row.type, row.user, row.resource))

    def asks_for(self, subject: Subject) -> bool:
        """Return whether events of a subject match the filter."""
        op = self.op
        return (
            (not op.types or subject.type in op.types)
            and op.user in ("", subject.user)
            and op.resource in subject.resource
        )


@dataclass
class Changes:
    """The changes of one subject, or rather their times."""

    certain: list[tuple[Span, Operation]]
    possible: list[tuple[Span, Operation]]
    """Includes the certain ones."""


def check_audit_trail(history: History, lives: Lives) -> Iterator[Violation]:
    """P1: check the answers of all searches of the audit trail."""
    if lives.any_loss or history.rotted or any(boot.damages for boot in history.boots):
        return
    pages = [
        Page(op, lives.span(op))
        for op in history.operations
        if isinstance(op, AuditSearch) and op.succeeded
    ]
    if not pages:
        return
    for page in pages:
        yield from _check_page(page)
    yield from _check_rows(pages)
    steps = history.clock_steps
    if steps is None or sum(max(0, step.step_us) for step in steps) > KEPT_US:
        return
    yield from _check_known(pages)
    changes = _changes(history, lives)
    for whole in _wholes(pages):
        yield from _check_counts(whole, changes)


def _check_page(page: Page) -> Iterator[Violation]:
    """Check the order, the limit and the filter of a page."""
    op = page.op
    ids = [row.id for row in op.rows]
    if ids != sorted(set(ids), reverse=True):
        yield violation("P1-audit", "the audit events of a page are not newest first", op)
    if len(ids) > op.limit:
        text = f"a page of audit events has {len(ids)}, and the limit is {op.limit}"
        yield violation("P1-audit", text, op)
    for row in op.rows:
        if not page.covers(row):
            yield violation("P1-audit", f"audit event {row} does not match its query", op)


def _check_rows(pages: list[Page]) -> Iterator[Violation]:
    """Check that an event is the same in every answer."""
    seen: dict[int, tuple[AuditRow, AuditSearch]] = {}
    for page in pages:
        for row in page.op.rows:
            before, op = seen.setdefault(row.id, (row, page.op))
            if before != row:
                yield violation("P1-audit", f"{before} has become {row}", op, page.op)


def _check_known(pages: list[Page]) -> Iterator[Violation]:
    """Check that a page has each event that an earlier answer has."""
    for page in pages:
        if page.op.unreadable:
            continue
        rows = set(page.op.rows)
        for earlier in pages:
            if not earlier.span.is_before(page.span):
                continue
            for row in earlier.op.rows:
                if row not in rows and page.covers(row):
                    text = f"audit event {row} is missing in a later answer"
                    yield violation("P1-audit", text, earlier.op, page.op)


def _wholes(pages: list[Page]) -> Iterator[list[Page]]:
    """Yield the pages of each query that was read to its end."""
    of_client: dict[str, list[Page]] = defaultdict(list)
    for page in pages:
        begun = of_client[page.op.client]
        if page.op.before is None:
            begun.clear()
        elif not begun or begun[-1].op.next_before != page.op.before:
            begun.clear()
            continue
        begun.append(page)
        if page.op.next_before is None:
            yield list(begun)
            begun.clear()


def _changes(history: History, lives: Lives) -> dict[Subject, Changes]:
    found: dict[Subject, Changes] = defaultdict(lambda: Changes([], []))
    for op in history.operations:
        subject = _subject(op)
        if subject is None or history.formats.get(op.client, MAMAMIA) != MAMAMIA:
            continue  # a client of that format, which asks on the wire
        if op.error or not _has_changed(op):
            continue
        at = lives.span(op), op
        found[subject].possible.append(at)
        if op.answered_us != NEVER and not isinstance(op, MAY_BE_NO_CHANGE):
            found[subject].certain.append(at)
    return found


def _has_changed(op: Operation) -> bool:
    """Return whether a request without an error may have changed something."""
    if isinstance(op, DropStream | DeleteList | DeleteQuota) and op.answered_us != NEVER:
        return op.existed
    return True


def _subject(op: Operation) -> Subject | None:
    """Return what the event of a request says; None for a request without one."""
    kind = type(op)
    if isinstance(op, Release) and (op.places is not None or op.owner == op.client):
        return None  # by a consumer, of its own leases
    if kind in GROUP_TYPES:
        place: tuple[str, str] = getattr(op, "topic", ""), getattr(op, "group", "")
        return Subject(GROUP_TYPES[kind], op.client, _shown("/".join(place)))
    if kind in TOPIC_TYPES:
        return Subject(TOPIC_TYPES[kind], op.client, getattr(op, "topic", ""))
    if kind in NAME_TYPES:
        return Subject(NAME_TYPES[kind], op.client, getattr(op, "name", ""))
    if kind in OTHER_TYPES:
        return Subject(OTHER_TYPES[kind], op.client, "")
    if isinstance(op, PutAccount):
        return Subject("user.create", op.client, op.name) if op.creates else None
    if isinstance(op, ReportStream):
        return Subject("stream.create", op.client, op.stream)
    if isinstance(op, DropStream):
        return Subject("stream.drop", op.client, op.stream)
    if isinstance(op, SetClock):
        return Subject("clock.set", op.client, "")
    return None


def _shown(resource: str) -> str:
    """Return a resource as an event has it: a longer one ends with an ellipsis."""
    encoded = resource.encode()
    if len(encoded) <= RESOURCE_BYTES_MAX:
        return resource
    return encoded[: RESOURCE_BYTES_MAX - 3].decode(errors="ignore") + "\u2026"


def _check_counts(whole: list[Page], changes: dict[Subject, Changes]) -> Iterator[Violation]:
    """Check that a whole answer has one event of each change, and no other of operators."""
    first, last = whole[0], whole[-1]
    if any(page.op.unreadable for page in whole):
        return
    told = Counter(
        Subject(row.type, row.user, "" if row.type in COUNTED_BY_TYPE else row.resource)
        for page in whole
        for row in page.op.rows
        if row.format == ADMIN and row.result == "success"
    )
    by_part = bool(first.op.resource)
    for subject in {*changes, *told}:
        if not first.asks_for(subject) or (by_part and subject.type in COUNTED_BY_TYPE):
            continue
        made = changes.get(subject, Changes([], []))
        certain = [op for span, op in made.certain if span.is_before(first.span)]
        possible = [op for span, op in made.possible if span.first_us <= first.span.last_us]
        count = told[subject]
        if count < len(certain):
            text = f"{len(certain)} changes {subject} were made, and {count} events tell it"
            yield violation("P1-audit", text, certain[-1], last.op)
        if count > len(possible):
            text = f"{count} events tell {subject}, and only {len(possible)} were possible"
            yield violation("P1-audit", text, *possible[-1:], last.op)
