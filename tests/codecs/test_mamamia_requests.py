"""What a server makes of request bodies: good, odd and bad ones."""

from __future__ import annotations

import re
import struct
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brokerd.codecs import mamamia as mm
from brokerd.values import Encoding
from tests.strategies import mamamia as some

PRODUCE = {"log_id": "l", "payload": 1, "metadata": None}
ACQUIRE = {"log_id": "l", "group_id": "g", "client_id": "c", "duration": 1.0}
SETTLE = {"log_id": "l", "group_id": "g", "message_id": 0, "client_id": "c", "success": True}
EXTEND = {"log_id": "l", "group_id": "g", "client_id": "c", "message_id": 0}
ACQUIRE_BATCH = {**ACQUIRE, "max": 3}
SETTLE_BATCH = {"log_id": "l", "group_id": "g", "client_id": "c"}
ITEM = {"message_id": 0, "success": True}
BATCH: dict[str, Any] = {"log_id": "l", "messages": [{"payload": b"x"}]}


def decode(command: int, body: dict[Any, Any] | bytes) -> mm.Request:
    return mm.Decoder().decode(command, body if isinstance(body, bytes) else msgpack.packb(body))


def without(body: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != key}


def produce_of(payload: bytes) -> bytes:
    return b"\x82\xa6log_id\xa1l\xa7payload" + payload


