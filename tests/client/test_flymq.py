"""What a user of the blocking FlyMQ client observes, against a scripted peer.

The protocol document's "SDK Compliance Checklist" stands here item by item, but for logins, which
are in test_flymq_admin.py; primitives, strings and byte arrays are in tests/codecs/test_flymq_*.py.
"""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from textwrap import dedent

import pytest

from brokerd.client import flymq
from brokerd.client.errors import ConnectionLost
from brokerd.client.flymq import RECORD_BYTES_MAX, FlymqClient, FlymqError, OutOfStep
from brokerd.codecs import flymq as fm
from brokerd.codecs.flymq import Opcode
from brokerd.errors import RecordTooLarge
from brokerd.values import Record
from tests.client.flymq_peer import Call, client_of, peer
from tests.client.peer import over_tls
from tests.codecs.flymq_answers import consumed, fetched_sdk, fetched_seed

__all__ = ["peer"]

STORED = fm.Produced("t", 2, 7, 1_700_000_000_000, 1, 2)
TWO = [Record(41, b"a"), Record(42, b"hi", b"k")]
FETCHED = fm.Fetched((fm.FetchedRecord(41, None, b"a"), fm.FetchedRecord(42, b"k", b"hi")), 43)
PLACE = fm.PartitionPlace(0, "n", "h:9092", 1, "online", ("n",), ("n",))
EARLIEST = ("t", "g", 1, "earliest")

CALLS: list[Call] = [
    (
        lambda c: c.produce("t", b"hi", key="k", partition=2),
        fm.Produce("t", b"k", b"hi", 2),
        fm.produced(*STORED),
        STORED,
    ),
    (
        lambda c: c.produce("t", b""),
        fm.Produce("t", None, b""),
        fm.produced("t", 0, 0, 5, -1, 0),
        fm.Produced("t", 0, 0, 5, -1, 0),
    ),
    (
        lambda c: c.consume("t", 0, 42),
        fm.Consume("t", 0, 42),
        consumed(b"k", b"hi"),
        fm.Consumed(b"k", b"hi"),
    ),
    (
        lambda c: c.consume("t", 0, 42, zero_copy=True),
        fm.Consume("t", 0, 42, Opcode.CONSUME_ZERO_COPY),
        consumed(None, b"hi", Opcode.CONSUME_ZERO_COPY),
        fm.Consumed(None, b"hi"),
    ),
    (lambda c: c.create_topic("t", 3), fm.CreateTopic("t", 3), fm.ok(Opcode.CREATE_TOPIC), None),
    (
        lambda c: c.metadata("t"),
        fm.Metadata("t"),
        fm.topic_metadata("t", [fm.PartitionOffsets(0, 0, 1, 9)]),
        fm.TopicOffsets("t", (fm.PartitionOffsets(0, 0, 1, 9),)),
    ),
    (
        lambda c: c.subscribe(*EARLIEST),
        fm.Subscribe(*EARLIEST, sdk=True),
        fm.position(Opcode.SUBSCRIBE, 4),
        4,
    ),
    (lambda c: c.commit("t", "g", 1, 5), fm.Commit("t", "g", 1, 5), fm.ok(Opcode.COMMIT), None),
    (
        lambda c: c.fetch("t", 0, 41, 2),
        fm.Fetch("t", 0, 41, 2, sdk=True),
        fetched_sdk(TWO, 43),
        FETCHED,
    ),
    (
        lambda c: c.fetch("t", 0, 41, filter="$.id"),
        fm.Fetch("t", 0, 41, 10, "$.id", sdk=True),
        fetched_sdk([], 43),
        fm.Fetched((), 43),
    ),
    (
        lambda c: c.fetch("t", 0, 41, 2, binary=True),
        fm.Fetch("t", 0, 41, 2, sdk=True, opcode=Opcode.FETCH_BINARY),
        fetched_sdk(TWO, 43, Opcode.FETCH_BINARY),
        FETCHED,
    ),
    (lambda c: c.list_topics(), fm.ListTopics(), fm.topics(["a", "b"]), ("a", "b")),
    (lambda c: c.delete_topic("t"), fm.DeleteTopic("t"), fm.ok(Opcode.DELETE_TOPIC), None),
    (
        lambda c: c.cluster_metadata("t"),
        fm.ClusterMetadata("t"),
        fm.cluster_metadata("c", [("t", [PLACE])]),
        fm.Cluster("c", (fm.TopicPlaces("t", (PLACE,)),)),
    ),
    (
        lambda c: c.get_offset("t", "g", 1),
        fm.GetOffset("t", "g", 1),
        fm.position(Opcode.GET_OFFSET, 43),
        43,
    ),
    (
        lambda c: c.reset_offset("t", "g", 1, "offset", 7),
        fm.ResetOffset("t", "g", 1, "offset", 7, sdk=True),
        fm.ok(Opcode.RESET_OFFSET),
        None,
    ),
    (
        lambda c: c.get_lag("t", "g"),
        fm.GetLag("t", "g", 0),
        fm.lag(1, 1, 3, 2),
        fm.Lag(1, 1, 3, 2),
    ),
]

