"""Real accounts, access lists and keys, through the whole core and the listeners' own factories.

What is permitted follows from docs/security.rst; who asks is an account made in a broker that was
stopped and started since.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple, get_args

import pytest
from twisted.logger import capturedLogs

from brokerd.admin.api import ROUTES
from brokerd.admin.http.routing import Route
from brokerd.codecs import rustlog
from brokerd.codecs.blipmq import FrameType
from brokerd.codecs.flymq import Opcode
from brokerd.codecs.mamamia import Command
from brokerd.codecs.mega import Type
from brokerd.security import ADMIN, ANY, MONITOR, OPEN, READ, WRITE
from brokerd.security.accounts import AccessList
from brokerd.security.audit import AUDIT_TOPIC, AuditFilter, AuditPage
from brokerd.server.config import Config
from brokerd.server.sections import (
    FORMATS,
    Blipmq,
    Flymq,
    Mamamia,
    Mega,
    Rustlog,
    Security,
    Wal,
)
from simulator.machine.disk import SimDisk
from tests.corehouse import CoreHouse
from tests.cross.operations import admin, flymq
from tests.cross.operations.every import FORMS
from tests.cross.operations.form import (
    BY_ROLE,
    KNOWN,
    NONE,
    TOPIC,
    VALUE,
    Form,
    Operation,
)

EVERY = [*FORMS.values(), flymq.OTHERS, admin.FORM]
WAL = Wal(segment_bytes=1 << 20)


class Caller(NamedTuple):
    """An account, and what it may do."""

    name: str
    """Empty: anonymous."""
    on_all: int = 0
    on_topic: int = 0
    roles: tuple[str, ...] = ()
    users: int = 0
    """Granted to it by the topic's access list."""
    enabled: bool = True
    is_there: bool = True

    def may(self, operation: Operation) -> bool:
        permission = operation.permission
        if permission == NONE:
            return True
        if permission == KNOWN:
            return self.is_let_in
        if permission == BY_ROLE:
            return bool(self.on_all & ADMIN)
        if permission == MONITOR:
            return bool(self.on_all & MONITOR)
        return bool((self.on_all | self.on_topic) & permission)

    def may_try(self, form: Form) -> bool:
        """Whether it gets further than the login that the format asks for."""
        return self.is_let_in or not (form.has_login or (form.by_key and self.has_bad_key))

    @property
    def is_let_in(self) -> bool:
        return bool(self.name) and self.enabled and self.is_there

    @property
    def has_bad_key(self) -> bool:
        return self.is_there and not self.enabled


def granted() -> Iterator[Caller]:
    """An account for each set of permissions on the topic."""
    for count in range(4):
        for some in combinations((READ, WRITE, ADMIN), count):
            given = sum(some)
            yield Caller(f"granted-{given}", 0, given, ("guest",), given)


CALLERS = {
    caller.name or "anonymous": caller
    for caller in (
        *granted(),
        Caller(""),
        Caller("root", ANY | MONITOR, roles=("admin",)),
        Caller("producer", WRITE, roles=("producer",)),
        Caller("consumer", READ, roles=("consumer",)),
        Caller("monitor", MONITOR, roles=("monitor",)),
        Caller("by-role", 0, READ, roles=("team",)),
        Caller("by-prefix", 0, WRITE),
        Caller("disabled", roles=("admin",), enabled=False, users=ANY),
        Caller("nobody", is_there=False, users=ANY),
    )
}


def config(principal: str = "", **security: object) -> Config:
    """Security on, and everybody who comes in without a login is this account."""
    return Config(
        wal=WAL,
        security=Security(auth="on", **security),  # type: ignore[arg-type]
        mamamia=Mamamia(principal),
        mega=Mega(principal),
        rustlog=Rustlog(principal=principal),
        flymq=Flymq(principal=principal),
        blipmq=Blipmq(principal=principal),
    )