REFUSED = [
    (1, [], "the body must be a map, not an array"),
    (1, None, "the body must be a map, not nil"),
    (1, {}, "'log_id'"),
    (1, without(PRODUCE, "payload"), "'payload'"),
    *((2, without(ACQUIRE, key), f"'{key}'") for key in ("log_id", "group_id", "client_id")),
    *((3, without(SETTLE, key), f"'{key}'") for key in SETTLE),
    *((0x81, without(EXTEND, key), f"'{key}'") for key in EXTEND),
    (0x82, {"log_id": "l"}, "'messages'"),
    (0x83, ACQUIRE, "'max'"),
    (0x84, SETTLE_BATCH, "'settles'"),
    (0x85, {"log_id": "l"}, "'group_id'"),
    (1, {**PRODUCE, "log_id": 5}, "log_id must be a str, not an int"),
    (1, {**PRODUCE, "log_id": b"l"}, "log_id must be a str, not a bin"),
    (2, {**ACQUIRE, "client_id": None}, "client_id must be a str, not nil"),
    (2, {**ACQUIRE, "group_id": {}}, "group_id must be a str, not a map"),
    (1, {**PRODUCE, "log_id": "x" * 256}, "log_id must be at most 255 bytes"),
    (1, {**PRODUCE, "log_id": "é" * 128}, "log_id must be at most 255 bytes"),
    (1, {**PRODUCE, "log_id": "a\nb"}, "log_id must not hold control characters"),
    (2, {**ACQUIRE, "client_id": "\x7f"}, "client_id must not hold control characters"),
    (1, {**PRODUCE, "metadata": "m"}, "metadata must be a map or nil, not a str"),
    (1, {**PRODUCE, "metadata": []}, "metadata must be a map or nil, not an array"),
    (1, {**PRODUCE, "key": 1}, "key must be a str, bin or nil, not an int"),
    (1, {**PRODUCE, "partition": 32_767}, "partition must be from 0 to 32766"),
    (1, {**PRODUCE, "partition": -1}, "partition must be from 0 to 32766"),
    (1, {**PRODUCE, "partition": True}, "partition must be an int, not a bool"),
    (2, {**ACQUIRE, "duration": "1"}, "duration must be a number, not a str"),
    (2, {**ACQUIRE, "duration": None}, "duration must be a number, not nil"),
    (2, {**ACQUIRE, "duration": True}, "duration must be a number, not a bool"),
    (2, {**ACQUIRE, "duration": float("nan")}, "duration must be finite"),
    (2, {**ACQUIRE, "duration": float("-inf")}, "duration must be finite"),
    (2, {**ACQUIRE, "wait": -0.5}, "wait must not be negative"),
    (2, {**ACQUIRE, "wait": float("inf")}, "wait must be finite"),
    (3, {**SETTLE, "delay": -1}, "delay must not be negative"),
    (3, {**SETTLE, "delay": []}, "delay must be a number, not an array"),
    (3, {**SETTLE, "message_id": True}, "message_id must be an int, not a bool"),
    (3, {**SETTLE, "message_id": 0.0}, "message_id must be an int, not a float"),
    (3, {**SETTLE, "message_id": -1}, "message_id must be from 0 to 2^63 - 1"),
    (3, {**SETTLE, "message_id": 1 << 63}, "message_id must be from 0 to 2^63 - 1"),
    (0x83, {**ACQUIRE_BATCH, "max": 0}, "max must be at least 1"),
    (0x82, {"log_id": "l", "messages": {}}, "messages must be an array, not a map"),
    (0x82, {"log_id": "l", "messages": []}, "messages must have 1 to 10000 items"),
    (0x82, {"log_id": "l", "messages": [1] * 10_001}, "messages must have 1 to 10000 items"),
    (
        0x82,
        {"log_id": "l", "messages": [{"payload": 1}, 5]},
        "messages[1] must be a map, not an int",
    ),
    (0x82, {"log_id": "l", "messages": [{"payload": 1}] * 3 + [{}]}, "messages[3]: 'payload'"),
    (
        0x84,
        {**SETTLE_BATCH, "settles": [ITEM, {**ITEM, "token": 0.5}]},
        "settles[1]: token must be an int, not a float",
    ),
    (0, PRODUCE, "Unknown command: 0"),
    (9, [], "Unknown command: 9"),
    (0x88, PRODUCE, "Unknown command: 136"),
    (0x86, {"log_id": "l", "group_id": "g"}, "'client_id'"),
    (0x86, {**SETTLE_BATCH, "message_ids": 5}, "message_ids must be an array, not an int"),
    (0x86, {**SETTLE_BATCH, "message_ids": []}, "message_ids must have 1 to 10000 items"),
    (0x86, {**SETTLE_BATCH, "message_ids": [1, "2"]}, "message_ids[1] must be an int, not a str"),
    (0x86, {**SETTLE_BATCH, "message_ids": [{}]}, "message_ids[0] must be an int, not a map"),
    (0x86, {**SETTLE_BATCH, "message_ids": [-1]}, "message_ids[0] must be from 0 to 2^63 - 1"),
    (0x87, {"log_id": "l"}, "'schedule_id'"),
    (0x87, {"log_id": "l", "schedule_id": "5"}, "schedule_id must be an int, not a str"),
    (0x87, {"log_id": "l", "schedule_id": -1}, "schedule_id must be from 0 to 2^63 - 1"),
    (1, {**PRODUCE, "ttl": -0.5}, "ttl must not be negative"),
    (1, {**PRODUCE, "ttl": "1"}, "ttl must be a number, not a str"),
    (1, {**PRODUCE, "ttl": float("inf")}, "ttl must be finite"),
    (1, {**PRODUCE, "delay": -1}, "delay must not be negative"),
    (1, {**PRODUCE, "delay": True}, "delay must be a number, not a bool"),
    (
        0x82,
        {**BATCH, "messages": [{"payload": 1, "ttl": -1}]},
        "messages[0]: ttl must not be negative",
    ),
    (3, {**SETTLE, "reason": 7}, "reason must be a str, not an int"),
    (3, {**SETTLE, "reason": "é" * 128}, "reason must be at most 255 bytes"),
    (
        0x84,
        {**SETTLE_BATCH, "settles": [{**ITEM, "reason": "x" * 256}]},
        "settles[0]: reason must be at most 255 bytes",
    ),
    (
        0x84,
        {**SETTLE_BATCH, "settles": [{**ITEM, "reason": False}]},
        "settles[0]: reason must be a str, not a bool",
    ),
    (0x82, {**BATCH, "producer_id": "p"}, "'sequence'"),
    (0x82, {**BATCH, "sequence": 1}, "'producer_id'"),
    (0x82, {**BATCH, "producer_id": 7, "sequence": 1}, "producer_id must be a str, not an int"),
    (0x82, {**BATCH, "producer_id": "", "sequence": 1}, "producer_id must have 1 to 255 bytes"),
    (
        0x82,
        {**BATCH, "producer_id": "é" * 128, "sequence": 1},
        "producer_id must have 1 to 255 bytes",
    ),
    (0x82, {**BATCH, "producer_id": "p", "sequence": "1"}, "sequence must be an int, not a str"),
    (0x82, {**BATCH, "producer_id": "p", "sequence": -1}, "sequence must be from 0 to 2^63 - 1"),
    (255, {}, "Unknown command: 255"),
]


