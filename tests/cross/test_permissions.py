"""Nobody does or learns anything through any format that he has no permission for.

Formats x operations x {anonymous, a stranger, who has every permission but the one, owner, admin},
each with and without the topic: docs/security.rst, and the tables of docs/protocols.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from brokerd.security import ADMIN, ANY, MONITOR, READ, WRITE
from tests.cross.operations.every import FORMS
from tests.cross.operations.form import (
    BY_ROLE,
    KNOWN,
    NONE,
    TOPIC,
    Form,
    Operation,
)
from tests.cross.page import examples, literals, table_of
from tests.cross.served import Served
from tests.guards import Given

ALL = READ | WRITE | ADMIN | MONITOR
PERMISSIONS = (READ, WRITE, ADMIN)


class Case(NamedTuple):
    """One principal that asks for one operation."""

    form: Form
    operation: Operation
    who: str
    access: Given
    is_allowed: bool

    def __str__(self) -> str:
        return f"{self.form.name} {self.operation.name} {self.who}".replace(" ", "-")


def callers(form: Form, operation: Operation) -> Iterator[tuple[str, Given, bool]]:
    """Who asks: a name, what he may, and whether he may do this."""
    permission = operation.permission
    is_free = permission == NONE
    yield "anonymous", Given(), is_free and not form.has_login
    yield "stranger", Given("sue", 0, {"another topic": ANY}), is_free or permission == KNOWN
    yield "admin", Given("root", ALL), True
    if permission == MONITOR:
        yield "all but it", Given("ann", READ | WRITE | ADMIN, {TOPIC: ANY}), False
        yield "owner", Given("olga", MONITOR), True
    elif permission == BY_ROLE:
        yield "all but it", Given("ann", READ | WRITE | MONITOR, {TOPIC: ANY}), False
        yield "owner", Given("olga", ADMIN), True
    elif permission == KNOWN:
        yield "owner", Given("olga"), True
    elif operation.shows:
        for given in PERMISSIONS:
            yield f"owner {given}", Given("olga", 0, {TOPIC: given}), True
    elif permission:
        yield "all but it", Given("ann", 0, {TOPIC: ALL & ~permission, "other": ANY}), False
        for given in PERMISSIONS:
            if given & permission:
                yield f"owner {given}", Given("olga", 0, {TOPIC: given}), True


CASES = [
    Case(form, operation, who, access, is_allowed)
    for form in FORMS.values()
    for operation in form.operations
    for who, access, is_allowed in callers(form, operation)
]
REFUSED = [case for case in CASES if not case.is_allowed]
ALLOWED = [case for case in CASES if case.is_allowed]
LISTS = [case for case in ALLOWED if case.operation.shows]


def with_topic(form: Form, operation: Operation) -> Served:
    """A broker with the topic, and with what the operation asks for."""
    served = Served(form)
    served.prepare(operation)
    return served


def without_topic(form: Form, operation: Operation) -> Served:
    """A broker that has nothing."""
    return Served(form)


def words(case: Case) -> str:
    return "unauthorized" if case.access.name else case.form.anonymous


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_a_refusal_is_the_same_with_and_without_the_topic(case: Case) -> None:
    """To the byte; nothing comes of the request, and the connection lives."""
    expected = case.operation.refused
    if expected is None or not case.access.name:
        expected = case.form.refused(case.operation.request(TOPIC), words(case))
    for served in (with_topic(case.form, case.operation), Served(case.form)):
        before = served.state()
        asker = served.connect(case.access)
        assert asker.ask(case.operation.request(TOPIC)) == expected
        assert asker.wire.is_open
        assert served.state() == before
        assert asker.ask(case.operation.request(TOPIC)) == expected


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_a_refusal_is_made_before_the_broker_is_asked(case: Case) -> None:
    """So it takes as long with the topic as without.

    A subscription has a number and no name: its topic must be found, in any case.
    """
    for served in (with_topic(case.form, case.operation), Served(case.form)):
        asker = served.connect(case.access)
        served.asked.clear()
        asker.ask(case.operation.request(TOPIC))
        by_number = case.operation.name in ("POLL", "ACK") and case.access.name
        asked = [service for service in served.asked if service != "counters"]  # of refusals
        assert asked == (["subscriptions"] if by_number else [])


@pytest.mark.parametrize("case", ALLOWED, ids=str)
def test_who_may_is_answered_as_if_security_was_off(case: Case) -> None:
    """With the topic and without; and lists show what one may know of."""
    if case in LISTS and case.who in ("anonymous", "stranger"):
        unseen = Served(case.form).connect(None).ask(case.operation.request(TOPIC))
        served = with_topic(case.form, case.operation)
        assert served.connect(case.access).ask(case.operation.request(TOPIC)) == unseen
        return
    for make in (with_topic, without_topic):
        off = make(case.form, case.operation).connect(None).ask(case.operation.request(TOPIC))
        on = make(case.form, case.operation).connect(case.access).ask(case.operation.request(TOPIC))
        if make is without_topic and not case.access.may(WRITE | ADMIN, TOPIC):
            off = case.operation.may_not_make or off
        assert on == off
        assert on != case.form.refused(case.operation.request(TOPIC), "unauthorized")


@pytest.mark.parametrize("form", FORMS.values(), ids=lambda form: form.name)
def test_the_page_says_what_each_operation_needs(form: Form) -> None:
    page = table_of(f"docs/protocols/{form.page}", "Permissions")
    assert {name: row["Needs"] for name, row in page.items()} == {
        operation.name: operation.needs for operation in form.operations
    }


@pytest.mark.parametrize("name", ["Mamamia", "BlipMQ", "RustLog binary", "MEGA"])
def test_the_page_shows_the_bytes_of_a_refusal(name: str) -> None:
    form = FORMS[name]
    request = form.operations[0].request(TOPIC)
    shown = examples(f"docs/protocols/{form.page}", "Permissions")
    assert shown.pop("refused") == form.refused(request, "unauthorized")
    assert all(answer == form.refused(request, form.anonymous) for answer in shown.values())


@pytest.mark.parametrize("form", FORMS.values(), ids=lambda form: form.name)
def test_the_security_page_says_what_a_refusal_is(form: Form) -> None:
    row = table_of("docs/security.rst", "By wire format")[form.name]
    for column, words in (("Refused", "unauthorized"), ("Anonymous refused", form.anonymous)):
        refused = form.refused(form.operations[0].request(TOPIC), words)
        told = next(iter(literals(row[column])), None)
        assert (told is None) is (form.name == "MEGA")
        assert told is None or (words in told and words.encode() in refused)


@pytest.mark.parametrize("form", FORMS.values(), ids=lambda form: form.name)
def test_a_permission_that_is_taken_away_is_gone_at_the_next_request(form: Form) -> None:
    """On a connection that is open."""
    for operation in form.operations:
        if operation.permission == NONE:
            continue
        access = Given("root", ALL)
        asker = with_topic(form, operation).connect(access)
        access.revoke()
        refused = operation.refused
        if refused is None:
            refused = form.refused(operation.request(TOPIC), "unauthorized")
        assert asker.ask(operation.request(TOPIC)) == refused


@pytest.mark.parametrize("form", FORMS.values(), ids=lambda form: form.name)
def test_who_must_log_in_is_told_nothing_else_before(form: Form) -> None:
    served = Served(form)
    asker = served.connect(Given())
    assert asker.greeted == form.refused_greeting
    assert [begun for begun, _ in served.guard.begun] == [form.listener]
