# Tests: tests/security/test_audit.py
"""Events of the audit trail, questions about them, and how floods of them are thinned.

docs/security.rst, section "Audit trail", is the contract. Pure: `brokerd.broker.security.audit`
keeps them.
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
"""The topic that the trail is. Nobody but the broker writes to it, changes or deletes it."""

WINDOW_US: Final = 60_000_000
"""What repeats itself is counted for so long, and then written as one event."""

AT_ONCE_MAX: Final = 10
"""Different events of one sender that are written at once in a window."""

EVENT_BYTES_MAX: Final = 2_600
"""An event takes no more than this in JSON."""
_DETAILS_BYTES: Final = 400
"""Names and values of its details; in JSON twice as many at the most."""
_SHORT_BYTES: Final = 64

SENDERS_MAX: Final = 300
"""Senders that are told apart in a window, for each type; the others are counted together."""

EVENTS_MAX: Final = 300
"""Events that are written at once in a window, for each type."""

LIMIT_MAX: Final = 1_000
"""Events in one answer."""

LIMIT_DEFAULT: Final = 100

KEY_DETAIL: Final = "key"
"""The detail of a login that says by which key, or with which."""

SKIP_MAX: Final = 1_000_000


class EventType(StrEnum):
    """What happened."""

    LOGIN = "auth.success"
    LOGIN_FAILED = "auth.failure"
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


class Result(StrEnum):
    """How it ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    DENIED = "denied"


class Actor(NamedTuple):
    """Who did it, and how he came."""

    user: str = ""
    """The principal; for a failed login the name that was given. Empty: anonymous."""
    client_ip: str = ""
    """The address without a port; empty: the broker itself."""
    form: str = ""
    """The wire format, or ``admin``."""


class AuditEvent(msgspec.Struct, frozen=True):
    """One event, as it stands in the trail in JSON."""

    type: str
    user: str
    client_ip: str
    form: str = msgspec.field(name="format")
    resource: str
    """What it was done to: a topic, ``topic/group``, a user, a key's id; may be empty."""
    action: str
    """What was asked for, such as ``write`` or ``password``; may be empty."""
    result: str
    """``success``, ``failure`` or ``denied``."""
    details: dict[str, str] = {}
    time_us: int = 0
    """Broker time; set when the event is taken."""
    event_id: int = msgspec.field(default=-1, name="id")
    """The offset in the trail, or -1 while it has none. It is not written: the record has it."""


def event(
    actor: Actor,
    kind: EventType,
    resource: str = "",
    action: str = "",
    result: Result = Result.SUCCESS,
    details: Mapping[str, str] | None = None,
) -> AuditEvent:
    """An event that takes `EVENT_BYTES_MAX` and can be shown: names may come from anybody.

    ``details`` must hold no secrets; of many, the first ones stay.
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
        _clean(actor.form, _SHORT_BYTES),
        _clean(resource),
        _clean(action, _SHORT_BYTES),
        result.value,
        shown,
    )


def denied(actor: Actor, permission: str, resource: str) -> AuditEvent:
    """A permission was asked for and is not given; ``resource`` is a topic, or empty."""
    return event(actor, EventType.DENIED, resource, permission, Result.DENIED)


def topic_auto_created(actor: Actor, topic: str) -> AuditEvent:
    """Make the event of a topic that a write or a subscription created."""
    return event(actor, EventType.TOPIC_CREATED, topic, "write")


def logged_in(actor: Actor, action: str, key_id: str = "") -> AuditEvent:
    """A login went well; ``action`` says how: ``password``, ``key`` or ``certificate``."""
    return event(actor, EventType.LOGIN, actor.user, action, details=_of_key(key_id))


def login_failed(actor: Actor, action: str, reason: str, key_id: str = "") -> AuditEvent:
    """A login failed; ``reason`` is the operator's, and may say more than the client is told."""
    details = {"reason": reason, **_of_key(key_id)}
    return event(actor, EventType.LOGIN_FAILED, actor.user, action, Result.FAILURE, details)


def _of_key(key_id: str) -> dict[str, str]:
    return {KEY_DETAIL: key_id} if key_id else {}


def _clean(text: str, most: int = MAX_NAME_BYTES) -> str:
    """A text that terminals can show, of ``most`` bytes of UTF-8 or less."""
    shown = escaped(text[: most + 1].encode("utf-8", "replace").decode())
    encoded = shown.encode()
    if len(encoded) <= most:
        return shown
    return encoded[: most - 3].decode("utf-8", "ignore") + "\u2026"


def encode_event(taken: AuditEvent) -> bytes:
    """The JSON text of an event, as a record of the trail holds it."""
    fields = structs.asdict(taken)
    del fields["event_id"]
    fields["format"] = fields.pop("form")
    return msgspec.json.encode(fields)


_decoder = msgspec.json.Decoder(AuditEvent)