# -- checklist: all core opcodes -----------------------------------------------------------------


@pytest.mark.parametrize(("call", "request_sent", "answer", "result"), CALLS)
def test_each_call_sends_its_request_and_returns_its_result(
    peer, call, request_sent, answer, result
):
    peer.will_accept(answer)
    with client_of(peer) as client:
        assert call(client) == result
    assert peer.requests() == [request_sent]


def test_every_opcode_that_is_spoken_has_a_call():
    """The checklist wants 01 to 09. Other files here have those from 10 to 52, and of groups."""
    opcodes = {fm.opcode_of(request) for _, request, _, _ in CALLS}
    opcodes |= {one for one in Opcode if 0x10 <= one <= Opcode.CLUSTER_STATUS}
    opcodes |= {Opcode.LIST_GROUPS, Opcode.DESCRIBE_GROUP}
    opcodes |= {Opcode.DELETE_GROUP, Opcode.SEEK_TO_TIMESTAMP}
    assert opcodes == {one for one in Opcode if one < Opcode.AUTH}


def test_the_documents_dialect_can_be_spoken(peer):
    peer.will_accept(fm.position(Opcode.SUBSCRIBE, 4))
    with client_of(peer, sdk=False) as client:
        assert client.subscribe(*EARLIEST) == 4
        peer.answer(fetched_seed(TWO, 43))
        assert client.fetch("t", 0, 41, 2) == FETCHED
        peer.answer(fm.ok(Opcode.RESET_OFFSET))
        client.reset_offset(*EARLIEST)
        with pytest.raises(ValueError, match="filter needs the SDKs' layout"):
            client.fetch("t", 0, 41, 2, "err")
    assert peer.requests() == [
        fm.Subscribe(*EARLIEST),
        fm.Fetch("t", 0, 41, 2),
        fm.ResetOffset(*EARLIEST),
    ]


def test_produced_payloads_can_be_compressed(peer):
    peer.will_accept(fm.produced(*STORED))
    with client_of(peer, gzip=True) as client:
        client.produce("t", b"hi" * 100)
        peer.answer(fm.topics([]))
        client.list_topics()
    (produce, plain) = peer.frames()
    assert (produce[1], plain[1]) == (0x03, 0x01)
    assert len(produce[2]) < 100
    assert fm.decode_request(*produce) == fm.Produce("t", None, b"hi" * 100)


# -- checklist: ERROR ----------------------------------------------------------------------------