@pytest.mark.parametrize(("command", "body", "text"), REFUSED)
def test_a_wrong_value_is_answered_with_what_is_wrong(command, body, text):
    with pytest.raises(mm.RequestError) as refusal:
        decode(command, msgpack.packb(body))
    assert str(refusal.value) == text


GOOD = msgpack.packb(PRODUCE)
DEEP = 1_100
CLOSING = {
    "empty body": b"",
    "truncated": GOOD[:-1],
    "truncated in a str": b"\x81\xa6log",
    "trailing bytes": GOOD + b"\xc0",
    "not a map, trailing bytes": b"\x01\x01",
    "bad UTF-8 in a name": b"\x82\xa6log_id\xa1\xff\xa7payload\x01",
    "bad UTF-8 in the payload": produce_of(b"\xa2\xc3\x28"),
    "bad UTF-8 inside the payload": produce_of(b"\x91\xa1\xff"),
    "bad UTF-8 inside a long payload": produce_of(b"\xdc\x03\xe8" + b"\xa1\xff" * 1_000),
    "bad UTF-8 inside a huge payload": produce_of(
        b"\xdd" + struct.pack(">I", 100_000) + b"\xa1x" * 99_999 + b"\xa1\xff"
    ),
    "bad UTF-8 in an unknown key's value": b"\x83\xa6log_id\xa1l\xa7payload\x01\xa1x\xa1\xff",
    "bad UTF-8 in a key": b"\x83\xa6log_id\xa1l\xa7payload\x01\xa1\xff\x01",
    "bad UTF-8 in metadata": GOOD[:-1] + b"\x81\xa1k\xa1\xff",
    "integer key": b"\x81\x00\x01",
    "nil key": b"\x81\xc0\x01",
    "array key": b"\x81\x90\x01",
    "map key": b"\x81\x80\x01",
    "extension key": b"\x81\xd4\x01\x01\x01",
    "integer key inside the payload": produce_of(b"\x81\x01\x01"),
    "byte c1": produce_of(b"\xc1"),
    "nothing but byte c1": b"\xc1",
    "byte c1 where a body begins": b"\xc1" + GOOD,
    "byte c1, then what may follow a payload": b"\xc1\x05\xa8metadata\xc0",
    "broken timestamp": produce_of(b"\xc7\x03\xff\x01\x02\x03"),
    "timestamp out of range": produce_of(b"\xc7\x0c\xff\xff\xff\xff\xff" + b"\xff" * 8),
    "reserved extension": produce_of(b"\xd4\x80\x00"),
    "reserved extension of eight": produce_of(b"\xd7\xfe12345678"),
    "reserved extension with a length": produce_of(b"\xc7\x01\x80x"),
    "reserved extension inside the payload": produce_of(b"\x91\xd4\x80\x00"),
    "reserved extension in metadata": GOOD[:-1] + b"\x81\xa1k\xd4\x80\x00",
    "nesting too deep": produce_of(b"\x91" * DEEP + b"\xc0"),
    "long array that is not there": produce_of(b"\xdd\xff\xff\xff\xff"),
    "long map that is not there": produce_of(b"\xdf\xff\xff\xff\xff"),
    "long str that is not there": produce_of(b"\xdb\xff\xff\xff\xff"),
    "long bin that is not there": produce_of(b"\xc6\xff\xff\xff\xff"),
    "body map that is not there": b"\xdf\xff\xff\xff\xff",
    "long str key that is not there": b"\x81\xdb\xff\xff\xff\xffabc",
    "array of messages that is not there": b"\x82\xa6log_id\xa1l\xa8messages\xdc\x00\x05",
    "array of messages cut in its header": b"\x82\xa6log_id\xa1l\xa8messages\xdd\x00",
    "bad UTF-8 in a message": b"\x82\xa6log_id\xa1l\xa8messages\x91\x81\xa7payload\xa1\xff",
}


