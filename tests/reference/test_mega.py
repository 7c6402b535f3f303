"""MEGA's own clients, as its notes describe them, against a real broker."""

from __future__ import annotations

import struct

import pytest

from benchmarks.process import BrokerProcess
from tests.reference import mega
from tests.reference.mega import ErrorCode, MessageClient


@pytest.fixture
def address(broker: BrokerProcess) -> str:
    """Where MEGA listens."""
    return broker.address_of("mega")


def test_create_produce_and_consume_scripts(address: str) -> None:
    """Consume finds no topic at first; the created name shows with its two length bytes."""
    assert mega.consume_script(address, "orders", 0).error is ErrorCode.TOPIC_NOT_FOUND
    assert mega.produce_script(address, "orders", "x").error is ErrorCode.TOPIC_NOT_FOUND
    assert mega.create_script(address, "orders").topic == "\x00\x06orders"
    assert mega.create_script(address, "orders").error is ErrorCode.TOPIC_ALREADY_EXISTS
    first = mega.produce_script(address, "orders", "first")
    assert (first.correlation_id, first.offset) == (1, 0)
    assert mega.produce_script(address, "orders", "zweite: äöü").offset == 1
    read = mega.consume_script(address, "orders", 0)
    assert (read.payload, read.next_offset, read.timestamp) == ("first", 1, first.timestamp)
    assert mega.consume_script(address, "orders", 1).payload == "zweite: äöü"
    assert mega.consume_script(address, "orders", 2).error is ErrorCode.INVALID_OFFSET
    assert mega.consume_script(address, "orders", -1).error is ErrorCode.INVALID_OFFSET


def test_an_answer_comes_whole_in_one_receive(address: str) -> None:
    """A message of 4,075 bytes just fits the client's only receive, again and again."""
    client = MessageClient(address)
    client.create_topic("whole")
    text = "x" * 4075
    for number in range(50):
        assert client.produce("whole", text).offset == number
        assert client.consume("whole", number).payload == text
    client.close()


def test_a_larger_message_is_cut_by_the_client(address: str) -> None:
    """The client's own fault: what it left in the socket is its next answer."""
    client = MessageClient(address)
    client.create_topic("cut")
    client.produce("cut", "y" * 9000)
    assert client.consume("cut", 0).payload == "y" * 4075
    assert client.produce("cut", "next").correlation_id == struct.unpack(">i", b"yyyy")[0]
    client.close()


def test_a_long_name_is_created_though_the_client_cannot_show_it(address: str) -> None:
    """From 128 characters up the low length byte is no UTF-8 to the message client."""
    name = "n" * 200
    with pytest.raises(UnicodeDecodeError):
        mega.create_script(address, name)
    assert mega.produce_script(address, name, "x").offset == 0
    client = mega.ConcurrentClient(address)
    assert client.create_topic("m" * 200) == "m" * 200
    client.close()


def test_every_code_is_one_that_the_client_knows(address: str) -> None:
    """Refusals of all kinds come as codes of its list, and the connection goes on."""
    client = MessageClient(address)
    for number, name in enumerate(("", "bad topic", "n" * 256, "ü")):
        answer = client.create_topic(name, correlation_id=-number)
        assert (answer.correlation_id, answer.error) == (-number, ErrorCode.INVALID_REQUEST)
    client.create_topic("limited")
    too_large = client.produce("limited", "z" * (1 << 20) + "z")
    assert too_large.error is ErrorCode.MESSAGE_TOO_LARGE
    assert client.produce("limited", "z" * (1 << 20)).offset == 0
    client.close()


def test_concurrency_test_ends_with_the_unpack_error_of_its_consumer(address: str) -> None:
    """All six messages are stored; the consumer ends at the end of the log, as it always did.

    Where that end is when it gets there depends on the producers. A second run of the whole script
    stops at once, because its topic exists.
    """
    outcome = mega.concurrency_test(address)
    assert sorted(outcome.produced) == [0, 1, 2, 3, 4, 5]
    log = [outcome.produced[offset].decode() for offset in range(6)]
    assert outcome.consumed == log[: len(outcome.consumed)]
    unpack_error = "consumer: unpack requires a buffer of 13 bytes"
    assert outcome.errors == [unpack_error]
    for number in range(mega.PRODUCERS):
        sent = [text for text in log if text.endswith(f"producer {number}")]
        assert sent == [f"Message {k} from producer {number}" for k in range(3)]

    late = mega.Outcome()
    mega.consume_for(address, 5.0, late)
    assert (late.consumed, late.errors) == (log, [unpack_error])

    with pytest.raises(struct.error):
        mega.concurrency_test(address)
