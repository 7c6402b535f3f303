"""FlyMQ's schemas, served by a whole broker (docs/protocols/flymq.rst, 0x10 to 0x15)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from brokerd.broker import Congested
from brokerd.broker.schemas.entries import SchemaVersion
from brokerd.broker.slices import SLICE_SECONDS
from brokerd.codecs import flymq
from brokerd.schemas.checker import OWN_WAITING_MAX
from tests.protocols.flymq_desk import FlymqHouse, SteppedHouse
from tests.protocols.flymq_guarded import GuardedHouse

NEEDS_ID = b'{"required":["id"],"properties":{"id":{"type":"integer"}}}'
REGISTER = flymq.RegisterSchema("order", "json", NEEDS_ID)
OTHER = flymq.RegisterSchema("other", "json", b"{}")


def registered(*requests: flymq.RegisterSchema) -> FlymqHouse:
    house = FlymqHouse()
    for request in requests or (REGISTER,):
        assert isinstance(house.only(request), flymq.SchemaInfo)
    return house


def refusal(house: FlymqHouse, request: Any) -> str:
    answer = house.only(request)
    assert isinstance(answer, flymq.Failed), answer
    return answer.text


def put_off(house: FlymqHouse) -> list[Callable[[], None]]:
    """Looks at schemas wait here from now on, each until it is called."""
    waiting: list[Callable[[], None]] = []
    checker = house.broker.schemas._checker
    checker._submit = lambda work, done: waiting.append(lambda: done(work(), None))
    return waiting


def test_versions_are_registered_listed_read_and_deleted() -> None:
    house = registered()
    assert house.only(REGISTER) == flymq.SchemaInfo("order", "json", 2)
    assert house.only(OTHER) == flymq.SchemaInfo("other", "json", 1)
    listed = tuple(flymq.SchemaInfo(*one) for one in [("order", "json", 1), ("order", "json", 2)])
    other = (flymq.SchemaInfo("other", "json", 1),)
    assert house.only(flymq.ListSchemas()) == flymq.SchemaList(listed + other)
    assert house.only(flymq.ListSchemas("order")) == flymq.SchemaList(listed)
    assert house.only(flymq.ListSchemas("nope")) == flymq.SchemaList(())
    found = house.only(flymq.GetSchema("order"))
    assert (found.schema.version, found.definition) == (2, NEEDS_ID)
    assert found.compatibility == "backward"
    assert house.only(flymq.DeleteSchema("order", 2)) == flymq.Done()
    assert house.only(flymq.GetSchema("order")).schema.version == 1
    assert house.only(flymq.DeleteSchema("order")) == flymq.Done()
    assert house.only(flymq.ListSchemas()) == flymq.SchemaList(other)


def test_what_was_answered_outlasts_a_loss_of_power() -> None:
    """A registration and a deletion."""
    house = registered(REGISTER, REGISTER, OTHER)
    house.only(flymq.DeleteSchema("order", 2))
    house = house.crash()
    assert [one.version for one in house.only(flymq.ListSchemas("order")).schemas] == [1]
    assert house.only(REGISTER).version == 3


@pytest.mark.parametrize(
    ("kind", "definition", "good", "bad"),
    [
        ("json", NEEDS_ID, b'{"id": 1}', b"{}"),
        ("avro", b'"long"', b"\x02", b"\x80"),
        ("protobuf", b'syntax = "proto3"; message A { int32 a = 1; }', b"\x08\x01", b"\x08"),
        ("proto", b'syntax = "proto3"; message A { int32 a = 1; }', b"\x08\x01", b""),
    ],
)
@pytest.mark.parametrize("schema_first", [False, True])
def test_a_value_is_stored_if_it_fits(
    kind: str, definition: bytes, good: bytes, bad: bytes, schema_first: bool
) -> None:
    """And one that does not is refused, and nothing of it stays."""
    house = registered(flymq.RegisterSchema("s", kind, definition))
    text = refusal(house, flymq.ProduceWithSchema("t", bad, "s", schema_first))
    assert text.startswith("schema validation failed: [")
    assert house.broker.topics.find("t") is None
    stored = house.only(flymq.ProduceWithSchema("t", good, "s", schema_first))
    assert stored == flymq.Produced("t", 0, 0, stored.timestamp_ms, -1, len(good))
    assert house.records("t", 0, 0, 10) == [(0, None, good)]
    assert house.only(flymq.ValidateSchema("s", good)) == flymq.Validity(True, ())
    told = house.only(flymq.ValidateSchema("s", bad))
    assert not told.valid
    assert text == f"schema validation failed: [{' '.join(told.errors)}]"


def test_values_go_to_the_partitions_in_turn() -> None:
    house = registered(OTHER)
    house.broker.topics.create("t", 3)
    stored = house.ask(*[flymq.ProduceWithSchema("t", b"1", "other")] * 4)
    assert [one.partition for one in stored] == [0, 1, 2, 0]


def test_requests_behind_one_that_is_looked_at_wait_and_are_answered_in_order() -> None:
    house = registered(OTHER)
    waiting = put_off(house)
    client = house.client()
    client.send(
        flymq.Produce("t", None, b"0"),
        flymq.ProduceWithSchema("t", b"1", "other"),
        flymq.Produce("t", None, b"2"),
        flymq.ValidateSchema("other", b"1"),
        flymq.ListSchemas("other"),
    )
    house.run()
    assert [type(answer) for answer in client.answers()] == [flymq.Produced]
    assert house.only(flymq.ListTopics()) == flymq.Topics(("t",))  # nobody else waits
    for _ in range(2):
        waiting.pop(0)()
        house.run()
    first, second, third, fourth = client.answers()
    assert (first.offset, second.offset) == (1, 2)
    assert third == flymq.Validity(True, ())
    assert isinstance(fourth, flymq.SchemaList)
    assert [value for _, _, value in house.records("t", 0, 0, 9)] == [b"0", b"1", b"2"]


def test_who_leaves_meanwhile_stores_nothing_and_disturbs_nobody() -> None:
    """And what was sent is not even looked at."""
    house = registered(OTHER)
    looked: list[bytes] = []
    waiting = put_off(house)
    client = house.client()
    client.send(flymq.ProduceWithSchema("t", b"1", "other"))
    house.run()
    client.disconnect()
    house.run()
    house.broker.schemas._checker._run_check = looked.append  # type: ignore[assignment]
    for one in waiting:
        one()
    house.run()
    assert house.broker.topics.find("t") is None
    assert looked == []


def test_who_may_not_write_any_more_when_it_was_looked_at_registers_nothing() -> None:
    """Nor is a value stored of such a one."""
    house = GuardedHouse()
    assert house.log_in("root").ask(OTHER) == [flymq.SchemaInfo("other", "json", 1)]
    house.grant("order", "gus")
    gus = house.log_in("gus")
    waiting = put_off(house)
    gus.send(REGISTER, flymq.ProduceWithSchema("order", b"1", "other"))
    house.run()
    house.grant("order")
    waiting.pop(0)()
    house.run()
    assert gus.answers() == [flymq.Failed("unauthorized")] * 2
    house.grant("order", "gus")
    gus.send(flymq.ProduceWithSchema("order", b"1", "other"))
    house.run()
    house.grant("order")
    waiting.pop(0)()
    house.run()
    assert gus.answers() == [flymq.Failed("unauthorized")]
    assert [known.name for known in house.broker.schemas.names()] == ["other"]
    assert house.broker.topics.find("order") is None


def test_what_is_registered_is_told_although_nothing_may_be_any_more() -> None:
    """Its permission was taken away while the answer waited."""
    house = GuardedHouse()
    house.grant("order", "gus")
    gus = house.log_in("gus")
    waiting = put_off(house)
    gus.send(REGISTER)
    house.run()
    gus.protocol.pauseProducing()  # it does not read
    waiting.pop(0)()
    house.grant("order")
    gus.protocol.resumeProducing()
    house.run()
    assert gus.answers() == [flymq.SchemaInfo("order", "json", 1)]


def test_a_leave_is_noticed_while_something_waits_to_be_looked_at() -> None:
    """The socket is read on, so the places of who left are free."""
    house = registered(OTHER)
    put_off(house)
    client = house.client()
    client.send(flymq.ValidateSchema("other", b"1"))
    house.run()
    assert not client.transport.paused


def test_too_many_that_wait_are_refused() -> None:
    house = registered(OTHER)
    put_off(house)
    clients = [house.client() for _ in range(OWN_WAITING_MAX)]
    for client in clients:
        client.send(flymq.ValidateSchema("other", b"1"))
    house.run()
    assert "try again" in refusal(house, flymq.ValidateSchema("other", b"1"))


def test_a_value_that_waits_for_room_is_looked_at_once() -> None:
    house = registered(OTHER)
    group_commit = house.broker.group_commit
    admit, sizes = group_commit.admit, []
    looked: list[bytes] = []
    look = house.broker.schemas._checker._run_check
    house.broker.schemas._checker._run_check = lambda asked: looked.append(asked) or look(asked)

    def congested_once(size: int) -> None:
        sizes.append(size)
        if len(sizes) == 1:
            raise Congested("log space is being allocated; try again")
        admit(size)

    house.broker.topics.create("before")  # a commit is under way
    group_commit.admit = congested_once  # type: ignore[method-assign, assignment]
    assert house.only(flymq.ProduceWithSchema("t", b"1", "other")).offset == 0
    assert len(looked) == 1


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (flymq.GetSchema("nope"), "no schema found for topic: nope"),
        (flymq.GetSchema("nope", 1), "schema not found: nope v1"),
        (flymq.GetSchema("order", 7), "schema not found: order v7"),
        (flymq.ValidateSchema("nope", b"1"), "schema not found: nope"),
        (flymq.ProduceWithSchema("t", b"1", "nope"), "schema not found: nope"),
        (flymq.ProduceWithSchema("t", b"1", ""), "schema not found: "),
        (flymq.DeleteSchema("order", 7), "failed to delete schema: schema not found: order v7"),
        (flymq.DeleteSchema("nope"), "failed to delete schema: schema not found: nope"),
        (flymq.RegisterSchema("x", "xml", b"{}"), "unsupported schema type: xml"),
        (flymq.RegisterSchema("x", "", b"{}", False), "unsupported schema type: "),
        (
            flymq.RegisterSchema("", "json", b"{}"),
            "a schema needs a name of 1 to 255 bytes of UTF-8",
        ),
        (
            flymq.RegisterSchema("x", "avro", b""),
            "failed to register schema: invalid schema definition: schema definition cannot be "
            "empty",
        ),
        (
            flymq.RegisterSchema("x", "json", b"[]"),
            "failed to register schema: invalid schema definition: invalid JSON schema: an object "
            "is expected, not array",
        ),
        (
            flymq.RegisterSchema("order", "json", b'{"required":["x"]}'),
            "failed to register schema: schema compatibility check failed: new required field 'x' "
            "not in old schema (version 1)",
        ),
        (
            flymq.RegisterSchema("x", "json", b" " * 262_145),
            "failed to register schema: invalid schema definition: schema definition has 262145 "
            "bytes; the limit is 262144",
        ),
        (
            flymq.ProduceWithSchema("t", b"{}", "order"),
            "schema validation failed: [missing required field: id]",
        ),
        (
            flymq.ProduceWithSchema("t", b'{"id":"a"}', "order"),
            "schema validation failed: [type mismatch at id: expected integer, got string]",
        ),
        (
            flymq.ProduceWithSchema("..", b'{"id":1}', "order"),
            "topic name must not be '..': give it 1 to 255 bytes of UTF-8 without control "
            "characters, and no '.' or '..' alone or between slashes",
        ),
    ],
)
def test_a_refusal_says_what_is_wrong_and_changes_nothing(request_: Any, text: str) -> None:
    house = registered()
    before = house.only(flymq.ListSchemas())
    assert refusal(house, request_) == text
    assert house.only(flymq.ListSchemas()) == before
    assert list(house.broker.topics.all()) == []


def test_a_text_in_a_refusal_is_short_and_shows_no_control_characters() -> None:
    """Whatever names and values hold."""
    house = registered(flymq.RegisterSchema("s", "json", b'{"enum": [1]}'))
    text = refusal(house, flymq.ProduceWithSchema("t", json.dumps("\x1b" * 9_000).encode(), "s"))
    assert len(text) < 400
    assert text.isprintable()
    assert "\x1b" not in refusal(house, flymq.RegisterSchema("x", "\x1b[2J", b"{}"))


def test_the_list_of_all_schemas_is_made_in_slices() -> None:
    """Others are served meanwhile; what is deleted meanwhile was there when it began."""
    house = SteppedHouse()
    house.steps.look_seconds = SLICE_SECONDS / 4
    for number in range(9):
        house.only(flymq.RegisterSchema(f"s{number}", "json", b"{}"))
    client = house.client()
    client.send(flymq.ListSchemas())
    house.run()
    house.steps.step()
    assert house.only(flymq.DeleteSchema("s8")) == flymq.Done()
    assert client.answers() == []
    house.finish()
    (answer,) = client.answers()
    assert [one.name for one in answer.schemas] == [f"s{number}" for number in range(9)]


def test_one_name_is_listed_without_a_look_at_the_others() -> None:
    house = registered()
    house.broker.schemas.names = list  # type: ignore[method-assign]
    assert len(house.only(flymq.ListSchemas("order")).schemas) == 1


def test_a_list_that_fits_no_answer_is_refused() -> None:
    house = registered()
    known = house.broker.schemas.find("order")
    many = {n: SchemaVersion("n" * 255, known.latest.definition, 0) for n in range(130_000)}
    object.__setattr__(known, "versions", many)
    assert "the list of all schemas" in refusal(house, flymq.ListSchemas())