@pytest.mark.parametrize("command", [1, 2, 3, 9, 0x82])
@pytest.mark.parametrize("name", CLOSING)
def test_what_cannot_be_decoded_closes(name, command):
    """Whatever the command, known or not."""
    with pytest.raises(mm.BodyError):
        decode(command, CLOSING[name])


@pytest.mark.parametrize("name", CLOSING)
def test_what_cannot_be_decoded_closes_after_good_requests_too(name):
    """What a decoder remembers does not make it believe more."""
    decoder = mm.Decoder()
    for metadata in (None, {}):
        decoder.decode(1, msgpack.packb({**PRODUCE, "metadata": metadata}))
    with pytest.raises(mm.BodyError):
        decoder.decode(1, CLOSING[name])


LIAR = b"\xdc\x0f\xff" * 1_500
"""Nested arrays of 4,095 items each, none of which are there."""


def test_nothing_is_allocated_on_the_word_of_a_length():
    liar = produce_of(LIAR)
    batch = b"\x82\xa6log_id\xa1l\xa8messages" + b"\xdc\x27\x10" + LIAR
    for command, body in ((1, liar), (0x82, batch)):
        tracemalloc.start()
        try:
            with pytest.raises(mm.BodyError):
                decode(command, body)
            assert tracemalloc.get_traced_memory()[1] < 200_000
        finally:
            tracemalloc.stop()


def test_a_large_body_costs_no_more_than_documented():
    """Many small objects: inner containers are not all kept at once."""
    size = 500_000
    body = produce_of(b"\xdd" + struct.pack(">I", size) + b"\x80" * size)
    tracemalloc.start()
    try:
        request = decode(1, body)
        assert tracemalloc.get_traced_memory()[1] < 30 * len(body)
    finally:
        tracemalloc.stop()
    assert isinstance(request, mm.Produce)
    assert request.value == body[len(produce_of(b"")) :]


@pytest.mark.parametrize("levels", [1, 500, 1_000])
def test_whatever_nesting_is_accepted_can_be_decoded_from_every_answer(levels):
    payload = b"\x91" * levels + b"\xc0"
    request = decode(1, produce_of(payload))
    assert isinstance(request, mm.Produce)
    for answer in (
        mm.acquired(0, "l", request.value, request.encoding, None),
        mm.acquired_batch([mm.batch_item(0, *request[1:5], 1, 1, 1.0)]),
    ):
        (frame,) = mm.FrameReader().feed(answer)
        mm.decode_response(*frame)


def test_nesting_that_no_answer_could_carry_is_undecodable():
    """There is no depth between: accepted means deliverable."""
    for levels in range(990, DEEP):
        payload = b"\x91" * levels + b"\xc0"
        try:
            decode(1, produce_of(payload))
        except mm.BodyError:
            break
        frame = mm.acquired_batch([mm.batch_item(0, payload, 2, None, None, 1, 1, 1.0)])
        msgpack.unpackb(frame[6:])
    else:
        pytest.fail("no depth was refused")


