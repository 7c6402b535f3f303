# Tests: tests/security/test_audit.py
"""Events of the audit trail, filters for them, and limits on repeated events.

docs/security.rst, section "Audit trail", is the contract. Pure: `brokerd.broker.security.audit`
stores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple

import msgspec
from msgspec import structs

from brokerd.errors import DamagedData, InvalidRequest, escaped
from brokerd.values import MAX_NAME_BYTES

AUDIT_TOPIC: Final = "__brokerd.audit"
"""The topic of the trail. Only the broker writes, changes or deletes it."""

WINDOW_US: Final = 60_000_000
"""Window in which repeated events are counted; then one event has the count."""

AT_ONCE_MAX: Final = 10
"""Different events of one sender that are written at once in a window."""

EVENT_BYTES_MAX: Final = 2_600
"""Largest event in JSON."""
_DETAILS_BYTES: Final = 400
"""Bytes of names and values of its details; in JSON at most twice as many."""
_SHORT_BYTES: Final = 64

SENDERS_MAX: Final = 300
"""Senders that are counted separately in a window, for each type; the others count together."""

EVENTS_MAX: Final = 300
"""Events that are written at once in a window, for each type."""

LIMIT_MAX: Final = 1_000
"""Most events in one answer."""

LIMIT_DEFAULT: Final = 100

KEY_DETAIL: Final = "key"
"""Detail of a login with the id of its key."""

SKIP_MAX: Final = 1_000_000


class EventType(StrEnum):
    """Type of an event."""

    LOGIN = "auth.success"
    LOGIN_FAILED = "auth.failure"
    LOGIN_REFUSED = "auth.refused"
    LOGOUT = "auth.logout"
    DENIED = "access.denied"
    TOPIC_CREATED = "topic.create"
    TOPIC_CONFIGURED = "topic.configure"
    TOPIC_TRIMMED = "topic.trim"
    TOPIC_DELETED = "topic.delete"
    GROUP_CONFIGURED = "group.configure"
    GROUP_SOUGHT = "group.seek"
    GROUP_PAUSED = "group.pause"
    GROUP_RESUMED = "group.resume"
    GROUP_DELETED = "group.delete"
    LEASES_RELEASED = "group.release"
    DEAD_LETTERS_REPLAYED = "dlq.replay"
    DEAD_LETTERS_PURGED = "dlq.purge"
    USER_CREATED = "user.create"
    USER_UPDATED = "user.update"
    USER_DELETED = "user.delete"
    PASSWORD_CHANGED = "password.change"
    ACL_SET = "acl.set"
    ACL_DELETED = "acl.delete"
    SCHEMA_REGISTERED = "schema.register"
    SCHEMA_DELETED = "schema.delete"
    SCHEMA_CONFIGURED = "schema.configure"
    KEY_CREATED = "key.create"
    KEY_DELETED = "key.delete"
    CLOCK_SET = "clock.set"
    QUOTA_SET = "quota.set"
    QUOTA_DELETED = "quota.delete"
    STREAM_CREATED = "stream.create"
    STREAM_DROPPED = "stream.drop"
    STREAM_HOLD_DROPPED = "stream.hold-drop"
    CONNECTION_CLOSED = "connection.close"
    SESSION_ENDED = "session.end"


class Result(StrEnum):
    """Result of an event."""

    SUCCESS = "success"
    FAILURE = "failure"
    DENIED = "denied"


class Actor(NamedTuple):
    """The principal of an event, its address and wire format."""

    user: str = ""
    """The principal; for a failed login the given name. Empty: anonymous."""
    client_ip: str = ""
    """The address without a port; empty: the broker itself."""
    wire_format: str = ""
    """The wire format, or ``admin``."""


class AuditEvent(msgspec.Struct, frozen=True):
    """One event, as it is in the trail in JSON."""

    type: str
    user: str
    client_ip: str
    wire_format: str = msgspec.field(name="format")
    resource: str
    """Resource: a topic, ``topic/group``, a user, the id of a key; may be empty."""
    action: str
    """Action, for example ``write`` or ``password``; may be empty."""
    result: str
    """``success``, ``failure`` or ``denied``."""
    details: dict[str, str] = {}
    time_us: int = 0
    """Broker time; set when the event is recorded."""
    event_id: int = msgspec.field(default=-1, name="id")
    """Offset in the trail, or -1 before it is written. Not in the JSON: the record has it."""


def event(
    actor: Actor,
    kind: EventType,
    resource: str = "",
    action: str = "",
    result: Result = Result.SUCCESS,
    details: Mapping[str, str] | None = None,
) -> AuditEvent:
    """Make an event of at most `EVENT_BYTES_MAX` with printable text: names may come from any
    client.

    ``details`` must hold no secrets; excess details are dropped from the end.
    """
    shown: dict[str, str] = {}
    left = _DETAILS_BYTES
    for key, value in (details or {}).items():
        key, value = _clean(key), _clean(value)
        left -= len(key.encode()) + len(value.encode())
        if left < 0:
            shown["\u2026"] = "\u2026"
            break
        shown[key] = value
    return AuditEvent(
        kind.value,
        _clean(actor.user),
        _clean(actor.client_ip, _SHORT_BYTES),
        _clean(actor.wire_format, _SHORT_BYTES),
        _clean(resource),
        _clean(action, _SHORT_BYTES),
        result.value,
        shown,
    )


def denied(actor: Actor, permission: str, resource: str) -> AuditEvent:
    """Make the event of a denied request; ``resource`` is a topic, or empty."""
    return event(actor, EventType.DENIED, resource, permission, Result.DENIED)


def topic_auto_created(actor: Actor, topic: str) -> AuditEvent:
    """Make the event of a topic that a write or a subscription created."""
    return event(actor, EventType.TOPIC_CREATED, topic, "write")


def logged_in(actor: Actor, action: str, key_id: str = "") -> AuditEvent:
    """Make the event of a login; ``action`` is ``password``, ``key`` or ``certificate``."""
    return event(actor, EventType.LOGIN, actor.user, action, details=_of_key(key_id))


def login_failed(actor: Actor, action: str, reason: str, key_id: str = "") -> AuditEvent:
    """Make the event of a failed login; ``reason`` is for the operator, and may have more than the
    answer.
    """
    details = {"reason": reason, **_of_key(key_id)}
    return event(actor, EventType.LOGIN_FAILED, actor.user, action, Result.FAILURE, details)


def login_refused(actor: Actor, action: str, reason: str, key_id: str = "") -> AuditEvent:
    """Make the event of a login that had no place in the queue. It is no failed login."""
    details = {"reason": reason, **_of_key(key_id)}
    return event(actor, EventType.LOGIN_REFUSED, actor.user, action, Result.FAILURE, details)


def _of_key(key_id: str) -> dict[str, str]:
    return {KEY_DETAIL: key_id} if key_id else {}


def _clean(text: str, most: int = MAX_NAME_BYTES) -> str:
    """Return printable text of at most ``most`` bytes of UTF-8."""
    shown = escaped(text[: most + 1].encode("utf-8", "replace").decode())
    encoded = shown.encode()
    if len(encoded) <= most:
        return shown
    return encoded[: most - 3].decode("utf-8", "ignore") + "\u2026"


def encode_event(audit_event: AuditEvent) -> bytes:
    """Encode an event as JSON, the value of its record."""
    fields = structs.asdict(audit_event)
    del fields["event_id"]
    fields["format"] = fields.pop("wire_format")
    return msgspec.json.encode(fields)


_decoder = msgspec.json.Decoder(AuditEvent)


def decode_event(value: bytes, event_id: int) -> AuditEvent:
    """Decode the event in a record. Raises `DamagedData` if there is none."""
    try:
        return structs.replace(_decoder.decode(value), event_id=event_id)
    except msgspec.DecodeError as error:
        raise DamagedData(f"audit event {event_id} cannot be read: {error}") from None


# -- queries --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AuditFilter:
    """A filter for events. An empty text or 0 matches everything."""

    start_us: int = 0
    """Broker time of the oldest."""
    end_us: int = 0
    """Exclusive end, in broker time."""
    types: frozenset[str] = frozenset()
    user: str = ""
    """The complete name."""
    resource: str = ""
    """Part of the resource."""
    result: str = ""
    client_ip: str = ""
    """The complete address."""
    wire_format: str = ""
    """The wire format, or ``admin``."""
    search: str = ""
    """Part of action, resource, address, format or a detail's value; case-insensitive."""
    before: int | None = None
    """Return only events with a lower id."""
    limit: int = LIMIT_DEFAULT
    skip: int = 0
    """Number of the newest matches to skip."""

    def check(self) -> None:
        """Raise `InvalidRequest` for invalid limits."""
        if not 1 <= self.limit <= LIMIT_MAX:
            raise InvalidRequest(f"an answer holds 1 to {LIMIT_MAX} audit events: {self.limit}")
        if not 0 <= self.skip <= SKIP_MAX:
            raise InvalidRequest(f"0 to {SKIP_MAX} audit events can be skipped: {self.skip}")

    def matches(self, audit_event: AuditEvent) -> bool:
        """Return whether an event matches; ``before`` is ignored."""
        return (
            (not self.types or audit_event.type in self.types)
            and (not self.user or audit_event.user == self.user)
            and (not self.result or audit_event.result == self.result)
            and (not self.client_ip or audit_event.client_ip == self.client_ip)
            and (not self.wire_format or audit_event.wire_format == self.wire_format)
            and self.resource in audit_event.resource
            and audit_event.time_us >= self.start_us
            and (not self.end_us or audit_event.time_us < self.end_us)
            and (not self.search or self._matches_search(audit_event))
        )

    def _matches_search(self, audit_event: AuditEvent) -> bool:
        searched = self.search.casefold()
        texts = (
            audit_event.action,
            audit_event.resource,
            audit_event.client_ip,
            audit_event.wire_format,
            *audit_event.details.values(),
        )
        return any(searched in text.casefold() for text in texts)