TEXT = "topic not found: t"
LAYOUTS = {
    "document with spaces": fm.error(TEXT, sdk=False),
    "sdk": fm.error(TEXT, sdk=True),
    "document": fm.frame(0xFF, b"\0\0\x12" + TEXT.encode()),
    "str alone": fm.frame(0xFF, b"\0\x12" + TEXT.encode()),
    "bare text": fm.frame(0xFF, TEXT.encode(), flags=0),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_error_in_any_layout_raises_its_text_and_the_connection_lives(peer, layout):
    peer.will_accept(LAYOUTS[layout])
    with client_of(peer) as client:
        with pytest.raises(FlymqError, match=f"^{TEXT}$"):
            client.consume("t", 0, 0)
        peer.answer(consumed(None, b"v"))
        assert client.consume("t", 0, 0).value == b"v"
    assert len(peer.requests()) == 2


@pytest.mark.parametrize(("call", "request_sent", "answer", "result"), CALLS)
def test_every_call_may_be_refused(peer, call, request_sent, answer, result):
    peer.will_accept(fm.error("no room", sdk=True))
    with client_of(peer) as client, pytest.raises(FlymqError, match=r"^no room$"):
        call(client)


# -- checklist: magic byte and size ------------------------------------------------------------

GOOD = fm.topics(["t"])


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (b"\xae" + GOOD[1:], "begins with 0xAE, and not with 0xAF"),
        (b"HTTP/1.1 400 Bad Request\r\n", "begins with 0x48"),
        (b"\xaf\x02" + GOOD[2:], "version 2 is not supported"),
        (b"\xaf\x01\x08\x01\x02\x00\x00\x01", "33554433 bytes is over the limit of 33554432"),
        (b"\xaf\x01\x08\x01\xff\xff\xff\xff", "4294967295 bytes is over the limit"),
        (fm.ok(Opcode.COMMIT), "opcode 6 was answered where 8 was asked"),
        (fm.frame(8, b"\xff\xff\xff\xff"), "LIST_TOPICS cannot be read"),
        (fm.frame(8, bytes(5)), "LIST_TOPICS has 1 bytes left over"),
        (GOOD * 2, "without a request"),
    ],
)
def test_a_peer_out_of_step_is_dropped_and_not_asked_again(peer, answer, match):
    """Though LIST_TOPICS may be sent twice: it would get the same again."""
    peer.will_accept(answer)
    peer.will_accept(GOOD)
    with client_of(peer) as client:
        with pytest.raises(OutOfStep, match=match):
            client.list_topics()
        assert peer.attempts == 1
        assert client.list_topics() == ("t",)


def test_an_answer_of_32_mb_is_read():
    value = bytes(fm.MAX_LENGTH - 8)
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=lambda: ours.sendall(consumed(None, value)))
    thread.start()
    with ours, FlymqClient("b:1", connect=lambda *_: theirs, timeout=60.0) as client:
        assert client.consume("t", 0, 0).value == value
        thread.join(60.0)


def test_a_record_that_no_answer_could_hold_is_refused_before_anything_is_sent(peer):
    with client_of(peer) as client:
        with pytest.raises(RecordTooLarge, match="take 33554405 bytes, and they may have 33554404"):
            client.produce("t", bytes(RECORD_BYTES_MAX), b"k")
        with pytest.raises(RecordTooLarge):
            client.send_many([fm.ListTopics(), fm.Produce("t", None, bytes(RECORD_BYTES_MAX + 1))])
    assert peer.attempts == 0
    assert len(fetched_sdk([Record(0, bytes(RECORD_BYTES_MAX))], 1)) == 8 + fm.MAX_LENGTH


# -- checklist: TLS ------------------------------------------------------------------------------


def test_a_large_answer_arrives_over_tls(tmp_path):
    value = bytes(1_000_000)
    answer = consumed(b"k", value)
    with (
        over_tls(tmp_path, fm.FrameReader().feed, answer) as (connect, context),
        FlymqClient("broker:9092", connect=connect, ssl_context=context, timeout=60.0) as client,
    ):
        assert client.consume("t", 0, 0) == fm.Consumed(b"k", value)


