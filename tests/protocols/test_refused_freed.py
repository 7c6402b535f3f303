"""Of a request that was refused nothing stays in memory, without the cycle collector.

It may come only after hundreds of requests, with megabytes each: a traceback holds the frames that
it went through, with all that they knew of the request.
"""

from __future__ import annotations

import gc
import gzip
import json
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgpack
import pytest

from brokerd.admin.http.request import OWN_BYTES
from brokerd.codecs import blipmq as bm
from brokerd.codecs import flymq, mega
from brokerd.codecs import mamamia as mm
from brokerd.codecs import rustlog as rl
from brokerd.codecs.rustlog import binary_peer, json_peer
from brokerd.errors import SchemaCheckFailed
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.base.fetching import FetchConnection
from brokerd.security import READ
from brokerd.server.assembly import FACTORIES, FactoryContext
from brokerd.server.config import Config
from tests.admin.caller import JSON, Caller
from tests.guards import Given, GuardOf
from tests.house import House, Wire
from tests.protocols.flymq_desk import FlymqHouse
from tests.protocols.flymq_guarded import GuardedHouse
from tests.protocols.test_denials import READS

FULL = b"x" * (1 << 20)
TIMES = 8
LIMITS = Limits(frame_bytes=32 << 20)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def stays(act: Callable[[], object]) -> int:
    """How many bytes more are in use after this was done again and again."""
    act()
    tracemalloc.start()
    try:
        for _ in range(TIMES):
            act()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def asked(house: House, wire: Wire, request: bytes) -> bytes:
    wire.send_bytes(request)
    house.run()
    answer = wire.received_bytes()
    assert answer
    return answer


PRODUCES = {
    "mamamia": mm.encode_request(mm.Produce("t", FULL)),
    "flymq": flymq.encode_request(flymq.Produce("t", None, FULL)),
    "flymq, gzip": flymq.encode_request(flymq.Produce("t", None, FULL), gzip=True),
    "blipmq": bm.encode(bm.Publish(3, 1, "t", FULL)),
    "rustlog": json_peer.encode_request(rl.Produce("t", 0, (FULL,))),
    "rustlog, binary": binary_peer.encode_request(rl.Produce("t", 0, (FULL,))),
    "mega": mega.encode_request(mega.Produce(1, "t", 0, FULL)),
}
GREETINGS = {"blipmq": bm.encode(bm.Hello(1)) + bm.encode(bm.Auth(2, "key"))}


@pytest.mark.parametrize("name", PRODUCES)
def test_a_record_that_may_not_be_produced(name: str, no_collector: None) -> None:
    """In every format."""
    form = name.partition(",")[0]
    house = House(limits=LIMITS)
    factory = FACTORIES[form](FactoryContext(house.broker, house.clock, LIMITS, Config()))
    nobody = Given("ann")
    factory.guard = GuardOf(nobody, {"key": nobody})
    wire = house.connect_to(factory)
    if form in GREETINGS:
        asked(house, wire, GREETINGS[form])
    assert stays(lambda: asked(house, wire, PRODUCES[name])) < len(FULL)


def test_every_format_is_looked_at() -> None:
    house = House()
    context = FactoryContext(house.broker, house.clock, LIMITS, Config())
    connections = {form: make(context).new_connection() for form, make in FACTORIES.items()}
    fetching = {form for form, one in connections.items() if isinstance(one, FetchConnection)}
    assert {name.partition(",")[0] for name in PRODUCES} == set(FACTORIES)
    assert {name.partition(",")[0] for name in FETCHES} == fetching
    assert READS.keys() == fetching


def squeezed(opcode: int, payload: bytes) -> bytes:
    return flymq.frame(opcode, gzip.compress(payload), 3)


FLYMQ = {
    "a schema that is not there": flymq.encode_request(flymq.ValidateSchema("nope", FULL)),
    "a record of such a schema": flymq.encode_request(flymq.ProduceWithSchema("t", FULL, "nope")),
    "a look that is given up": flymq.encode_request(flymq.ValidateSchema("s", FULL)),
    "a request of no sense": flymq.frame(0x13, b"\xff" * len(FULL)),
    "a request of no sense, gzip": squeezed(0x13, b"\xff" * len(FULL)),
    "a name that is no text, gzip": squeezed(0x13, b"\0\x04" + b"\xff" * len(FULL)),
    "no gzip": flymq.frame(0x13, gzip.compress(bytes(len(FULL)))[:-8] + bytes(8), 3),
    "gzip that goes on": flymq.frame(0x13, gzip.compress(b"") + FULL, 3),
}


def giving_up(question: bytes) -> bytes:
    raise SchemaCheckFailed("the schema check was given up")


def flymq_house() -> FlymqHouse:
    house = FlymqHouse()
    assert isinstance(house.only(flymq.RegisterSchema("s", "json", b"{}")), flymq.SchemaInfo)
    house.broker.schemas._checker._run_check = giving_up
    return house


@pytest.mark.parametrize("name", FLYMQ)
def test_a_request_of_flymq(name: str, no_collector: None) -> None:
    house = flymq_house()
    wire = house.client()

    def refused() -> None:
        assert asked(house, wire, FLYMQ[name])[2] == flymq.Opcode.ERROR

    assert stays(refused) < len(FULL)


