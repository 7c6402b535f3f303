"""Schemas, as a user of the FlyMQ client sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from brokerd.client.errors import ConnectionLost
from brokerd.client.flymq import FlymqError
from brokerd.codecs import flymq as fm
from brokerd.codecs.flymq import Opcode
from brokerd.errors import RecordTooLarge
from tests.client.flymq_peer import Call, FlymqPeer, client_of, peer

__all__ = ["peer"]

INFO = fm.SchemaInfo("order", "json", 3)
TEXT = fm.SchemaText(INFO, b"{}", "backward", 1_700_000_000)
PRODUCED = ("t", 0, 7, 5, -1, 2)
VERDICT = fm.Validity(False, ("missing required field: id",))

CALLS: list[Call] = [
    (
        lambda c: c.register_schema("order", "json", "{}"),
        fm.RegisterSchema("order", "json", b"{}"),
        fm.schema_registered(INFO),
        INFO,
    ),
    (lambda c: c.get_schema("order"), fm.GetSchema("order"), fm.schema_text(TEXT), TEXT),
    (lambda c: c.get_schema("order", 3), fm.GetSchema("order", 3), fm.schema_text(TEXT), TEXT),
    (lambda c: c.list_schemas(), fm.ListSchemas(), fm.schemas([INFO]), (INFO,)),
    (lambda c: c.list_schemas("order"), fm.ListSchemas("order"), fm.schemas([]), ()),
    (
        lambda c: c.validate_schema("order", b"{}"),
        fm.ValidateSchema("order", b"{}"),
        fm.validity(VERDICT.errors),
        VERDICT,
    ),
    (
        lambda c: c.produce_with_schema("t", b"{}", "order"),
        fm.ProduceWithSchema("t", b"{}", "order"),
        fm.produced(*PRODUCED, opcode=Opcode.PRODUCE_WITH_SCHEMA),
        fm.Produced(*PRODUCED),
    ),
    (
        lambda c: c.delete_schema("order", 2),
        fm.DeleteSchema("order", 2),
        fm.ok(Opcode.DELETE_SCHEMA, "OK"),
        None,
    ),
    (
        lambda c: c.delete_schema("order"),
        fm.DeleteSchema("order"),
        fm.ok(Opcode.DELETE_SCHEMA, "OK"),
        None,
    ),
]


@pytest.mark.parametrize(("call", "request_", "answer", "result"), CALLS)
def test_each_call_sends_its_request_and_returns_its_result(
    peer: FlymqPeer, call: Callable[..., object], request_: Any, answer: bytes, result: object
) -> None:
    peer.will_accept(answer)
    with client_of(peer) as client:
        assert call(client) == result
    assert peer.requests() == [request_]


@pytest.mark.parametrize(("call", "request_", "answer", "result"), CALLS)
def test_every_call_may_be_refused(
    peer: FlymqPeer, call: Callable[..., object], request_: Any, answer: bytes, result: object
) -> None:
    peer.will_accept(fm.error("schema not found: order", sdk=True))
    with client_of(peer) as client, pytest.raises(FlymqError, match="schema not found"):
        call(client)


def test_the_documents_dialect_has_its_own_layout_of_a_type(peer: FlymqPeer) -> None:
    peer.will_accept(fm.schema_registered(INFO))
    with client_of(peer, sdk=False) as client:
        assert client.register_schema("order", "json", "{}") == INFO
    assert peer.requests() == [fm.RegisterSchema("order", "json", b"{}", sdk=False)]


def test_every_opcode_has_a_call() -> None:
    opcodes = {fm.opcode_of(request) for _, request, _, _ in CALLS}
    assert opcodes == {
        one for one in Opcode if Opcode.REGISTER_SCHEMA <= one <= Opcode.DELETE_SCHEMA
    }


@pytest.mark.parametrize(("call", "request_", "answer", "result"), CALLS)
def test_what_would_do_harm_twice_is_not_sent_again(
    peer: FlymqPeer, call: Callable[..., object], request_: Any, answer: bytes, result: object
) -> None:
    """A registration makes a version, and the version after a deletion is another."""
    peer.will_accept(answer[:5], then_close=True)
    peer.will_accept(answer)
    changes = (fm.RegisterSchema, fm.ProduceWithSchema, fm.DeleteSchema)
    with client_of(peer) as client:
        if isinstance(request_, changes):
            with pytest.raises(ConnectionLost):
                call(client)
            assert peer.attempts == 1
        else:
            assert call(client) == result


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda c: c.register_schema("order", "json", 7),
            TypeError,
            "definition must be bytes or str, not a int",
        ),
        (
            lambda c: c.register_schema("order", "json", "\ud800"),
            ValueError,
            "definition cannot be said in UTF-8",
        ),
        (lambda c: c.register_schema("order", "", b"{}"), ValueError, "type must have 1 to 255"),
        (lambda c: c.register_schema("order", "x" * 256, b"{}"), ValueError, "not 256"),
        (lambda c: c.register_schema(7, "json", b"{}"), TypeError, "name must be a str"),
        (lambda c: c.get_schema("order", -1), ValueError, "version must be from 0"),
        (lambda c: c.get_schema("order", 1 << 32), ValueError, "version must be from 0"),
        (lambda c: c.delete_schema("order", 1 << 32), ValueError, "version must be from 0"),
        (lambda c: c.validate_schema("order", "text"), TypeError, "message must be bytes, not a"),
        (lambda c: c.produce_with_schema("t", "text", "order"), TypeError, "value must be bytes"),
        (lambda c: c.produce_with_schema("t", b"x", "x" * 65_536), ValueError, "is too long"),
        (
            lambda c: c.produce_with_schema("t", bytes(33_554_405), "order"),
            RecordTooLarge,
            "may have 33554404",
        ),
    ],
)
def test_a_wrong_argument_is_told_before_anything_is_sent(
    peer: FlymqPeer, call: Callable[..., object], error: type[Exception], match: str
) -> None:
    with client_of(peer) as client, pytest.raises(error, match=match):
        call(client)
    assert peer.attempts == 0