@dataclass(frozen=True)
class AuditPage:
    """An answer, newest first."""

    events: tuple[AuditEvent, ...]
    total: int
    """Matching events in the searched range, including those before and after this page."""
    more: bool
    """Whether older events match, or may match."""
    next_before: int | None = None
    """``before`` of the next page. Reduce the skip by ``total`` then."""
    unreadable: int = 0
    """Events lost to damage."""


# -- repeated events ------------------------------------------------------------------------------


@dataclass
class _Repeated:
    """Repeated events of one sender, or of all others, in this window."""

    written: set[tuple[str, ...]] = field(default_factory=set)
    count: int = 0
    last: AuditEvent | None = None


@dataclass
class _Window:
    """Events of one type in this window."""

    senders: dict[tuple[str, str], _Repeated] = field(default_factory=dict)
    others: _Repeated = field(default_factory=_Repeated)
    written: int = 0


class RepeatFilter:
    """Writes a few events of each sender at once, and counts the rest.

    A sender is a network address (of IPv6 its /64) and the principal, if known. Memory and events
    are bounded: for each type and window `EVENTS_MAX` at once; at the end one for each of
    `SENDERS_MAX` senders and one for all others.
    """

    def __init__(self) -> None:
        self._windows: dict[str, _Window] = {}

    @property
    def is_idle(self) -> bool:
        """Whether the window has no events."""
        return not self._windows

    def should_write(self, audit_event: AuditEvent) -> bool:
        """Return whether to write this event now; count it if not."""
        window = self._windows.setdefault(audit_event.type, _Window())
        user = "" if audit_event.result == Result.FAILURE else audit_event.user
        sender = network_of(audit_event.client_ip), user
        repeated = window.senders.get(sender)
        if repeated is None:
            if len(window.senders) >= SENDERS_MAX:
                repeated = window.others
            else:
                repeated = window.senders[sender] = _Repeated()
        key_id = audit_event.details.get(KEY_DETAIL, "")
        signature = (
            audit_event.user,
            audit_event.wire_format,
            audit_event.resource,
            audit_event.action,
            key_id,
        )
        if (
            repeated is window.others
            or signature in repeated.written
            or len(repeated.written) >= AT_ONCE_MAX
            or window.written >= EVENTS_MAX
        ):
            repeated.count += 1
            repeated.last = audit_event
            return False
        repeated.written.add(signature)
        window.written += 1
        return True

    def end_window(self) -> list[AuditEvent]:
        """End the window; return an event for each sender with counted events.

        It is the sender's last counted event, with their number as the detail ``repeated``. The
        event for all other senders has no user, address or resource.
        """
        windows, self._windows = self._windows, {}
        ended: list[AuditEvent] = []
        for window in windows.values():
            for repeated in window.senders.values():
                if repeated.last is not None:
                    details = {**repeated.last.details, "repeated": str(repeated.count)}
                    ended.append(structs.replace(repeated.last, details=details))
            last = window.others.last
            if last is not None:
                ended.append(
                    structs.replace(
                        last,
                        user="",
                        client_ip="",
                        wire_format="",
                        resource="",
                        action="",
                        details={"repeated": str(window.others.count), "senders": "others"},
                    )
                )
        return ended


def network_of(address: str) -> str:
    """Return the network of an address: of IPv6 the first 64 bits, else the address."""
    if ":" not in address:
        return address
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{IPv6Address(int(parsed) >> 64 << 64)}/64"