@cache
def disk_with(has_topic: bool) -> tuple[SimDisk, dict[str, str]]:
    """What a broker left that made all accounts, and the topic if there is to be one; the keys."""
    house = CoreHouse(Config(wal=WAL))
    accounts = house.broker.accounts
    keys: dict[str, str] = {}
    for caller in CALLERS.values():
        if caller.name and caller.is_there:
            accounts.create_account(OPEN, caller.name, "", caller.roles, fail, caller.enabled)
            house.run()
            keys[caller.name] = accounts.make_key(OPEN, caller.name).secret
    accounts.create_account(OPEN, "spare", "", (), fail)
    users = {caller.name: caller.users for caller in CALLERS.values() if caller.users}
    accounts.set_access_list(OPEN, AccessList(TOPIC, False, False, users, {"team": READ}))
    accounts.set_access_list(OPEN, AccessList(TOPIC[:3], True, False, {"by-prefix": WRITE}))
    accounts.set_access_list(OPEN, AccessList("public", False, True))
    for topic in (TOPIC, "public") if has_topic else ():
        for form in FORMS.values():
            client = Client(house, form, "any key")
            for operation in form.operations:
                for request in operation.before:
                    client.ask(request(topic))
    house.stop()
    return house.disk, keys


KINDS = {
    "mamamia": {one.name for one in Command},
    "flymq": {one.name for one in Opcode} - {"AUTH", "AUTH_RESPONSE", "ERROR"},
    "blipmq": {one.name for one in FrameType} - {"HELLO", "AUTH", "NACK", "PONG"},
    "rustlog": {one.__name__ for one in get_args(rustlog.Request)},
    "mega": {one.name for one in Type},
}
"""What clients of a format may send, but for logins and what is passed over."""


@pytest.mark.parametrize("listener", FORMATS)
def test_no_request_of_a_format_is_left_out(listener: str) -> None:
    """A new one needs a row, and the page's table too."""
    forms = [form for form in EVERY if form.listener == listener]
    assert {one.name for form in forms for one in form.operations} == KINDS[listener]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_no_route_of_the_admin_api_is_left_out(route: Route) -> None:
    names = [one.name.split(" ") for one in admin.FORM.operations if " " in one.name]
    matched = [
        path
        for method, path in names
        if method == route.method
        and route.match(path.partition("?")[0].strip("/").split("/")) is not None
    ]
    assert matched


def fail(_: object, error: Exception | None) -> None:
    assert error is None, error


class Client:
    """A connection, greeted; what that was answered is left unread."""

    def __init__(self, house: CoreHouse, form: Form, key: str) -> None:
        self._house = house
        self._form = form
        self._key = key
        self.wire: Any = (
            form.connect(house)
            if form.connect is not None
            else house.connect_to(house.factory(form.listener))
        )
        self.wire.send_bytes(form.greeting(key))
        house.run()

    def ask(self, request: bytes) -> bytes:
        """Send bytes; what is answered to them."""
        self.wire.received_bytes()
        self.wire.send_bytes(self._form.with_key(request, self._key))
        self._house.run()
        return self._form.told(self.wire.received_bytes())

    def leave(self) -> None:
        """Be gone."""
        self.wire.disconnect()
        self._house.run()


def houses(caller: Caller) -> tuple[CoreHouse, CoreHouse, str]:
    """Brokers with the topic and without, and the caller's key."""
    disk, keys = disk_with(True)
    with_topic = CoreHouse(config(caller.name), disk.copy())
    disk, _ = disk_with(False)
    return with_topic, CoreHouse(config(caller.name), disk.copy()), keys.get(caller.name, "")


def held(house: CoreHouse) -> list[object]:
    """What clients have in a broker."""
    return [
        (topic.name, sorted(topic.groups), [one.next_offset for one in topic.partitions])
        for topic in house.broker.topics.all()
        if topic.name != AUDIT_TOPIC
    ]


