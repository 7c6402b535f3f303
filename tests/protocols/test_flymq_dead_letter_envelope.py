"""What records of a topic for dead letters are taken for: JSON of FlyMQ's programs, or anything."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.protocols.flymq.dead_letter_envelope import Envelope, envelope_of
from brokerd.values import Record

PAYLOAD = b"\x00\xffpay"
WHOLE = {
    "id": "m-1",
    "original_topic": "orders",
    "original_offset": 7,
    "payload": base64.b64encode(PAYLOAD).decode(),
    "reason": "processing_error",
    "error_message": "boom",
    "retry_count": 3,
    "first_failed_at": "2026-01-01T00:00:00Z",
    "headers": {"a": "b"},
}


def told(**changes: Any) -> Envelope:
    """What `WHOLE` says with other members; None leaves one out."""
    members = {name: value for name, value in {**WHOLE, **changes}.items() if value is not None}
    return envelope_of(0, Record(5, json.dumps(members).encode()))


def test_all_members_are_told() -> None:
    assert told() == Envelope("m-1", PAYLOAD, "boom", 3, "orders")


def test_what_is_missing_is_empty() -> None:
    assert told(error_message=None) == Envelope("m-1", PAYLOAD, "processing_error", 3, "orders")
    bare = dict.fromkeys([*WHOLE.keys() - {"id"}])
    assert told(**bare) == Envelope("m-1", b"")
    assert envelope_of(0, Record(5, b'{"id":"m","payload":null,"headers":null}')).payload == b""


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"plain",
        b"null",
        b"[]",
        b'"m-1"',
        b'{"payload":"aGk="}',
        b'{"id":"","payload":"aGk="}',
        b'{"id":7,"payload":"aGk="}',
        b'{"id":"m","payload":"not base64!"}',
        b'{"id":"m","payload":"aGk=","retry_count":"3"}',
        b'{"id":"m","payload":"aGk="',
        b'{"id":"m","x":' + b"[" * 100_000,
        b'{"id":"\xff","payload":"aGk="}',
        b'{"id":"\\ud800","payload":"aGk="}',
        b'{"id":"' + b"m" * 65_536 + b'"}',
    ],
)
def test_anything_else_is_called_by_its_offset(value: bytes) -> None:
    """However deep it is, and whatever it says of itself."""
    assert envelope_of(0, Record(5, value)) == Envelope("5", value)
    assert envelope_of(2, Record(5, value)) == Envelope("2:5", value)


@given(st.binary(max_size=200), st.integers(0, 3))
def test_any_bytes_are_a_dead_letter(value: bytes, partition: int) -> None:
    assert envelope_of(partition, Record(1, value)).message_id
