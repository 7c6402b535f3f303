"""BlipMQ's frames, byte for byte in both directions, and whatever else may come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs import blipmq as bm
from tests.golden import golden
from tests.strategies.blipmq import messages

REQUESTS = {
    "seed-01-hello": bm.Hello(1, 1),
    "seed-02-auth": bm.Auth(2, "dev-key"),
    "seed-03-subscribe": bm.Subscribe(3, "demo", 1),
    "seed-04-publish": bm.Publish(4, 1, "demo", b"hi"),
    "notes-01-hello": bm.Hello(1),
    "notes-02-hello-version": bm.Hello(1, 2),
    "notes-03-ping-before-auth": bm.Ping(7),
    "notes-03-auth-before-hello": bm.Auth(1, "bench-key"),
    "notes-04-auth-wrong": bm.Auth(2, "nope"),
    "notes-04-auth": bm.Auth(2, "bench-key"),
    "notes-05-subscribe": bm.Subscribe(3, "bench", 1),
    "notes-06-publish": bm.Publish(4, 1, "bench", b"hello"),
    "notes-07-poll": bm.Poll(5, 1),
    "notes-08-ack": bm.Ack(1, 1),
    "notes-08-ack-again": bm.Ack(1, 1),
    "notes-09-poll-empty": bm.Poll(6, 1),
    "notes-10-publish-qos0": bm.Publish(7, 0, "bench", b"zero"),
    "notes-10-poll-qos0": bm.Poll(8, 1),
    "notes-11-ping": bm.Ping(9),
    "notes-13-poll-id-0": bm.Poll(12, 0),
    "notes-14-publish-refused": bm.Publish(13, 1, "bench", b"hello"),
    "ours-auth-twice": bm.Auth(20, "bench-key"),
    "ours-publish-name": bm.Publish(25, 1, "a\nb", b"hi"),
    "ours-poll-unknown": bm.Poll(30, 99),
    "ours-ack-id-0": bm.Ack(32, 0),
    "ours-ack-unknown": bm.Ack(33, 99),
    "ours-pong": bm.Pong(35),
    "ours-nack": bm.Nack(36, 500, "no"),
    "ours-publish-empty": bm.Publish(37, 1, "bench", b""),
    "ours-poll-qos0-subscription": bm.Poll(38, 2),
    "ours-poll-again": bm.Poll(39, 1),
    "ours-ack-third": bm.Ack(3, 1),
}
NOT_AS_WE_SEND = {
    "ours-subscribe-more": bm.Subscribe(28, "bench", 0),
    "ours-ping-payload": bm.Ping(34),
}
REFUSED = {
    "notes-12-publish-no-topic": "empty topic",
    "notes-13-subscribe-qos": "invalid QoS value",
    "ours-hello-short": "invalid HELLO payload",
    "ours-hello-twice": "invalid HELLO payload",
    "ours-auth-short": "invalid AUTH payload",
    "ours-auth-not-utf8": "invalid AUTH payload",
    "ours-publish-short": "invalid PUBLISH payload",
    "ours-publish-not-utf8": "invalid PUBLISH payload",
    "ours-publish-qos": "invalid QoS value",
    "ours-publish-no-topic-nor-qos": "empty topic",
    "ours-subscribe-short": "invalid SUBSCRIBE payload",
    "ours-subscribe-no-topic": "empty topic",
    "ours-poll-short": "invalid POLL payload",
    "ours-ack-short": "invalid ACK payload",
}
CLOSED = ("notes-15-length", "notes-15-type")
INVALID_NAME = "topic name holds a control character: 'a\\nb'; leave it out"
ANSWERS = {
    "seed-05-ack": bm.Ack(3, 42),
    "notes-01-hello": bm.Ack(1),
    "notes-02-hello-version": bm.Nack(1, 426, bm.WRONG_VERSION),
    "notes-03-ping-before-auth": bm.Nack(7, 401, bm.UNAUTHENTICATED),
    "notes-03-auth-before-hello": bm.Nack(1, 400, bm.HELLO_MISSING),
    "notes-04-auth-wrong": bm.Nack(2, 401, bm.WRONG_KEY),
    "notes-04-auth": bm.Ack(2),
    "notes-05-subscribe": bm.Ack(3, 1),
    "notes-07-poll": bm.Publish(1, 1, "bench", b"hello"),
    "notes-08-ack-again": bm.Nack(1, 404, bm.UNKNOWN_DELIVERY),
    "notes-10-poll-qos0": bm.Publish(8, 0, "bench", b"zero"),
    "notes-11-ping": bm.Pong(9),
    "notes-12-publish-no-topic": bm.Nack(10, 400, bm.EMPTY_TOPIC),
    "notes-13-subscribe-qos": bm.Nack(11, 400, bm.WRONG_QOS),
    "notes-13-poll-id-0": bm.Nack(12, 400, bm.ZERO_ID),
    "notes-14-publish-refused": bm.Nack(
        13, 500, "durable publish failed: wal overload: wal channel full"
    ),
    "ours-hello-short": bm.Nack(16, 400, "invalid HELLO payload"),
    "ours-hello-twice": bm.Nack(17, 400, bm.HELLO_TWICE),
    "ours-auth-short": bm.Nack(18, 400, "invalid AUTH payload"),
    "ours-auth-not-utf8": bm.Nack(19, 400, "invalid AUTH payload"),
    "ours-auth-twice": bm.Nack(20, 400, bm.AUTH_TWICE),
    "ours-publish-short": bm.Nack(21, 400, "invalid PUBLISH payload"),
    "ours-publish-not-utf8": bm.Nack(22, 400, "invalid PUBLISH payload"),
    "ours-publish-qos": bm.Nack(23, 400, bm.WRONG_QOS),
    "ours-publish-no-topic-nor-qos": bm.Nack(24, 400, bm.EMPTY_TOPIC),
    "ours-publish-name": bm.Nack(25, 400, INVALID_NAME),
    "ours-subscribe-short": bm.Nack(26, 400, "invalid SUBSCRIBE payload"),
    "ours-subscribe-no-topic": bm.Nack(27, 400, bm.EMPTY_TOPIC),
    "ours-subscribe-more": bm.Ack(28, 2),
    "ours-poll-short": bm.Nack(29, 400, "invalid POLL payload"),
    "ours-ack-short": bm.Nack(31, 400, "invalid ACK payload"),
    "ours-ack-id-0": bm.Nack(32, 400, bm.ZERO_ID),
    "ours-ack-unknown": bm.Nack(33, 404, bm.UNKNOWN_DELIVERY),
    "ours-ping-payload": bm.Pong(34),
    "ours-poll-qos0-subscription": bm.Publish(38, 0, "bench", b""),
    "ours-poll-again": bm.Publish(3, 1, "bench", b""),
}


BYTES = golden("blipmq")


def only_frame(data: bytes) -> bytes:
    (one,) = bm.frame_reader().feed(data)
    return one


def test_every_golden_line_is_used():
    sent = {(name, ">") for name in [*REQUESTS, *NOT_AS_WE_SEND, *REFUSED, *CLOSED]}
    assert sent | {(name, "<") for name in ANSWERS} == set(BYTES)


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_are_written_and_read_as_they_stand(name):
    assert bm.encode(REQUESTS[name]) == BYTES[name, ">"]
    assert bm.decode(only_frame(BYTES[name, ">"])) == REQUESTS[name]


@pytest.mark.parametrize("name", NOT_AS_WE_SEND)
def test_what_a_payload_may_have_too_much_is_passed_over(name):
    assert bm.decode(only_frame(BYTES[name, ">"])) == NOT_AS_WE_SEND[name]


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_written_and_read_as_they_stand(name):
    assert bm.encode(ANSWERS[name]) == BYTES[name, "<"]
    assert bm.decode(only_frame(BYTES[name, "<"])) == ANSWERS[name]


def test_the_short_cuts_of_the_broker_write_the_same_bytes():
    assert bm.accepted(3, 42) == BYTES["seed-05-ack", "<"]
    assert bm.accepted(1) == BYTES["notes-01-hello", "<"]
    assert bm.delivery_head(1, 1, b"bench", 5) + b"hello" == BYTES["notes-07-poll", "<"]
    assert len(bm.delivery_head(1, 1, b"bench", 5)) == 4 + bm.DELIVERY_BYTES + 5


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_payload_is_refused_with_the_text_of_its_answer(name):
    frame = only_frame(BYTES[name, ">"])
    with pytest.raises(bm.InvalidFrame) as refusal:
        bm.decode(frame)
    assert str(refusal.value) == REFUSED[name]
    assert bm.correlation_id_of(frame) == ANSWERS[name].correlation_id


def test_a_long_length_closes():
    reader = bm.frame_reader()
    assert reader.feed(BYTES["notes-15-length", ">"]) == []
    assert reader.error is not None


@pytest.mark.parametrize("length", [0, 1, 8, (16 << 20) + 1])
def test_lengths_that_no_frame_has(length):
    reader = bm.frame_reader()
    reader.feed(length.to_bytes(4, "big"))
    assert reader.error is not None


def test_the_shortest_and_the_longest_length_are_followed():
    assert len(only_frame(bytes([0, 0, 0, 9]) + bytes(9))) == 9
    assert len(only_frame((16 << 20).to_bytes(4, "big") + bytes(16 << 20))) == 16 << 20


def test_a_listener_may_set_a_lower_limit_but_no_higher_one():
    low = bm.frame_reader(20)
    low.feed((21).to_bytes(4, "big"))
    assert low.error is not None
    high = bm.frame_reader(32 << 20)
    high.feed(((16 << 20) + 1).to_bytes(4, "big"))
    assert high.error is not None


@pytest.mark.parametrize("kind", [0, 10, 255])
def test_an_unknown_type_is_told_apart_from_a_wrong_payload(kind):
    with pytest.raises(bm.UnknownFrameType):
        bm.decode(bytes([kind]) + bytes(8))
    with pytest.raises(bm.UnknownFrameType):
        bm.decode(only_frame(BYTES["notes-15-type", ">"])[:1] + bytes(8))


def test_what_does_not_fit_a_frame_is_not_written():
    with pytest.raises(ValueError, match="16777216"):
        bm.encode(bm.Publish(1, 1, "t", bytes(16 << 20)))
    with pytest.raises(ValueError, match="65535"):
        bm.encode(bm.Publish(1, 1, "t" * 65_536, b""))


@given(messages)
def test_what_is_written_is_read(message):
    assert bm.decode(only_frame(bm.encode(message))) == message


@given(st.binary(min_size=9, max_size=80))
def test_any_frame_is_read_or_refused(frame):
    """And what is read is what the bytes say: writing it gives them back, less what is ignored."""
    try:
        message = bm.decode(frame)
    except (bm.InvalidFrame, bm.UnknownFrameType):
        return
    again = bm.encode(message)[4:]
    assert frame.startswith(again)
    if not isinstance(message, bm.Ping | bm.Pong | bm.Subscribe):
        assert again == frame
