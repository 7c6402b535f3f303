"""Whoever may do nothing changes and learns nothing, whatever bytes it sends."""

from __future__ import annotations

import json
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.logger import capturedLogs

from brokerd.security.audit import AUDIT_TOPIC
from tests.corehouse import CoreHouse
from tests.cross.operations.form import TOPIC, VALUE, Form
from tests.cross.test_principals import CALLERS, EVERY, Client, held, houses

IN_JSON = json.dumps(list(VALUE), separators=(",", ":")).encode()
"""The value as RustLog's JSON has it."""

LIST_SCHEMAS = b"\xaf\x01\x12"
"""A request of FlyMQ that shows the names of all schemas to everybody who has logged in."""

WIRES = [form for form in EVERY if form.connect is None]
"""Those whose bytes are read by us."""


@cache
def house_of(name: str) -> tuple[CoreHouse, str]:
    """A broker that has the topic and is never changed, and the caller's key."""
    house, _, key = houses(CALLERS[name])
    return house, key


@st.composite
def requests(draw: st.DrawFn, form: Form) -> bytes:
    """One to four requests of a form in a row, with some bytes changed, left out or put in."""
    operations = st.sampled_from(form.operations)
    topics = st.sampled_from([TOPIC, "public2", AUDIT_TOPIC, ""])
    data = bytearray()
    for _ in range(draw(st.integers(1, 4))):
        data += draw(operations).request(draw(topics))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data) - 1))
        data[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
        if not data:
            break
    return bytes(data)


@settings(max_examples=max(100, settings().max_examples))
@given(
    form=st.sampled_from(WIRES), name=st.sampled_from(["anonymous", "granted-0"]), data=st.data()
)
def test_who_may_nothing_changes_and_learns_nothing(
    form: Form, name: str, data: st.DataObject
) -> None:
    """The topic's name comes back only to who has sent it, and no value ever does."""
    house, key = house_of(name)
    before = held(house)
    sent = data.draw(requests(form))
    client = Client(house, form, key)
    with capturedLogs() as captured:
        told = client.ask(sent)
        client.leave()
    assert not [event for event in captured if event.get("log_failure")]
    assert VALUE not in told and IN_JSON not in told
    if not (name != "anonymous" and LIST_SCHEMAS in sent):
        assert TOPIC.encode() not in told or TOPIC.encode() in sent
    assert held(house) == before