@pytest.mark.parametrize(
    "payload",
    [
        b"\xcc\x01",
        b"\xca\x3f\x80\x00\x00",
        b"\xdc\x00\x00",
        b"\xde\x00\x01\xd9\x01a\x01",
        b"\xd6\xff\x00\x00\x00\x01",
        b"\xd4\x05\x01",
        b"\xc7\x01\x7f\x01",
        b"\xc0",
        b"\xc2",
    ],
)
def test_other_payloads_are_kept_to_the_byte(payload):
    """However unusual their layout, extension types included."""
    decoder = mm.Decoder()
    body = produce_of(payload) + b"\xa8metadata\xc0"
    for _ in range(2):
        request = decoder.decode(1, b"\x83" + body[1:])
        assert request == mm.Produce("l", payload, Encoding.MSGPACK)


@pytest.mark.parametrize("head", [b"\xa2", b"\xd9\x02", b"\xda\x00\x02", b"\xdb\x00\x00\x00\x02"])
def test_text_is_kept_as_text_whatever_its_header(head):
    assert decode(1, produce_of(head + b"hi")) == mm.Produce("l", b"hi", Encoding.TEXT)


@pytest.mark.parametrize("head", [b"\xc4\x02", b"\xc5\x00\x02", b"\xc6\x00\x00\x00\x02"])
def test_bytes_are_kept_as_bytes_whatever_their_header(head):
    assert decode(1, produce_of(head + b"\xff\x00")) == mm.Produce("l", b"\xff\x00")


def test_absent_and_empty_metadata_differ():
    assert decode(1, PRODUCE).metadata is None
    assert decode(1, without(PRODUCE, "metadata")).metadata is None
    assert decode(1, {**PRODUCE, "metadata": {}}).metadata == b"\x80"


def test_keys_may_be_text_or_bytes_or_nil():
    assert decode(1, {**PRODUCE, "key": "é"}).key == "é".encode()
    assert decode(1, {**PRODUCE, "key": b"\xff"}).key == b"\xff"
    assert decode(1, {**PRODUCE, "key": None}).key is None


def test_empty_names_are_legal():
    assert decode(2, dict.fromkeys(ACQUIRE, "") | {"duration": 1}) == mm.Acquire("", "", "", 1.0)


def test_the_longest_name_is_legal():
    assert decode(1, {**PRODUCE, "log_id": "é" * 127 + "x"}).log_id == "é" * 127 + "x"


def test_duration_has_a_default_and_a_largest_value():
    """Absent leaves it to the group."""
    assert decode(2, without(ACQUIRE, "duration")).duration is None
    assert decode(2, {**ACQUIRE, "duration": 0}).duration == 0.0
    assert decode(2, {**ACQUIRE, "duration": -3}).duration == -3.0
    assert decode(2, {**ACQUIRE, "duration": 1e300}).duration == 3_155_760_000.0
    assert decode(2, {**ACQUIRE, "duration": (1 << 64) - 1}).duration == 3_155_760_000.0
    assert decode(2, {**ACQUIRE, "duration": -1e300}).duration == -3_155_760_000.0
    assert decode(2, {**ACQUIRE, "duration": 1e300}).duration * 1e6 < 1 << 63


@pytest.mark.parametrize("value", [None, False, 0, 0.0, "", b"", [], {}])
def test_success_is_false_for_anything_empty(value):
    assert decode(3, {**SETTLE, "success": value}).success is False


@pytest.mark.parametrize("value", [True, 1, -1, "no", b"\0", [None], {"": 0}, [0] * 2_000])
def test_success_is_true_for_anything_else(value):
    assert decode(3, {**SETTLE, "success": value}).success is True


def test_unknown_keys_are_ignored():
    extra = {"zz": [1, {"a": b"b"}], b"log_id": 5}
    assert decode(1, {**PRODUCE, **extra}) == mm.Produce("l", b"\x01", Encoding.MSGPACK)