def test_a_certificate_that_is_not_trusted_is_not_tried_again(tmp_path):
    attempts: list[float] = []
    slept: list[float] = []
    with over_tls(tmp_path, fm.FrameReader().feed) as (connect, _):

        def counted(address: object, timeout: float) -> socket.socket:
            attempts.append(timeout)
            return connect(address, timeout)

        with (
            FlymqClient(
                "broker:9092",
                connect=counted,
                ssl_context=ssl.create_default_context(),
                timeout=60.0,
                resend=True,
                sleep=slept.append,
            ) as client,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            client.list_topics()
    assert (len(attempts), slept) == (1, [])


# -- checklist: connecting again, waiting longer each time ----------------------------------------


def test_it_connects_again_waiting_twice_as_long_each_time(peer):
    peer.will_refuse(5)
    peer.will_accept(fm.produced(*STORED))
    with client_of(peer) as client:
        assert client.produce("t", b"hi") == STORED
    assert peer.slept == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert peer.attempts == 6


def test_the_next_call_begins_with_the_shortest_wait(peer):
    peer.will_refuse(2)
    peer.will_accept(GOOD, then_close=True)
    with client_of(peer, delays=(1.0, 2.0, 4.0)) as client:
        client.list_topics()
        assert peer.slept == [1.0, 2.0]
        peer.will_refuse(1)
        peer.will_accept(GOOD)
        client.list_topics()
    assert peer.slept == [1.0, 2.0, 1.0, 2.0]


def test_without_delays_nothing_is_tried_again(peer):
    peer.will_accept(then_close=True)
    with client_of(peer, delays=()) as client:
        with pytest.raises(ConnectionLost, match="broker:9092 closed"):
            client.list_topics()
        with pytest.raises(ConnectionRefusedError):
            client.list_topics()
    assert peer.slept == []


TWICE = [one for one in CALLS if not isinstance(one[1], fm.Produce | fm.DeleteTopic)]
ONCE = [one for one in CALLS if isinstance(one[1], fm.Produce | fm.DeleteTopic)]


@pytest.mark.parametrize(("call", "request_sent", "answer", "result"), TWICE)
def test_what_is_harmless_twice_is_sent_again(peer, call, request_sent, answer, result):
    peer.will_accept(then_close=True)
    peer.will_accept(answer[:3], then_close=True)
    peer.will_accept(answer)
    with client_of(peer) as client:
        assert call(client) == result
    assert peer.requests(0) == peer.requests(1) == peer.requests(2) == [request_sent]
    assert peer.slept == [0.1, 0.2]


@pytest.mark.parametrize(("call", "request_sent", "answer", "result"), ONCE)
def test_what_is_not_harmless_twice_is_not_sent_again(peer, call, request_sent, answer, result):
    """The next call finds a new connection."""
    peer.will_accept(then_close=True)
    peer.will_accept(answer)
    with client_of(peer) as client:
        with pytest.raises(ConnectionLost):
            call(client)
        assert peer.attempts == 1
        assert call(client) == result


@pytest.mark.parametrize(("call", "request_sent", "answer", "result"), ONCE)
def test_it_is_sent_again_when_asked_for(peer, call, request_sent, answer, result):
    peer.will_accept(then_close=True)
    peer.will_accept(answer)
    with client_of(peer, resend=True) as client:
        assert call(client) == result
    assert peer.requests(0) == peer.requests(1) == [request_sent]


# -- many at once ------------------------------------------------------------------------------

LIST = fm.ListTopics()
PRODUCE = fm.Produce("t", None, b"x")


def test_requests_sent_together_are_answered_in_order(peer):
    peer.will_accept(fm.produced(*STORED), fm.error("no", sdk=True), fetched_seed([], 1))
    requests = [PRODUCE, LIST, fm.Fetch("t", 0, 0, 1)]
    with client_of(peer) as client:
        assert client.send_many(requests) == [STORED, fm.Failed("no"), fm.Fetched((), 1)]
        assert client.send_many([]) == []
    assert peer.requests() == requests


COUNT = 3_000


def test_more_bytes_than_any_buffer_holds_can_be_sent_together():
    """The peer reads no request before its last answer is taken: neither waits for ever."""
    ours, theirs = socket.socketpair()
    record = [Record(0, bytes(10_000))]

    def echo() -> None:
        reader, answered = fm.FrameReader(), 0
        while answered < COUNT:
            for _ in reader.feed(ours.recv(65_536)):
                ours.sendall(fetched_sdk(record, answered))
                answered += 1

    thread = threading.Thread(target=echo)
    thread.start()
    requests = [fm.Fetch("t", 0, 0, 1, "f" * 200, sdk=True)] * COUNT
    with ours, FlymqClient("b:1", connect=lambda *_: theirs, timeout=60.0) as client:
        answers = client.send_many(requests)
        thread.join(60.0)
    assert [one.next_offset for one in answers] == list(range(COUNT))


# -- arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda c: c.produce("t", "text"), TypeError, "value must be bytes, not a str"),
        (lambda c: c.produce("t", None), TypeError, "value must be bytes, not None"),
        (lambda c: c.produce("t", b"", 5), TypeError, "key must be bytes or str, not a int"),
        (lambda c: c.produce("t", b"", "\ud800"), ValueError, "key cannot be said in UTF-8"),
        (lambda c: c.produce(b"t", b""), TypeError, "topic must be a str, not a bytes"),
        (lambda c: c.produce("t" * 65_536, b""), ValueError, "65536 bytes is too long"),
        (lambda c: c.produce("\ud800", b""), ValueError, "cannot be said in UTF-8"),
        (lambda c: c.produce("t", b"", partition=-1), ValueError, "partition must be from 0"),
        (lambda c: c.create_topic("t", -1), ValueError, "partitions must be from 0"),
        (lambda c: c.query_audit("ann"), TypeError, "wanted must be a QueryAudit, not a str"),
        (lambda c: c.consume("t", 1 << 31, 0), ValueError, "partition must be from 0 to 2"),
        (lambda c: c.consume("t", 0, -1), ValueError, "offset must be from 0"),
        (lambda c: c.commit("t", "g", 0, 1 << 63), ValueError, "offset must be from 0"),
        (lambda c: c.subscribe("t", "g", 0, "x" * 256), ValueError, "256 bytes is too long"),
        (lambda c: c.reset_offset("t", "g", 0, "offset"), ValueError, "goes with the mode"),
        (lambda c: c.reset_offset("t", "g", 0, "latest", 5), ValueError, "goes with the mode"),
        (lambda c: c.fetch("t", 0, 0, 10, "x" * 65_536), ValueError, "65536 bytes is too long"),
    ],
)
def test_a_wrong_argument_leaves_a_usable_client(peer, call, error, match):
    peer.will_accept(GOOD)
    with client_of(peer) as client:
        with pytest.raises(error, match=match):
            call(client)
        assert client.list_topics() == ("t",)