def refusal(form: Form, operation: Operation, caller: Caller, request: bytes) -> bytes:
    """What the page says that a refusal is."""
    words = "unauthorized" if caller.name else form.anonymous
    if form.has_login and not caller.is_let_in:
        return form.refused(request, form.anonymous)
    if form.by_key and not caller.is_let_in:
        words = "invalid API key" if caller.has_bad_key else form.anonymous
    return operation.refused if operation.refused is not None else form.refused(request, words)


@pytest.mark.parametrize("caller", CALLERS.values(), ids=CALLERS)
def test_who_may_not_is_told_the_same_with_and_without_the_topic(caller: Caller) -> None:
    """Through each format; nothing comes of it."""
    with_topic, without, key = houses(caller)
    before = held(with_topic)
    assert len(before) == 2 and held(without) == []
    for house in (with_topic, without):
        for form in EVERY:
            client = Client(house, form, key)
            for operation in form.operations:
                if caller.may(operation) and (operation.is_open or caller.may_try(form)):
                    continue
                request = operation.request(TOPIC)
                expected = refusal(form, operation, caller, request)
                if caller.has_bad_key:
                    house.pass_time(1.0, 1.0)  # or the next login is not looked at
                assert client.ask(request) == expected, (form.name, operation.name)
            assert client.wire.is_open
        assert held(house) == (before if house is with_topic else [])


@pytest.mark.parametrize("caller", CALLERS.values(), ids=CALLERS)
def test_who_may_is_answered(caller: Caller) -> None:
    """And a list shows the topic to those who have any permission on it, and to nobody else."""
    house, _, key = houses(caller)
    for form in EVERY:
        if not caller.may_try(form):
            continue
        client = Client(house, form, key)
        for operation in form.operations:
            if not caller.may(operation):
                continue
            request = operation.request(TOPIC)
            answer = client.ask(request)
            assert answer != form.refused(request, "unauthorized"), (form.name, operation.name)
            if operation.shows:
                is_shown = bool((caller.on_all | caller.on_topic) & operation.shows)
                assert (TOPIC.encode() in answer) is is_shown
                assert AUDIT_TOPIC.encode() not in answer


def test_what_becomes_of_an_account_counts_for_its_open_connections() -> None:
    """At the next request; and an account that is made anew under the name is another one."""
    house, _, key = houses(CALLERS["granted-7"])
    accounts = house.broker.accounts
    clients = []
    for form in EVERY:
        for operation in form.operations:
            if operation.permission == READ and operation.refused is None:
                clients.append((form, Client(house, form, key), operation.request(TOPIC)))
                break

    def refused() -> list[str]:
        """The formats that are refused now."""
        return [
            form.name
            for form, client, request in clients
            if client.ask(request)
            in [
                form.refused(request, words)
                for words in ("unauthorized", *(["invalid API key"] if form.by_key else []))
            ]
        ]

    everywhere = [form.name for form, _, _ in clients]
    assert len(everywhere) == len(FORMS) + 1
    assert refused() == []
    accounts.update_account(OPEN, "granted-7", enabled=False)
    assert refused() == everywhere
    accounts.update_account(OPEN, "granted-7", enabled=True)
    assert refused() == []
    accounts.delete_access_list(OPEN, TOPIC)
    assert refused() == everywhere
    accounts.update_account(OPEN, "granted-7", roles=("consumer",))
    assert refused() == []
    accounts.delete_account(OPEN, "granted-7")
    accounts.create_account(OPEN, "granted-7", "", ("admin",), fail)
    assert refused() == everywhere


@pytest.mark.parametrize("is_allowed", [True, False])
def test_anonymous_may_use_public_topics_only_if_that_is_configured(is_allowed: bool) -> None:
    disk, _ = disk_with(True)
    house = CoreHouse(config(allow_anonymous=is_allowed), disk.copy())
    for form in EVERY:
        client = Client(house, form, "")
        for operation in form.operations:
            if operation.permission not in (READ, WRITE):
                continue
            request = operation.request("public")
            refused = form.refused(request, form.anonymous)
            answer = client.ask(request)
            assert (answer == refused) is not (is_allowed and not form.has_login)