def test_the_last_of_a_repeated_key_counts():
    body = b"\x83\xa6log_id\xa1a\xa6log_id\xa1b\xa7payload\x01"
    assert decode(1, body) == mm.Produce("b", b"\x01", Encoding.MSGPACK)


def test_a_repeated_message_id_is_not_mistaken_for_the_usual_shape():
    """Of two ids the second counts, whichever of them changes."""
    head = b"\x86\xa6log_id\xa1l\xa8group_id\xa1g\xaamessage_id"
    middle, tail = b"\xaamessage_id", b"\xa9client_id\xa1c\xa7success\xc3"
    decoder = mm.Decoder()
    for first, second in ((1, 7), (2, 7), (2, 8), (3, 8)):
        body = head + bytes([first]) + middle + bytes([second]) + tail
        assert decoder.decode(3, body) == mm.Settle("l", "g", second, "c", True)


def test_max_is_capped():
    assert decode(0x83, {**ACQUIRE_BATCH, "max": 1 << 40}).max_messages == 10_000


def test_optional_keys_may_be_nil():
    nothing = {"ttl": None, "delay": None, "key": None, "partition": None}
    assert decode(1, {**PRODUCE, **nothing}) == decode(1, PRODUCE)
    assert decode(0x82, {**BATCH, "producer_id": None, "sequence": None}) == decode(0x82, BATCH)
    all_leases = decode(0x86, {**SETTLE_BATCH, "message_ids": None})
    assert all_leases == mm.Release("l", "g", "c", None)


def test_the_longest_batch_is_accepted():
    batch = decode(0x82, {"log_id": "l", "messages": [{"payload": b""}] * 10_000})
    assert batch.messages == (mm.BatchMessage(b""),) * 10_000


# A decoder that remembers must find what one that remembers nothing finds.

GOOD_BODIES = [
    (1, msgpack.packb({"log_id": "l", "payload": b"x" * 20, "metadata": None})),
    (1, msgpack.packb({"log_id": "l", "payload": "metadata", "metadata": {"metadata": None}})),
    (1, msgpack.packb({"log_id": "l", "payload": {"n": [1]}, "metadata": {"ts": 1.5}})),
    (1, msgpack.packb({"log_id": "l", "payload": b"\xa8metadata\xc0", "metadata": None})),
    (1, msgpack.packb({"log_id": "l", "payload": 5, "metadata": {}, "key": "key"})),
    (1, msgpack.packb({"log_id": "l", "payload": b"ab", "metadata": None, "key": b"\xa3key"})),
    (1, msgpack.packb({"log_id": "l", "payload": b"ab", "metadata": None, "partition": 3})),
    (1, msgpack.packb({"log_id": "l", "payload": b"ab", "metadata": None, "ttl": 3})),
    (1, msgpack.packb({"log_id": "l", "payload": b"ab", "delay": 3, "ttl": None})),
    (1, msgpack.packb({"log_id": "l", "payload": b"ab"})),
    (1, msgpack.packb({"log_id": "l", "payload": b"ab", "metadata": None, "a": 1, "b": 2})),
    (2, msgpack.packb(ACQUIRE)),
    (3, msgpack.packb(SETTLE)),
    (3, msgpack.packb({**SETTLE, "success": False, "message_id": 300})),
    (3, msgpack.packb({**SETTLE, "delay": 2, "message_id": 1 << 40})),
    (0x82, msgpack.packb({"log_id": "l", "messages": [{"payload": b"x"}, {"payload": {}}]})),
    (0x83, msgpack.packb({**ACQUIRE, "max": 9, "duration": 2.5, "wait": 0})),
    (0x84, msgpack.packb({**SETTLE_BATCH, "settles": [ITEM, {**ITEM, "token": 5}]})),
]