def decode_event(value: bytes, event_id: int) -> AuditEvent:
    """The event that a record of the trail holds. Raises `DamagedData` if it holds none."""
    try:
        return structs.replace(_decoder.decode(value), event_id=event_id)
    except msgspec.DecodeError as error:
        raise DamagedData(f"audit event {event_id} cannot be read: {error}") from None


# -- questions ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AuditFilter:
    """Which events are wanted. What is empty, or 0, excludes nothing."""

    start_us: int = 0
    """Broker time of the oldest."""
    end_us: int = 0
    """Events at this broker time and later are left out."""
    types: frozenset[str] = frozenset()
    user: str = ""
    """The whole name."""
    resource: str = ""
    """A part of it."""
    result: str = ""
    client_ip: str = ""
    """The whole address."""
    form: str = ""
    """The wire format, or ``admin``."""
    search: str = ""
    """A part of action, resource, address, format or any detail's value, whatever the case of its
    letters."""
    before: int | None = None
    """Only events with a lower id."""
    limit: int = LIMIT_DEFAULT
    skip: int = 0
    """So many of the newest that match are left out of the answer."""

    def check(self) -> None:
        """Raise `InvalidRequest` if the limits make no sense."""
        if not 1 <= self.limit <= LIMIT_MAX:
            raise InvalidRequest(f"an answer holds 1 to {LIMIT_MAX} audit events: {self.limit}")
        if not 0 <= self.skip <= SKIP_MAX:
            raise InvalidRequest(f"0 to {SKIP_MAX} audit events can be skipped: {self.skip}")

    def matches(self, found: AuditEvent) -> bool:
        """Whether an event is wanted; ``before`` is not looked at."""
        return (
            (not self.types or found.type in self.types)
            and (not self.user or found.user == self.user)
            and (not self.result or found.result == self.result)
            and (not self.client_ip or found.client_ip == self.client_ip)
            and (not self.form or found.form == self.form)
            and self.resource in found.resource
            and found.time_us >= self.start_us
            and (not self.end_us or found.time_us < self.end_us)
            and (not self.search or self._is_found_in(found))
        )

    def _is_found_in(self, found: AuditEvent) -> bool:
        wanted = self.search.casefold()
        texts = (
            found.action,
            found.resource,
            found.client_ip,
            found.form,
            *found.details.values(),
        )
        return any(wanted in text.casefold() for text in texts)


@dataclass(frozen=True)
class AuditPage:
    """An answer, newest first."""

    events: tuple[AuditEvent, ...]
    total: int
    """Events that match, of those that were looked at: also those before and after this page."""
    more: bool
    """Whether there are older ones that match, or may be."""
    next_before: int | None = None
    """Where older ones that match are, or may be: ask again with this as ``before``. What is still
    to be skipped is then less by ``total``."""
    unreadable: int = 0
    """Events that damage took."""


# -- floods ---------------------------------------------------------------------------------------


@dataclass
class _Repeated:
    """What one sender, or all others, did in this window besides what was written."""

    written: set[tuple[str, ...]] = field(default_factory=set)
    count: int = 0
    last: AuditEvent | None = None


@dataclass
class _Window:
    """What came of one type of events in this window."""

    senders: dict[tuple[str, str], _Repeated] = field(default_factory=dict)
    others: _Repeated = field(default_factory=_Repeated)
    written: int = 0


class RepeatFilter:
    """Lets a few events of each sender through at once, and counts the rest.

    A sender is a network address (of IPv6 its /64) and, if he is known, a principal. Memory and
    events are bounded: for each type and window `EVENTS_MAX` at once, and at the end one for each
    of `SENDERS_MAX` senders and one for all others.
    """

    def __init__(self) -> None:
        self._windows: dict[str, _Window] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing was taken in this window."""
        return not self._windows

    def take(self, taken: AuditEvent) -> bool:
        """Whether to write this event now; if not, it is counted."""
        window = self._windows.setdefault(taken.type, _Window())
        sender = network_of(taken.client_ip), taken.user * (taken.result != Result.FAILURE)
        repeated = window.senders.get(sender)
        if repeated is None:
            if len(window.senders) >= SENDERS_MAX:
                repeated = window.others
            else:
                repeated = window.senders[sender] = _Repeated()
        key_id = taken.details.get(KEY_DETAIL, "")
        what = (taken.user, taken.form, taken.resource, taken.action, key_id)
        if (
            repeated is window.others
            or what in repeated.written
            or len(repeated.written) >= AT_ONCE_MAX
            or window.written >= EVENTS_MAX
        ):
            repeated.count += 1
            repeated.last = taken
            return False
        repeated.written.add(what)
        window.written += 1
        return True

    def end_window(self) -> list[AuditEvent]:
        """What was counted since the last call, an event for each sender; begins anew.

        Such an event is the last of those that were counted, and its detail ``repeated`` says how
        many these were. That of the others has neither user nor address nor resource.
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
                        form="",
                        resource="",
                        action="",
                        details={"repeated": str(window.others.count), "senders": "others"},
                    )
                )
        return ended


def network_of(address: str) -> str:
    """What somebody may have many addresses in: of IPv6 the first 64 bits, else the address."""
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
