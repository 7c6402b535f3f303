"""FlyMQ requests as they are read: both dialects, and what is refused with which words."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs import flymq as fm
from brokerd.codecs.flymq import Opcode
from tests.strategies.flymq import produces, requests

ORDERS = b"\0\x06orders"
G1 = b"\0\x02g1"
ZERO = bytes(4)
MANY = b"\xff" * 4


def read(opcode: int, payload: bytes) -> fm.Request:
    return fm.decode_request(opcode, 1, payload)


def refusal(opcode: int, payload: bytes) -> str:
    with pytest.raises(fm.RequestError) as error:
        read(opcode, payload)
    return str(error.value)


@given(requests)
def test_what_is_written_is_read(request):
    ((opcode, flags, payload),) = fm.FrameReader().feed(fm.encode_request(request))
    assert (opcode, flags) == (fm.opcode_of(request), 1)
    assert fm.decode_request(opcode, flags, payload) == request


MAY_END_EARLIER = (
    fm.Fetch
    | fm.ClusterMetadata
    | fm.Subscribe
    | fm.ResetOffset
    | fm.CancelDelayed
    | fm.ListSchemas
    | fm.ProduceWithSchema
    | fm.ReplayDlq
    | fm.DescribeGroup
    | fm.DeleteGroup
    | fm.SeekToTimestamp
    | fm.CreateUser
    | fm.UpdateUser
    | fm.ChangePassword
)


@given(requests)
def test_a_payload_cut_anywhere_is_refused_or_is_another_request(request):
    """A request that ends early never reads what is not there."""
    ((opcode, flags, payload),) = fm.FrameReader().feed(fm.encode_request(request))
    for end in range(len(payload)):
        try:
            fm.decode_request(opcode, flags, payload[:end])
        except fm.RequestError as error:
            assert str(error).startswith(("buffer too small: ", "invalid binary format: "))
        else:  # a filter, an offset of another mode, a topic, a number or what is enabled may be
            assert isinstance(request, MAY_END_EARLIER)


ENDS_TELL = (
    fm.Subscribe
    | fm.CancelDelayed
    | fm.ReplayDlq
    | fm.DescribeGroup
    | fm.DeleteGroup
    | fm.SeekToTimestamp
    | fm.ProduceWithSchema
)
"""Where they end tells one layout from another."""
MAY_BE_FOLLOWED = requests.filter(
    lambda one: not isinstance(one, ENDS_TELL) and not (isinstance(one, fm.Fetch) and not one.sdk)
)


@given(MAY_BE_FOLLOWED, st.binary(min_size=1, max_size=20))
def test_bytes_after_the_last_field_are_ignored(request, spare):
    ((opcode, flags, payload),) = fm.FrameReader().feed(fm.encode_request(request))
    assert fm.decode_request(opcode, flags, payload + spare) == request


@given(st.integers(0, 255), st.integers(0, 255), st.binary(max_size=60))
def test_any_bytes_are_a_request_or_refused(opcode, flags, payload):
    try:
        fm.decode_request(opcode, flags, payload)
    except fm.RequestError as error:
        assert str(error)


@pytest.mark.parametrize("opcode", [0x00, 0x0C, 0x16, 0x23, 0x36, 0x54, 0x67, 0x71, 0xA2, 0xFF])
def test_an_opcode_that_is_not_spoken_is_told_in_decimal(opcode):
    """Whatever its flags and payload are, compressed ones included."""
    for flags in (0x01, 0x03, 0x05):
        with pytest.raises(fm.UnknownOpcode, match=f"^unknown opcode: {opcode}$"):
            fm.decode_request(opcode, flags, b"junk")


PRODUCE = fm.encode_request(fm.Produce("orders", b"k1", b"hello", 0))[8:]

SHORT = [
    (Opcode.PRODUCE, b"", "topic needs 2 bytes and 0 are left"),
    (Opcode.PRODUCE, b"\0\x06order", "topic says 6 bytes and 5 are left"),
    (Opcode.PRODUCE, ORDERS + b"\0\0\0", "key needs 4 bytes and 3 are left"),
    (Opcode.PRODUCE, ORDERS + b"\xff\xff\xff\xff12", "key says 4294967295 bytes and 2 are left"),
    (Opcode.PRODUCE, ORDERS + ZERO + b"\0\0\0\x05hi", "value says 5 bytes and 2 are left"),
    (Opcode.PRODUCE, PRODUCE[:-1], "partition needs 4 bytes and 3 are left"),
    (Opcode.CONSUME, ORDERS + ZERO + bytes(7), "offset needs 8 bytes and 7 are left"),
    (Opcode.CONSUME_ZERO_COPY, ORDERS, "partition needs 4 bytes and 0 are left"),
    (Opcode.CREATE_TOPIC, ORDERS, "partitions needs 4 bytes and 0 are left"),
    (Opcode.METADATA, b"\0", "topic needs 2 bytes and 1 are left"),
    (Opcode.DELETE_TOPIC, b"", "topic needs 2 bytes and 0 are left"),
    (Opcode.COMMIT, ORDERS + b"\0\x03g1", "group says 3 bytes and 2 are left"),
    (Opcode.FETCH, ORDERS + bytes(12), "max_messages needs 4 bytes and 0 are left"),
    (Opcode.FETCH, ORDERS + bytes(16) + b"\0\x03er", "filter says 3 bytes and 2 are left"),
    (Opcode.FETCH_BINARY, ORDERS + bytes(16) + b"\xff\xff", "filter says 65535 bytes and 0 are"),
    (Opcode.REGISTER_SCHEMA, ORDERS, "type needs 2 bytes and 0 are left"),
    (Opcode.REGISTER_SCHEMA, ORDERS + b"\x04js", "type says 4 bytes and 2 are left"),
    (Opcode.REGISTER_SCHEMA, ORDERS + b"\0\x04js", "type says 4 bytes and 2 are left"),
    (Opcode.REGISTER_SCHEMA, ORDERS + b"\x01j" + MANY, "definition says 4294967295 bytes and 0"),
    (Opcode.GET_SCHEMA, ORDERS + bytes(3), "version needs 4 bytes and 3 are left"),
    (Opcode.LIST_SCHEMAS, b"\0", "name needs 2 bytes and 1 are left"),
    (Opcode.VALIDATE_SCHEMA, ORDERS + MANY, "message says 4294967295 bytes and 0 are left"),
    (Opcode.PRODUCE_WITH_SCHEMA, b"\0\x03or", "topic says 3 bytes and 2 are left"),
    (Opcode.DELETE_SCHEMA, ORDERS, "version needs 4 bytes and 0 are left"),
    (Opcode.PRODUCE_DELAYED, ORDERS + MANY, "value says 4294967295 bytes and 0 are left"),
    (Opcode.PRODUCE_DELAYED, ORDERS + ZERO + bytes(7), "delay needs 8 bytes and 7 are left"),
    (Opcode.PRODUCE_WITH_TTL, ORDERS + ZERO, "TTL needs 8 bytes and 0 are left"),
    (Opcode.CANCEL_DELAYED, b"", "topic or number needs 2 bytes and 0 are left"),
    (Opcode.TXN_COMMIT, b"\0", "transaction needs 2 bytes and 1 are left"),
    (Opcode.TXN_ROLLBACK, b"\0\3tx", "transaction says 3 bytes and 2 are left"),
    (Opcode.TXN_PRODUCE, ORDERS, "topic needs 2 bytes and 0 are left"),
    (Opcode.TXN_PRODUCE, ORDERS + ORDERS + MANY, "value says 4294967295 bytes and 0 are left"),
    (Opcode.FETCH_DLQ, ORDERS + bytes(3), "max_messages needs 4 bytes and 3 are left"),
    (Opcode.REPLAY_DLQ, ORDERS, "message id needs 2 bytes and 0 are left"),
    (Opcode.REPLAY_DLQ, ORDERS + b"\0\x09m-1", "message id says 9 bytes and 3 are left"),
    (Opcode.PURGE_DLQ, b"\0\x09dlq", "topic says 9 bytes and 3 are left"),
    (Opcode.DESCRIBE_GROUP, b"", "topic or group needs 2 bytes and 0 are left"),
    (Opcode.DESCRIBE_GROUP, ORDERS + b"\0\x09g1", "group says 9 bytes and 2 are left"),
    (Opcode.DELETE_GROUP, b"\0\x09g1", "topic or group says 9 bytes and 2 are left"),
    (Opcode.SEEK_TO_TIMESTAMP, ORDERS + bytes(11), "timestamp needs 8 bytes and 5 are left"),
    (Opcode.SEEK_TO_TIMESTAMP, ORDERS + G1 + ZERO, "timestamp needs 8 bytes and 0 are left"),
    (Opcode.CLUSTER_JOIN, b"\0\x09host", "peer says 9 bytes and 4 are left"),
    (Opcode.CLUSTER_METADATA, b"\0", "topic needs 2 bytes and 1 are left"),
    (Opcode.AUTH, b"\0\3bob\0\x09pw", "password says 9 bytes and 2 are left"),
    (Opcode.USER_CREATE, ORDERS + bytes(4) + MANY, "roles says 4294967295 items and 0 bytes"),
    (Opcode.USER_UPDATE, ORDERS + bytes(4) + b"\0\0\0\2\0\0", "roles says 2 items and 2 bytes"),
    (Opcode.PASSWORD_CHANGE, ORDERS + b"\0\0\0", "old password needs 2 bytes and 1 are left"),
    (Opcode.USER_DELETE, b"\0", "user needs 2 bytes and 1 are left"),
    (Opcode.USER_GET, b"\0\1", "user says 1 bytes and 0 are left"),
    (Opcode.ACL_SET, ORDERS, "public needs 1 bytes and 0 are left"),
    (Opcode.ACL_SET, ORDERS + b"\1" + MANY, "users says 4294967295 items and 0 bytes are left"),
    (Opcode.ACL_SET, ORDERS + b"\1" + ZERO + MANY, "roles says 4294967295 items and 0 bytes"),
    (Opcode.ACL_GET, b"", "topic needs 2 bytes and 0 are left"),
    (Opcode.AUDIT_QUERY, bytes(16) + MANY, "types says 4294967295 items and 0 bytes are left"),
    (Opcode.AUDIT_QUERY_JAVA, bytes(16) + MANY, "types says 65535 items and 2 bytes are left"),
    (Opcode.AUDIT_QUERY, bytes(31), "limit needs 4 bytes and 3 are left"),
    (Opcode.AUDIT_EXPORT, b"\0\0\0\x25" + bytes(36), "query says 37 bytes and 36 are left"),
    (Opcode.AUDIT_EXPORT, b"\0\0\0\4" + ZERO + b"\0\3csv", "start needs 8 bytes and 4 are left"),
    (Opcode.AUDIT_EXPORT_JAVA, b"\0\3csv", "start needs 8 bytes and 0 are left"),
    (Opcode.GET_OFFSET, ORDERS + G1, "partition needs 4 bytes and 0 are left"),
    (Opcode.GET_LAG, ORDERS + G1 + b"\0", "partition needs 4 bytes and 1 are left"),
    (Opcode.RESET_OFFSET, ORDERS + G1 + ZERO, "mode needs 2 bytes and 0 are left"),
    (Opcode.RESET_OFFSET, ORDERS + G1 + ZERO + b"\x06late", "mode says 6 bytes and 4 are left"),
    (Opcode.RESET_OFFSET, ORDERS + G1 + ZERO + b"\0\x06late", "mode says 6 bytes and 4 are left"),
    (Opcode.RESET_OFFSET, ORDERS + G1 + ZERO + b"\x06offset", "offset needs 8 bytes and 0 are"),
]


@pytest.mark.parametrize(("opcode", "payload", "text"), SHORT)
def test_what_is_missing_is_named(opcode, payload, text):
    assert refusal(opcode, payload).startswith(f"buffer too small: {text}")


@pytest.mark.parametrize(
    ("opcode", "payload", "what"),
    [
        (Opcode.PRODUCE, b"\0\x02\xc3(" + bytes(12), "topic"),
        (Opcode.COMMIT, ORDERS + b"\0\x01\xff" + bytes(12), "group"),
        (Opcode.FETCH, ORDERS + bytes(16) + b"\0\x01\xff", "filter"),
        (Opcode.SUBSCRIBE, ORDERS + G1 + ZERO + b"\x01\xff", "mode"),
        (Opcode.METADATA, b"\0\x03\xed\xa0\x80", "topic"),
        (Opcode.REGISTER_SCHEMA, b"\0\x01\xff\x01j" + bytes(4), "name"),
        (Opcode.REGISTER_SCHEMA, ORDERS + b"\x01\xff" + bytes(4), "type"),
        (Opcode.REGISTER_SCHEMA, ORDERS + b"\0\x01\xff" + bytes(4), "type"),
        (Opcode.GET_SCHEMA, b"\0\x01\xff" + bytes(4), "name"),
        (Opcode.LIST_SCHEMAS, b"\0\x01\xff", "name"),
        (Opcode.VALIDATE_SCHEMA, b"\0\x01\xff" + bytes(4), "name"),
        (Opcode.PRODUCE_WITH_SCHEMA, b"\0\x01\xff" + bytes(6), "topic"),
        (Opcode.DELETE_SCHEMA, b"\0\x01\xff" + bytes(4), "name"),
        (Opcode.PRODUCE_DELAYED, b"\0\x01\xff" + bytes(12), "topic"),
        (Opcode.PRODUCE_WITH_TTL, b"\0\x01\xff" + bytes(12), "topic"),
        (Opcode.CANCEL_DELAYED, ORDERS + b"\0\x01\xff", "number"),
        (Opcode.TXN_COMMIT, b"\0\x01\xff", "transaction"),
        (Opcode.TXN_PRODUCE, ORDERS + b"\0\x01\xff" + bytes(4), "topic"),
        (Opcode.AUTH, b"\0\x01\xff\0\0", "user"),
        (Opcode.AUTH, b"\0\0\0\x01\xff", "password"),
        (Opcode.ACL_SET, ORDERS + b"\1\0\0\0\1\0\1\xff", "users"),
    ],
)
def test_text_that_is_not_utf8_is_refused(opcode, payload, what):
    assert refusal(opcode, payload) == f"invalid binary format: {what} is not UTF-8"


def outcome(flags: int, payload: bytes) -> fm.Request | str:
    try:
        return fm.decode_request(Opcode.PRODUCE, flags, payload)
    except fm.RequestError as error:
        return str(error)


@given(produces, st.binary(max_size=40), st.integers(0, 400))
def test_a_plain_produce_is_read_as_a_compressed_one(request, junk, end):
    """The short way that plain ones take makes no difference, whatever is wrong with them."""
    whole = fm.encode_request(request)[8:]
    for payload in (whole, whole[:end], whole + junk, junk, whole[:end] + junk):
        assert outcome(1, payload) == outcome(3, gzip.compress(payload))


def test_a_key_of_no_bytes_is_no_key():
    request = read(Opcode.PRODUCE, ORDERS + ZERO + b"\0\0\0\x02hi\xff\xff\xff\xff")
    assert request == fm.Produce("orders", None, b"hi", -1)


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (b"", ("", False)),
        (b"\0", ("", False)),
        (b"\0\0", ("", True)),
        (b"\0\x03err", ("err", True)),
        (b"\0\x03err-and-more", ("err", True)),
    ],
)
@pytest.mark.parametrize("opcode", [Opcode.FETCH, Opcode.FETCH_BINARY])
def test_a_fetch_with_a_filter_is_an_sdks(opcode, tail, expected):
    """Two bytes or more after max are a filter, be it empty."""
    request = read(opcode, ORDERS + bytes(15) + b"\x02" + tail)
    assert request == fm.Fetch("orders", 0, 0, 2, *expected, opcode)
    assert request.answer_is_sdk == (expected[1] or opcode == Opcode.FETCH_BINARY)


@pytest.mark.parametrize(
    ("tail", "mode", "sdk"),
    [
        (b"\0\x06latest", "latest", False),
        (b"\x06latest", "latest", True),
        (b"\0\0", "", False),
        (b"\0", "", True),
        (b"\x01x", "x", True),
        (b"\x02\0\0", "\0\0", True),
        (b"\x01\0" + b"y" * 256, "y" * 256, False),
    ],
)
def test_the_end_of_a_mode_tells_subscribes_apart(tail, mode, sdk):
    request = read(Opcode.SUBSCRIBE, ORDERS + G1 + ZERO + tail)
    assert request == fm.Subscribe("orders", "g1", 0, mode, sdk)


@pytest.mark.parametrize(
    "tail", [b"", b"\x07latest", b"\0\x07latest", b"\0\x05latest", b"\x05late"]
)
def test_a_mode_that_does_not_end_a_subscribe_is_refused(tail):
    text = refusal(Opcode.SUBSCRIBE, ORDERS + G1 + ZERO + tail)
    assert text.startswith("invalid binary format: mode does not end with the payload")


@pytest.mark.parametrize(
    ("tail", "mode", "offset", "sdk"),
    [
        (b"\x08earliest", "earliest", None, True),
        (b"\0\x08earliest", "earliest", None, False),
        (b"\x06latest" + bytes(8), "latest", None, True),
        (b"\x06offset" + bytes(7) + b"\x07", "offset", 7, True),
        (b"\0\x06offset" + bytes(7) + b"\x07", "offset", 7, False),
        (b"\x03odd", "odd", None, True),
        (b"\0\0", "", None, False),
    ],
)
def test_the_first_byte_of_a_mode_tells_resets_apart(tail, mode, offset, sdk):
    """Java's spare offset is ignored where the mode has none."""
    request = read(Opcode.RESET_OFFSET, ORDERS + G1 + ZERO + tail)
    assert request == fm.ResetOffset("orders", "g1", 0, mode, offset, sdk)