@pytest.mark.parametrize("name", FLYMQ)
def test_a_request_of_flymq_whose_client_has_left(name: str, no_collector: None) -> None:
    house = flymq_house()

    def left() -> None:
        wire = house.client()
        wire.stop_reading()
        wire.send_bytes(FLYMQ[name])
        wire.disconnect()
        house.run()

    assert stays(left) < len(FULL)


def test_a_large_request_of_who_leaves_before_it_is_answered(no_collector: None) -> None:
    """It was read in turns, and its peer reads nothing."""
    house = flymq_house()

    def left() -> None:
        wire = house.client()
        wire.stop_reading()
        wire.transport.BUFFER_BYTES = 0
        wire.send_bytes(FLYMQ["a request of no sense"] + FLYMQ["a request of no sense, gzip"])
        house.run()
        wire.disconnect()

    assert stays(left) < len(FULL)


def test_a_look_that_found_the_schema_wrong(no_collector: None) -> None:
    """And nobody waits for it any more."""
    house = flymq_house()
    checker = house.broker.schemas._checker
    begun: list[Callable[[], None]] = []
    checker._submit = lambda work, done: begun.append(partial(done, work(), None))
    checker._run_check = lambda question: msgpack.packb(["InvalidSchema", ["no"]])

    def left() -> None:
        wire = house.client()
        wire.send_bytes(FLYMQ["a look that is given up"])
        wire.disconnect()
        begun.pop()()

    assert stays(left) < len(FULL)


def test_a_login_that_fails(no_collector: None) -> None:
    """Also when too many of them do."""
    house = GuardedHouse()
    wire = house.client()
    login = flymq.encode_request(flymq.Auth("nobody", "x" * 60_000))

    def refused() -> None:
        assert asked(house, wire, login)[2] == flymq.Opcode.AUTH_RESPONSE

    assert stays(refused) < 100_000


def is_freed(wire: Wire) -> bool:
    """Whether a connection is when it is closed."""
    ref = weakref.ref(wire.protocol)
    wire.disconnect()
    transport = wire.transport
    wire.protocol = transport.protocol = transport._producer = None
    return ref() is None


FETCHES = {
    "flymq": flymq.encode_request(flymq.Fetch("t", 0, 0, 1)),
    "flymq, filter": flymq.encode_request(flymq.Fetch("t", 0, 0, 1, "x")),
    "rustlog": json_peer.encode_request(rl.Fetch("t", 0, 0, 1000)),
    "rustlog, binary": binary_peer.encode_request(rl.Fetch("t", 0, 0, 1000)),
    "mega": mega.encode_request(mega.Consume(2, "t", 0, 0)),
}


@pytest.mark.parametrize("name", FETCHES)
def test_records_that_may_not_be_shown_any_more(name: str, no_collector: None) -> None:
    """The permission went while they were read."""
    form = name.partition(",")[0]
    house = House(limits=LIMITS)
    partition = house.broker.topics.create("t").partition(0)
    factory = FACTORIES[form](FactoryContext(house.broker, house.clock, LIMITS, Config()))
    ann = Given("ann", READ)
    factory.guard = GuardOf(ann)
    wire = house.connect_to(factory)
    house.broker.appender.produce(partition, b"x")
    wire.send_bytes(FETCHES[name])
    ann.revoke()
    house.run()
    assert wire.received_bytes()
    assert is_freed(wire)


RECORDS = {"records": [{"value": "x" * 1_000_000}]}
BODIES: dict[str, tuple[str, Any]] = {
    "records for no partition": ("/topics/t/records", {"partition": 7, **RECORDS}),
    "records for a name that none has": ("/topics/%01/records", RECORDS),
    "a schema that is not there": ("/schemas/nope/validate", {"text": "x" * 1_000_000}),
    "a look that is given up": ("/schemas/s/validate", {"text": "x" * 1_000_000}),
    "two messages": ("/schemas/s/validate", {"text": "x" * 1_000_000, "base64": "eA=="}),
    "no such member": ("/schemas/s/validate", {"what": "x" * 1_000_000}),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_call_of_the_admin_api(name: str, no_collector: None) -> None:
    caller = Caller(flymq_house())

    def refused() -> None:
        status, _ = caller.post(*BODIES[name])
        assert status >= 400

    assert stays(refused) < 1_000_000


def test_a_call_of_somebody_who_is_not_let_in(no_collector: None) -> None:
    caller = Caller(guard=GuardOf(Given()))
    body = json.dumps(RECORDS).encode()
    head = f"{JSON}authorization: Bearer nope\r\n"

    def refused() -> None:
        status, _ = caller.call("POST", "/topics/t/records", body, head)
        assert status == 401

    assert stays(refused) < 1_000_000


def test_a_call_with_a_body_that_there_is_no_room_for(
    no_collector: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokerd.admin.http.request.ALL_BYTES_MAX", 0)
    caller = Caller()
    body = json.dumps(RECORDS).encode().ljust(OWN_BYTES + 1)

    def refused() -> None:
        status, _ = caller.call("POST", "/topics/t/records", body)
        assert status == 503

    assert stays(refused) < 1_000_000
