"""The audit trail and the wire formats: who makes topics is in it, and nobody writes to it.

Each operation of each format, as the table of permissions has them (test_permissions.py).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.admin.api import make_api
from brokerd.admin.http.authentication import Authenticator
from brokerd.broker import BrokerSettings
from brokerd.broker.streams import StreamReport
from brokerd.protocols.base.factory import ConnectionFactory
from brokerd.schemas.values import SchemaType
from brokerd.security import OPEN, OPEN_GUARD, Guard
from brokerd.security.accounts import AccessList, Account
from brokerd.security.audit import AUDIT_TOPIC, AuditEvent, AuditFilter, AuditPage, decode_event
from brokerd.security.principal import Principal
from brokerd.security.quotas import Quota
from tests.broker.desk import lease
from tests.cross.format_clients import FORMAT_CLIENTS
from tests.cross.operations import admin as site
from tests.cross.operations import flymq
from tests.cross.operations.every import FORMS
from tests.cross.operations.form import TOPIC, Form, Operation
from tests.cross.served import SECRET
from tests.guards import GuardOf
from tests.house import House

AUDITED = BrokerSettings(audit_keep_us=86_400_000_000)
OPERATIONS = [
    pytest.param(form, operation, id=f"{form.name}-{operation.name}")
    for form in FORMS.values()
    for operation in form.operations
]


ADMINISTRATION = [
    pytest.param(form, operation, id=f"{form.name}-{operation.name}")
    for form in (*FORMS.values(), flymq.OTHERS, site.FORM)
    for operation in form.operations
    if operation.needs in ("ADMIN", "ADMIN by role")
]
NOTHING_TO_TELL = {"POST /archive/refresh", "POST /wal/seal"}
"""Writes that change nothing of what the broker holds."""
REFUSED = {
    *("DELETE /keys/0", "DELETE /connections/0", "DELETE /sessions/0"),
    *("USER_DELETE", "DELETE_GROUP", "CLUSTER_JOIN", "CLUSTER_LEAVE"),
}
"""There is no such key, connection, session, account, group, and no cluster."""
MAKES_A_TOPIC = {"CREATE_TOPIC", "CreateTopic", "POST /topics"}


def serve(house: House, form: Form, guard: Guard) -> ConnectionFactory:
    factory: ConnectionFactory = FORMAT_CLIENTS[form.name]().factory(house)
    factory.guard = guard
    return factory


def ask(house: House, factory: ConnectionFactory, *requests: bytes) -> bytes:
    """Send requests one after the other; all that is answered."""
    wire = house.connect_to(factory)
    for request in requests:
        wire.send_bytes(request)
        house.run()
    return wire.received_bytes()


def admin(house: House, form: Form) -> Guard:
    """Everybody is ann, who may do what administrators may."""
    directory = house.broker.accounts.directory
    directory.put_account(Account(1_000, "ann", ("admin",)))
    ann = Principal(directory, house.broker.audit.record, "ann", form.listener, "192.0.2.7")
    return GuardOf(ann, {SECRET: ann})


def trail(house: House) -> list[AuditEvent]:
    answers: list[tuple[AuditPage | None, Exception | None]] = []
    house.broker.audit.query(AuditFilter(), lambda *answer: answers.append(answer))
    house.run()
    ((page, _),) = answers
    assert page is not None
    return list(page.events)


@pytest.mark.parametrize(("form", "operation"), OPERATIONS)
def test_who_makes_a_topic_by_whatever_request_is_in_the_trail(
    form: Form, operation: Operation
) -> None:
    """With the format and the address; a request that makes none leaves no such event."""
    house = House(settings=AUDITED)
    factory = serve(house, form, admin(house, form))
    house.run()
    ask(house, factory, form.greeting(SECRET), operation.request(TOPIC))
    house.pass_time(1)
    made = [found for found in trail(house) if found.type == "topic.create"]
    if house.broker.topics.find(TOPIC) is None:
        assert made == []
    else:
        (event,) = made
        assert (event.user, event.client_ip, event.wire_format) == (
            "ann",
            "192.0.2.7",
            form.listener,
        )
        assert (event.resource, event.result) == (TOPIC, "success")


@pytest.mark.parametrize(("form", "operation"), ADMINISTRATION)
def test_whatever_an_administrator_changes_is_in_the_trail(
    form: Form, operation: Operation
) -> None:
    """By whatever request, once, in the commit that holds the change; and nothing else is."""
    house = furnished()
    guard = admin(house, form)
    request = operation.request("new" if operation.name in MAKES_A_TOPIC else TOPIC)
    before = house.wal.appended_lsn
    if form is site.FORM:
        ask_site(house, guard, request)
    else:
        factory = serve(house, FORMS["FlyMQ"] if form is flymq.OTHERS else form, guard)
        ask(house, factory, request)
    told = [found for found in trail(house) if found.user == "ann" and found.result == "success"]
    assert len(told) == (house.wal.appended_lsn > before), [found.type for found in told]
    reads = (
        "GET" in operation.name
        or "DESCRIBE" in operation.name
        or "LIST" in operation.name
        or "AUDIT" in operation.name
    )
    if operation.name not in REFUSED | NOTHING_TO_TELL:
        assert bool(told) != reads


def furnished() -> House:
    """A house with a topic, and all that administrators may look at and change."""
    house = House(settings=AUDITED)
    house.run()
    broker = house.broker
    broker.quotas.put(OPEN, Quota("account", "spare", requests=1_000_000_000))
    broker.streams.report(OPEN, StreamReport("s", "", 0, None, {}))
    partition = broker.topics.create(TOPIC).partition(0)
    for value in (b"0", b"1", b"2"):
        broker.appender.produce(partition, value)
    house.run()
    lease(house, TOPIC, "g", "c")
    assert broker.leases.dead_letter(broker.leases.group_partition(TOPIC, "g", 0, 1), 1, "damaged")
    broker.groups.pause(TOPIC, "g")
    people = broker.accounts
    done: list[object] = []
    for name in ("spare", "by-prefix"):
        people.create_account(OPEN, name, "", (), lambda *answer: done.append(answer))
    people.set_access_list(OPEN, AccessList(TOPIC, False, True))
    people.set_access_list(OPEN, AccessList(TOPIC, True, True))
    broker.schemas.register(
        OPEN, TOPIC, SchemaType.JSON, b"{}", lambda *answer: done.append(answer)
    )
    house.pass_time(1)
    return house


def ask_site(house: House, guard: Guard, request: bytes) -> None:
    """Send a request to the admin site of a house."""
    authenticator = Authenticator(guard, house.clock.seconds, bytes(32))
    core: Any = SimpleNamespace(status=dict, api=lambda: make_api(house.broker, authenticator))
    client = site.Http(SimpleNamespace(core=core, clock=house.clock))  # type: ignore[arg-type]
    client.send_bytes(request)
    house.run()


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(("form", "operation"), OPERATIONS)
def test_no_answer_names_the_trail_to_who_did_not(
    form: Form, operation: Operation, secure: bool
) -> None:
    """Lists show the topics of clients."""
    house = House(settings=AUDITED)
    factory = serve(house, form, admin(house, form) if secure else OPEN_GUARD)
    house.run()
    requests = [make(TOPIC) for make in (*operation.before, operation.request)]
    answers = ask(house, factory, form.greeting(SECRET), *requests)
    assert AUDIT_TOPIC.encode() not in answers


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(("form", "operation"), OPERATIONS)
def test_no_request_changes_the_trail(form: Form, operation: Operation, secure: bool) -> None:
    """Also with security off, when it is left from before."""
    house = House(settings=AUDITED)
    factory = serve(house, form, admin(house, form) if secure else OPEN_GUARD)
    house.run()
    topic = house.broker.topics.existing(AUDIT_TOPIC)
    settings = topic.settings
    requests = [make(AUDIT_TOPIC) for make in (*operation.before, operation.request)]
    ask(house, factory, form.greeting(SECRET), *requests)
    house.pass_time(1)
    assert house.broker.topics.existing(AUDIT_TOPIC) is topic
    assert topic.settings == settings
    partition = topic.partition(0)
    assert partition.start_offset == 0
    for offset, record in house.read_all(partition).items():
        assert not isinstance(record, Exception)
        assert decode_event(record.value, offset).type in ("access.denied", "topic.create")