def outcome(decoder: mm.Decoder, command: int, body: bytes) -> object:
    """The request, or which named error; anything else fails the test."""
    try:
        return decoder.decode(command, body)
    except mm.RequestError as error:
        return str(error)
    except mm.BodyError:
        return mm.BodyError


def assert_memory_changes_nothing(command: int, usual: bytes, changed: bytes) -> None:
    """After the usual body the changed one is read as by a decoder that remembers nothing."""
    remembering = mm.Decoder()
    remembering.decode(command, usual)
    fresh = outcome(mm.Decoder(), command, changed)
    assert outcome(remembering, command, changed) == fresh
    assert outcome(remembering, command, changed) == fresh
    assert remembering.decode(command, usual) == mm.Decoder().decode(command, usual)


TELLING_BYTES = bytes.fromhex(
    "00 01 7f 80 81 82 83 84 85 86 90 91 a0 a1 a3 a8 bf c0 c1 c2 c3 c4 c5"
    "c7 ca cb cc cd ce cf d0 d4 d6 d9 da dc de e0 ff"
)


@pytest.mark.parametrize("command", [mm.Command.ACQUIRE_NEXT, mm.Command.ACQUIRE_BATCH])
def test_an_acquire_that_is_repeated_is_not_walked_again(command):
    decoder, body = mm.Decoder(), msgpack.packb({**ACQUIRE, "max": 9})
    assert decoder.decode(command, body) is decoder.decode(command, bytes(bytearray(body)))


@pytest.mark.parametrize(("command", "body"), GOOD_BODIES)
def test_no_changed_byte_is_overlooked_by_a_decoder_that_remembers(command, body):
    for at in range(len(body)):
        for byte in TELLING_BYTES:
            changed = body[:at] + bytes([byte]) + body[at + 1 :]
            assert_memory_changes_nothing(command, body, changed)


@pytest.mark.parametrize(("command", "body"), GOOD_BODIES)
def test_no_missing_or_added_byte_is_overlooked_by_a_decoder_that_remembers(command, body):
    for at in range(len(body) + 1):
        assert_memory_changes_nothing(command, body, body[:at])
        for insert in (b"\xc0", b"\x07", b"\xa3key", b"\xa8metadata\xc0", b"\xc4\x01x"):
            assert_memory_changes_nothing(command, body, body[:at] + insert + body[at:])
            assert_memory_changes_nothing(command, body, body[:at] + insert)


@st.composite
def mutations(draw: st.DrawFn) -> tuple[int, bytes, bytes]:
    """A good body, and it with a few bytes changed, cut, or swapped in from another."""
    command, body = draw(st.sampled_from(GOOD_BODIES))
    changed = bytearray(body)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(changed) - 1, 0)))
        match draw(st.sampled_from(["byte", "insert", "splice", "delete"])):
            case "byte" if changed:
                changed[at] = draw(st.integers(0, 255))
            case "insert":
                changed[at:at] = draw(st.binary(max_size=6) | some.scalars.map(msgpack.packb))
            case "splice":
                _, other = draw(st.sampled_from(GOOD_BODIES))
                changed[at:] = other[draw(st.integers(0, len(other))) :]
            case _:
                del changed[at : at + draw(st.integers(1, 4))]
    return command, body, bytes(changed)


@given(mutations())
def test_bad_bytes_raise_named_errors_only_and_memory_changes_no_answer(mutation):
    assert_memory_changes_nothing(*mutation)


LONG_ID = msgpack.packb({**SETTLE, "message_id": 1 << 40}).replace(msgpack.packb(1 << 40), LIAR)
LONG_METADATA = msgpack.packb(PRODUCE)[:-1] + b"\x81\xa1m" + LIAR