OWN_TOPIC = b"unauthorized: topics that begin with '__brokerd.' are the broker's own"


@pytest.mark.parametrize("auth", ["on", "off"])
def test_nobody_changes_the_audit_trail_nor_is_shown_it(auth: str) -> None:
    """Not the administrator, nor anybody when security is off again."""
    disk, keys = disk_with(True)
    house = CoreHouse(config("root"), disk.copy())
    Client(house, FORMS["BlipMQ"], "wrong")
    house.pass_time(1.0)
    assert house.broker.topics.find(AUDIT_TOPIC) is not None
    house.stop()
    house = CoreHouse(config("root") if auth == "on" else Config(wal=WAL), house.disk)
    topic = house.broker.topics.existing(AUDIT_TOPIC)
    for form in EVERY:
        client = Client(house, form, keys["root"])
        before = topic.partitions[0].next_offset
        for operation in form.operations:
            request = operation.request(AUDIT_TOPIC)
            if operation.permission in (WRITE, ADMIN):
                answer = client.ask(request)
                if auth == "on":
                    assert answer == form.refused(request, "unauthorized") or OWN_TOPIC in answer
                else:
                    assert answer and topic.partitions[0].next_offset == before
            elif operation.shows:
                assert AUDIT_TOPIC.encode() not in client.ask(request)
    assert house.broker.topics.existing(AUDIT_TOPIC) is topic


def test_denials_through_every_format_are_in_the_audit_trail() -> None:
    """With who, where from, what and to what; and with nothing of what was sent."""
    caller = CALLERS["granted-0"]
    house, _, key = houses(caller)
    for form in EVERY:
        client = Client(house, form, key)
        for operation in form.operations:
            if not caller.may(operation):
                client.ask(operation.request(TOPIC))
        house.pass_time(61.0, 1.0)  # each format has a minute of its own
    pages: list[AuditPage] = []
    house.broker.audit.query(
        AuditFilter(types=frozenset({"access.denied"}), limit=1_000),
        lambda page, error: pages.append(page),  # type: ignore[arg-type]
    )
    house.run()
    (page,) = pages
    assert {event.wire_format for event in page.events} == {form.listener for form in EVERY}
    assert {event.user for event in page.events} == {caller.name}
    assert {event.resource for event in page.events} <= {TOPIC, ""}
    assert {event.action for event in page.events} >= {"read", "write", "admin", "monitor"}
    assert VALUE.decode() not in repr(page) and key not in repr(page)


ODD = {
    "of 255 bytes": (b"x" * 255, b""),
    "of 60,000 bytes": (b"x" * 60_000, b""),
    "of control characters": (b"\x1b[31m\r\n\0", b""),
    "empty": (b"", b""),
    "not in UTF-8": (b"zq", b"\xff\xfe"),
}
"""What may be sent as a topic's name; if it is no text, what stands for it until it is sent."""


@pytest.mark.parametrize(("name", "instead"), ODD.values(), ids=ODD)
def test_odd_names_are_refused_like_others(name: bytes, instead: bytes) -> None:
    """Or as bytes that make no sense; nothing breaks, and little is kept of them."""
    caller = CALLERS["granted-0"]
    house, _, key = houses(caller)
    with capturedLogs() as captured:
        for form in EVERY:
            for operation in form.operations:
                if caller.may(operation):
                    continue
                client = Client(house, form, key)
                request = operation.request(name.decode())
                if instead:
                    request = request.replace(name, instead)
                answer = client.ask(request)
                assert answer or not client.wire.is_open or operation.name == "POLL", operation.name
        house.pass_time(2.0)
    assert not [event for event in captured if event.get("log_failure")]
    trail = house.broker.topics.existing(AUDIT_TOPIC)
    assert trail.partitions[0].next_offset < 100