def test_the_largest_offsets_are_read_but_not_committed():
    """Reads may ask for any offset; a commit is kept as a signed number."""
    past = (1 << 63).to_bytes(8, "big")
    assert read(Opcode.CONSUME, ORDERS + ZERO + b"\xff" * 8).offset == (1 << 64) - 1
    assert read(Opcode.FETCH, ORDERS + ZERO + past + ZERO).offset == 1 << 63
    text = f"offset must be at most 2^63 - 1, not {1 << 63}"
    assert refusal(Opcode.COMMIT, ORDERS + G1 + ZERO + past) == text
    assert refusal(Opcode.RESET_OFFSET, ORDERS + G1 + ZERO + b"\x06offset" + past) == text


def test_numbers_are_signed_where_the_document_says_so():
    minus = b"\xff\xff\xff\xff"
    assert read(Opcode.CREATE_TOPIC, ORDERS + minus).partitions == -1
    assert read(Opcode.GET_LAG, ORDERS + G1 + minus).partition == -1
    assert read(Opcode.FETCH, ORDERS + minus + bytes(8) + minus)[1:4] == (-1, 0, -1)


def test_a_claimed_length_costs_no_memory():
    tracemalloc.start()
    try:
        for opcode in Opcode:
            for payload in (b"\xff" * 3, b"\xff" * 20, ORDERS + b"\xff" * 20):
                try:
                    read(opcode, payload)
                except fm.RequestError as error:
                    assert len(str(error)) < 200
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