@pytest.mark.parametrize(
    ("command", "usual", "liar"),
    [
        (3, msgpack.packb(SETTLE), LONG_ID),
        (1, msgpack.packb(PRODUCE), LONG_METADATA),
        (1, msgpack.packb(PRODUCE), b"\x83" + produce_of(LIAR)[1:] + b"\xa8metadata\xc0"),
    ],
)
def test_a_decoder_that_remembers_allocates_nothing_on_the_word_of_a_length(command, usual, liar):
    decoder = mm.Decoder()
    decoder.decode(command, usual)
    tracemalloc.start()
    try:
        with pytest.raises(mm.BodyError):
            decoder.decode(command, liar)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


@example([("l", "g", "c", 0, True), ("m", "g", "c", 0, False), ("m", "g", "c", 0, True)])
@given(
    st.lists(
        st.tuples(
            st.sampled_from("lm"),
            st.sampled_from("gh"),
            st.sampled_from("cd"),
            st.integers(0, 300),
            st.booleans(),
        ),
        max_size=20,
    )
)
def test_settles_of_several_logs_and_clients_are_not_mixed_up(settles):
    decoder = mm.Decoder()
    for log_id, group_id, client_id, message_id, success in settles:
        settle = mm.Settle(log_id, group_id, message_id, client_id, success)
        assert decoder.decode(3, mm.encode_request(settle)[6:]) == settle


@given(st.integers(0, 255), st.binary(max_size=100))
def test_noise_raises_named_errors_only(command, body):
    outcome(mm.Decoder(), command, body)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["l", "m"]),
            some.payloads,
            st.none() | st.dictionaries(some.keys, some.payloads, max_size=2),
            st.none() | some.keys,
        ),
        max_size=10,
    )
)
def test_every_payload_is_stored_as_it_was_sent(messages):
    decoder = mm.Decoder()
    for log_id, payload, metadata, key in messages:
        body = {"log_id": log_id, "payload": payload, "metadata": metadata}
        if key is not None:
            body["key"] = key
        value, encoding = mm.pack_payload(payload)
        raw_key = key.encode() if isinstance(key, str) else key
        assert decoder.decode(1, msgpack.packb(body)) == mm.Produce(
            log_id, value, encoding, None if metadata is None else msgpack.packb(metadata), raw_key
        )


@pytest.mark.pure_only("reads all slots of an object")
def test_large_requests_are_not_remembered():
    """An idle connection stays small."""
    decoder = mm.Decoder()
    huge = {"zz": "x" * 100_000}
    for command, body in ((1, PRODUCE), (2, ACQUIRE), (3, SETTLE)):
        decoder.decode(command, msgpack.packb({**body, **huge}))
        decoder.decode(command, msgpack.packb({**huge, **body}))
    assert_small(decoder)
    for number in range(300):
        body = {**SETTLE, "client_id": f"{number:0200}", "message_id": number}
        decoder.decode(3, msgpack.packb(body))
    assert_small(decoder)


def assert_small(decoder: mm.Decoder) -> None:
    held = [getattr(decoder, name) for name in decoder.__slots__]
    assert sum(len(repr(one)) for one in held) < 10_000


def test_error_texts_never_repeat_what_was_sent():
    for _, _, text in REFUSED:
        assert re.search(r"x{9}|é", text) is None


@pytest.mark.parametrize(
    ("reason", "stored"),
    [
        ("no\nfile\x7f\x9b", "no\\x0afile\\x7f\\x9b"),
        ("\x1b" * 255, "\\x1b" * 63 + "\\x1"),
        ("é" * 126 + "\n", "é" * 126 + "\\x0"),
        ("naïve", "naïve"),
    ],
)
def test_a_reason_is_stored_without_control_characters(reason: str, stored: str) -> None:
    """A settle is not refused for them, and its reason stays within the limit."""
    decoder = mm.Decoder()
    for _ in range(2):
        settle = decoder.decode(3, msgpack.packb({**SETTLE, "reason": reason}))
        assert settle.reason == stored
    item = {**ITEM, "reason": reason}
    batch = decoder.decode(0x84, msgpack.packb({**SETTLE_BATCH, "settles": [item]}))
    assert batch.settles[0].reason == stored