def test_more_messages_than_the_wire_can_ask_for_are_the_most_it_can(peer):
    peer.will_accept(fetched_sdk([], 0))
    with client_of(peer) as client:
        client.fetch("t", 0, 0, 1 << 40)
    assert peer.requests()[0].max_messages == (1 << 31) - 1


def test_importing_the_blocking_client_does_not_import_twisted():
    code = "import sys, brokerd.client.flymq; assert 'twisted' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# -- the page ----------------------------------------------------------------------------------

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "clients.rst").read_text()
(EXAMPLE,) = re.findall(
    r"\.\. code-block:: python\n\n((?:    .*\n|\n)+?(?:    .*client\.subscribe.*\n)(?:    .*\n)+)",
    PAGE,
)


def test_the_example_runs(monkeypatch, capsys):
    ours, theirs = socket.socketpair()
    answers = [
        fm.position(Opcode.SUBSCRIBE, 41),
        fetched_sdk(TWO, 43),
        fm.ok(Opcode.COMMIT),
    ]

    def serve() -> None:
        reader = fm.FrameReader()
        for answer in answers:
            while not reader.feed(ours.recv(65_536)):
                pass
            ours.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    client = FlymqClient("broker:9092", connect=lambda *_: theirs, timeout=60.0)
    monkeypatch.setattr(flymq, "FlymqClient", lambda address: client)
    exec(dedent(EXAMPLE), {})
    thread.join(60.0)
    ours.close()
    assert capsys.readouterr().out == "41 None b'a'\n42 b'k' b'hi'\n"
