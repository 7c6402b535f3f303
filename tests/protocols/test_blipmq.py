"""BlipMQ served by a whole broker: docs/protocols/blipmq.rst, row by row."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.broker import BrokerSettings, TopicSettings
from brokerd.codecs import blipmq as bm
from brokerd.errors import NoSpace
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.blipmq.connection import BlipmqFactory, BlipmqSettings
from brokerd.security import OPEN
from brokerd.security.audit import AUDIT_TOPIC
from brokerd.security.quotas import Quota
from brokerd.values import Encoding, Format
from brokerd.wal import WalOptions
from simulator.machine.disk import SimDisk
from tests.broker.desk import produce, read
from tests.codecs.test_blipmq import BYTES, INVALID_NAME
from tests.protocols.blipmq_desk import KEY, BlipmqClient, BlipmqHouse
from tests.strategies.blipmq import messages as any_message

MIB = 1 << 20
HELLO, AUTH = bm.Hello(1), bm.Auth(2, KEY)


def nack(correlation_id: int, code: int, text: str) -> bm.Nack:
    return bm.Nack(correlation_id, code, text)


# -- bytes ----------------------------------------------------------------------------------------

ALONE = ["notes-02-hello-version", "notes-03-ping-before-auth", "notes-03-auth-before-hello"]
"""On a connection of their own."""
CLOSES = ["notes-15-length", "notes-15-type"]
ELSEWHERE = ["notes-14-publish-refused"]
"""The reference's own words for what its log refuses."""
CONVERSATION = [
    "ours-hello-short",
    "notes-01-hello",
    "ours-hello-twice",
    "ours-auth-short",
    "ours-auth-not-utf8",
    "notes-04-auth-wrong",
    "notes-04-auth",
    "ours-auth-twice",
    *[
        name
        for name, way in BYTES
        if way == ">"
        and not name.startswith("seed-")
        and not name.startswith(("notes-01", "notes-02", "notes-03", "notes-04", "ours-hello"))
        and not name.startswith("ours-auth")
        and name not in [*CLOSES, *ELSEWHERE]
    ],
]


def test_the_conversation_is_answered_byte_for_byte() -> None:
    """What was confirmed with the reference server is what this broker sends."""
    house = BlipmqHouse()
    for name in ALONE:
        stranger = house.stranger()
        stranger.send_bytes(BYTES[name, ">"])
        house.run()
        assert stranger.received_bytes() == BYTES[name, "<"], name
        assert stranger.is_open
    client = house.stranger()
    for name in CONVERSATION:
        client.send_bytes(BYTES[name, ">"])
        house.run()
        assert client.received_bytes() == BYTES.get((name, "<"), b""), name
        assert client.is_open, name
    used = {*ALONE, *CONVERSATION, *CLOSES, *ELSEWHERE}
    assert used == {name for name, _ in BYTES if not name.startswith("seed-")}


def test_the_conversation_may_come_in_one_piece() -> None:
    """Also byte by byte: the same answers in the same order."""
    sent = b"".join(BYTES[name, ">"] for name in CONVERSATION)
    expected = b"".join(BYTES.get((name, "<"), b"") for name in CONVERSATION)
    for size in (len(sent), 1):
        house = BlipmqHouse()
        client = house.stranger()
        for start in range(0, len(sent), size):
            client.send_bytes(sent[start : start + size])
        house.run()
        assert client.received_bytes() == expected


def test_the_frames_of_the_document_are_understood() -> None:
    house = BlipmqHouse(BlipmqSettings(api_keys=("dev-key",)))
    client = house.stranger()
    for name in ("seed-01-hello", "seed-02-auth", "seed-03-subscribe", "seed-04-publish"):
        client.send_bytes(BYTES[name, ">"])
    house.run()
    assert client.answers() == [bm.Ack(1), bm.Ack(2), bm.Ack(3, 1)]
    assert client.poll(1) == bm.Publish(1, 1, "demo", b"hi")


@pytest.mark.parametrize("name", CLOSES)
def test_what_is_out_of_step_closes_after_the_frames_before_it(name: str) -> None:
    house = BlipmqHouse()
    client = house.client()
    client.send_bytes(bm.encode(bm.Ping(7)) + BYTES[name, ">"] + bm.encode(bm.Ping(8)))
    house.run()
    assert client.answers() == [bm.Pong(7)]
    assert not client.is_open


@pytest.mark.parametrize("size", [0, 8])
def test_lengths_below_9_close(size: int) -> None:
    house = BlipmqHouse()
    client = house.client()
    client.send_bytes(size.to_bytes(4, "big"))
    house.run()
    assert not client.is_open and client.answers() == []


def test_an_unknown_type_closes_before_auth_too_once_it_is_complete() -> None:
    house = BlipmqHouse()
    client = house.stranger()
    data = BYTES["notes-15-type", ">"]
    client.send_bytes(data[:-1])
    house.run()
    assert client.is_open
    client.send_bytes(data[-1:])
    house.run()
    assert not client.is_open


def test_a_lower_limit_of_the_listener_holds() -> None:
    house = BlipmqHouse(limits=Limits(frame_bytes=100))
    client = house.client()
    client.send(bm.Publish(4, 1, "t", bytes(80)), bm.Ping(5))
    client.send_bytes((101).to_bytes(4, "big"))
    house.run()
    assert client.answers() == [bm.Pong(5)] and not client.is_open


# -- HELLO and AUTH ---------------------------------------------------------------------------


def test_a_version_that_is_not_known_may_be_followed_by_one_that_is() -> None:
    client = BlipmqHouse().stranger()
    answers = client.ask(bm.Hello(1, 2), bm.Hello(2, 0), bm.Hello(3), AUTH)
    assert answers == [
        nack(1, 426, bm.WRONG_VERSION),
        nack(2, 426, bm.WRONG_VERSION),
        bm.Ack(3),
        bm.Ack(2),
    ]


def test_everything_else_waits_for_auth() -> None:
    client = BlipmqHouse().stranger()
    frames = [
        bm.Publish(10, 1, "t", b"x"),
        bm.Subscribe(11, "t", 1),
        bm.Ack(12, 1),
        bm.Nack(13, 400, "?"),
        bm.Ping(14),
        bm.Pong(15),
        bm.Poll(16, 1),
    ]
    refused = [nack(number, 401, bm.UNAUTHENTICATED) for number in range(10, 17)]
    assert client.ask(*frames) == refused
    assert client.ask(HELLO, *frames) == [bm.Ack(1), *refused]
    assert client.ask(AUTH, bm.Ping(14)) == [bm.Ack(2), bm.Pong(14)]


@pytest.mark.parametrize("keys", [("a",), ("b", "bench-key", "ü"), ("",)])
def test_one_of_the_keys_lets_in_and_nothing_else_does(keys: tuple[str, ...]) -> None:
    wrong = ["nope", "bench-key ", "bench-ke", "B", "ü\0"]
    for key in keys:
        client = BlipmqHouse(BlipmqSettings(api_keys=keys)).stranger()
        answers = client.ask(HELLO, *[bm.Auth(2, one) for one in wrong], bm.Auth(3, key))
        assert answers == [bm.Ack(1), *[nack(2, 401, bm.WRONG_KEY)] * len(wrong), bm.Ack(3)]


@pytest.mark.parametrize("key", ["", "anything"])
def test_without_keys_any_key_lets_in(key: str) -> None:
    client = BlipmqHouse(BlipmqSettings()).stranger()
    assert client.ask(HELLO, bm.Auth(2, key)) == [bm.Ack(1), bm.Ack(2)]


def test_keys_stay_out_of_texts() -> None:
    assert "bench-key" not in repr(BlipmqSettings(api_keys=("bench-key",)))


# -- publishing -------------------------------------------------------------------------------


def test_what_is_published_stands_in_the_log() -> None:
    """As bytes, with the QoS where it is 0."""
    house = BlipmqHouse()
    client = house.client()
    client.publish(b"one", b"")
    client.publish(b"zero", qos=0)
    records = [read(house, "t", offset) for offset in range(3)]
    assert [record.value for record in records] == [b"one", b"", b"zero"]
    assert [record.metadata for record in records] == [None, None, b"\x81\xa3qos\x00"]
    assert {(record.encoding, record.producer_format, record.key) for record in records} == {
        (Encoding.BYTES, Format.BLIPMQ, None)
    }
    assert {record.expires_at_us for record in records} == {0}


def test_messages_may_expire() -> None:
    house = BlipmqHouse(BlipmqSettings(api_keys=(KEY,), message_ttl_us=5_000_000))
    client = house.client()
    one = client.subscribe()
    client.publish(b"short-lived")
    house.pass_time(2.0, step=0.5)
    client.publish(b"older")
    house.pass_time(4.0, step=0.5)
    client.publish(b"young")
    assert client.poll_all(one) == [b"older", b"young"]


def test_otherwise_they_live_as_the_topic_says() -> None:
    house = BlipmqHouse()
    house.broker.topics.create("t", 1, TopicSettings(ttl_us=5_000_000))
    client = house.client()
    one = client.subscribe()
    client.publish(b"short-lived")
    house.pass_time(6.0, step=0.5)
    assert client.poll_all(one) == []


def test_the_largest_message_arrives_and_is_delivered() -> None:
    options = WalOptions(segment_bytes=64 * MIB, free_bytes_min=0)
    house = BlipmqHouse(options=options)
    client = house.client()
    one = client.subscribe()
    message = bytes(bm.MAX_LENGTH - bm.DELIVERY_BYTES - 1)
    client.publish(message)
    assert client.poll(one) == bm.Publish(1, 1, "t", message)


def test_pong_waits_until_what_was_published_is_durable() -> None:
    for qos in (0, 1):
        house = BlipmqHouse()
        client = house.client()
        client.publish(b"before")
        client.send(bm.Publish(4, qos, "t", b"x"), bm.Ping(5))
        assert client.first_answers() == [bm.Pong(5)]
        house = house.crash()
        assert house.broker.topics.existing("t").partition(0).next_offset == 2


LIKE_PUBLISHES = st.lists(
    st.builds(
        lambda count, qos, topic, message, pings: (
            [bm.Publish(3, qos, topic, message), *[bm.Ping(7)] * pings] * count
        ),
        st.integers(1, 9),
        st.sampled_from([1, 1, 1, 0, 2]),
        st.sampled_from(["t", "t", "t", "u", "new", "", "two"]),
        st.binary(max_size=9),
        st.integers(0, 2),
    ),
    max_size=6,
).map(lambda runs: [one for run in runs for one in run])


@given(LIKE_PUBLISHES)
def test_publishes_in_one_read_are_stored_as_one_by_one(publishes: list[bm.Message]) -> None:
    """Those of QoS 1 for one topic are carried out together."""
    found = []
    for together in (True, False):
        house = BlipmqHouse()
        client = house.client()
        for topic, partitions in (("t", 1), ("u", 1), ("two", 2)):
            house.broker.topics.create(topic, partitions)
        house.run()
        if together:
            client.send(*publishes)
        for one in () if together else publishes:
            client.send(one)
            house.run()
        client.send(bm.Ping(5))
        house.run()
        stored = {
            (name, index): [
                read(house, name, offset, index)._replace(append_time_us=0)
                for offset in range(partition.next_offset)
            ]
            for name in ("t", "u", "two", "new")
            if (topic_found := house.broker.topics.find(name)) is not None
            for index, partition in enumerate(topic_found.partitions)
        }
        found.append((client.answers(), stored))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("settings", "steps"),
    [(BlipmqSettings(api_keys=(KEY,)), [12]), (BlipmqSettings((KEY,), message_ttl_us=9), [])],
)
def test_a_run_of_publishes_is_one_step(
    monkeypatch: pytest.MonkeyPatch, settings: BlipmqSettings, steps: list[int]
) -> None:
    """Otherwise the test above would hold without it; not if messages have a time to live."""
    house = BlipmqHouse(settings)
    client = house.client()
    client.publish(b"first")
    counts: list[int] = []
    append = house.broker.appender.append_values

    def appended(partition: object, values: list[bytes], *rest: object) -> int:
        counts.append(len(values))
        return append(partition, values, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(house.broker.appender, "append_values", appended)
    assert client.ask(*[bm.Publish(4, 1, "t", b"x"), bm.Ping(6)] * 12) == [bm.Pong(6)] * 12
    assert counts == steps
    assert house.broker.topics.existing("t").partition(0).next_offset == 13


def test_no_answer_overtakes_a_publish_of_its_connection() -> None:
    """Neither a NACK, which shows nothing, nor the PONG of a later read."""
    house = BlipmqHouse()
    client, other = house.client(), house.client()
    client.publish(b"before")
    client.send(bm.Publish(4, 1, "t", b"x"))
    client.send(bm.Publish(7, 1, "", b"x"))
    client.send(bm.Ping(5))
    other.send(bm.Ping(6))
    assert client.answers() == []
    assert other.answers() == [bm.Pong(6)]  # which waits for nobody else's
    house.run()
    assert client.answers() == [nack(7, 400, bm.EMPTY_TOPIC), bm.Pong(5)]


def test_a_poll_behind_a_publish_finds_the_message() -> None:
    house = BlipmqHouse()
    client = house.stranger()
    answers = client.ask(
        HELLO, AUTH, bm.Subscribe(3, "t", 1), bm.Publish(4, 1, "t", b"x"), bm.Poll(5, 1)
    )
    assert answers == [bm.Ack(1), bm.Ack(2), bm.Ack(3, 1), bm.Publish(1, 1, "t", b"x")]


class TestRefusals:
    def full_house(self, monkeypatch: pytest.MonkeyPatch) -> tuple[BlipmqHouse, BlipmqClient]:
        house = BlipmqHouse()
        client = house.client()
        client.publish(b"before")

        def refuse(size: int, partitions: int = 1) -> None:
            raise NoSpace("the disk is full; free some space")

        monkeypatch.setattr(house.broker.group_commit, "admit", refuse)
        return house, client

    def test_qos_1_is_told_and_qos_0_is_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        house, client = self.full_house(monkeypatch)
        answers = client.ask(bm.Publish(4, 1, "t", b"x"), bm.Publish(5, 0, "t", b"x"), bm.Ping(6))
        text = "durable publish failed: the disk is full; free some space"
        assert answers == [nack(4, 500, text), bm.Pong(6)]
        assert house.factory.publishes_dropped == 1
        assert house.broker.topics.existing("t").partition(0).next_offset == 1

    def test_a_disk_that_is_full_refuses_until_there_is_room(self) -> None:
        options = WalOptions(MIB, free_bytes_min=0)
        house = BlipmqHouse(disk=SimDisk(capacity=5 * MIB), options=options)
        client = house.client()
        answers: list[bm.Message] = []
        sent = 0
        while not answers:
            sent += 1
            assert sent < 100
            answers = client.ask(bm.Publish(sent, 1, "t", bytes(200_000)))
        (refusal,) = answers
        assert isinstance(refusal, bm.Nack)
        assert (refusal.correlation_id, refusal.code) == (sent, 500)
        assert refusal.text.startswith("durable publish failed: the disk has no room")
        assert client.ask(bm.Publish(0, 0, "t", bytes(200_000)), bm.Ping(1)) == [bm.Pong(1)]
        assert house.factory.publishes_dropped == 1
        house = house.crash()
        assert house.broker.topics.existing("t").partition(0).next_offset == sent - 1

    def test_too_many_topics(self) -> None:
        house = BlipmqHouse(settings=BrokerSettings(max_topics=1))
        client = house.client()
        client.publish(b"x")
        answers = client.ask(
            bm.Publish(7, 1, "u", b"x"), bm.Publish(8, 0, "u", b"x"), bm.Subscribe(9, "u", 1)
        )
        assert [(one.correlation_id, one.code) for one in answers] == [(7, 500), (9, 500)]
        assert answers[0].text.startswith("durable publish failed: there are 1 topics")
        assert answers[1].text.startswith("subscribe failed: there are 1 topics")

    def test_a_broker_that_stops(self) -> None:
        house = BlipmqHouse()
        client = house.client()
        client.publish(b"x")
        house.broker.stop()
        (refusal,) = client.ask(bm.Publish(4, 1, "t", b"x"))
        assert isinstance(refusal, bm.Nack) and refusal.code == 500
        assert refusal.text.startswith("durable publish failed: the broker is shutting down")

    @pytest.mark.parametrize("qos", [0, 1])
    def test_a_name_that_no_topic_may_have(self, qos: int) -> None:
        client = BlipmqHouse().client()
        assert client.ask(bm.Publish(4, qos, "a\nb", b"x"), bm.Subscribe(5, "a\nb", qos)) == [
            nack(4, 400, INVALID_NAME),
            nack(5, 400, INVALID_NAME),
        ]
        (long, own) = client.ask(
            bm.Publish(6, qos, "x" * 256, b""), bm.Publish(7, qos, "__brokerd.x", b"")
        )
        assert (long.code, own.code) == (400, 400)


class TestBackPressure:
    def test_while_the_log_is_busy_the_connection_is_read_no_further(self) -> None:
        """Nothing is refused, and nothing lost."""
        house = BlipmqHouse(settings=BrokerSettings(max_uncommitted_bytes=MIB))
        client = house.client()
        count, size = 100, 100_000
        for number in range(count):
            client.send(bm.Publish(number, number % 2, "t", bytes(size)))
        client.send(bm.Ping(1))
        assert client.unread_bytes > 50 * size
        assert house.broker.group_commit.uncommitted_bytes < 2 * MIB
        house.run()
        assert client.answers() == [bm.Pong(1)]
        assert house.broker.topics.existing("t").partition(0).next_offset == count

    def test_a_publisher_that_never_reads_is_read_to_the_end(self) -> None:
        """Its NACKs are dropped when they would pile up."""
        house = BlipmqHouse()
        client = house.client()
        client.stop_reading()
        bad = bm.encode(bm.Publish(4, 1, "", b"x"))
        good = bm.encode(bm.Publish(5, 1, "t", b"x"))
        for _ in range(100):
            client.send_bytes((bad * 40 + good) * 10)
            house.run()
        assert client.unread_bytes == 0
        assert len(client.transport.buffered) < 200_000
        assert house.factory.nacks_dropped > 30_000
        assert house.broker.topics.existing("t").partition(0).next_offset == 1_000
        client.send_no_more()
        house.run()
        client.read_on()
        house.run()
        assert not client.is_open

    def test_unread_acknowledgements_of_unknown_tags_are_dropped_too(self) -> None:
        house = BlipmqHouse()
        client = house.client()
        client.stop_reading()
        client.send_bytes(bm.encode(bm.Ack(1, 99)) * 5_000)
        house.run()
        client.send_bytes(bm.encode(bm.Ack(1, 99)) * 5_000)
        house.run()
        assert client.unread_bytes == 0
        assert house.factory.nacks_dropped > 0
        assert len(client.transport.buffered) < 500_000

    def test_a_frame_with_an_answer_to_wait_for_is_held_until_the_peer_reads(self) -> None:
        house = BlipmqHouse()
        client = house.client()
        client.stop_reading()
        while not house.factory.nacks_dropped:
            client.send_bytes(bm.encode(bm.Publish(4, 1, "", b"x")) * 1_000)
            house.run()
        client.send(bm.Publish(5, 1, "t", b"x"), bm.Ping(6), bm.Publish(7, 1, "t", b"y"))
        client.send(*[bm.Ping(8)] * 50_000)
        house.run()
        assert house.broker.topics.existing("t").partition(0).next_offset == 1
        assert client.unread_bytes > 0
        client.read_on()
        house.run()
        answers = [one for one in client.answers() if not isinstance(one, bm.Nack)]
        assert answers == [bm.Pong(6), *[bm.Pong(8)] * 50_000]
        assert house.broker.topics.existing("t").partition(0).next_offset == 2
        assert client.ask(bm.Publish(9, 1, "", b"x")) == [nack(9, 400, bm.EMPTY_TOPIC)]

    def test_a_pong_does_not_hide_refusals_that_were_dropped(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        house = BlipmqHouse()
        client = house.client()
        client.stop_reading()
        while not house.factory.nacks_dropped:
            client.send_bytes(bm.encode(bm.Publish(4, 1, "", b"x")) * 1_000)
            house.run()

        def refuse(size: int, partitions: int = 1) -> None:
            raise NoSpace("the disk is full")

        with monkeypatch.context() as full:
            full.setattr(house.broker.group_commit, "admit", refuse)
            client.send(bm.Publish(5, 1, "t", b"x"), bm.Publish(6, 1, "t", b"x"))
        client.send(bm.Ping(7), bm.Ping(8))
        house.run()
        client.read_on()
        house.run()
        refusal, *pongs = client.answers()[-3:]
        assert isinstance(refusal, bm.Nack) and (refusal.correlation_id, refusal.code) == (7, 500)
        assert refusal.text.startswith("durable publish failed: 2 refusals were not sent")
        assert pongs == [bm.Pong(7), bm.Pong(8)]

    def test_a_bad_name_is_told_on_a_full_disk_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nobody should try it again and again."""
        house = BlipmqHouse()
        client = house.client()

        def refuse(size: int, partitions: int = 1) -> None:
            raise NoSpace("the disk is full")

        monkeypatch.setattr(house.broker.group_commit, "admit", refuse)
        (named, full) = client.ask(bm.Publish(5, 1, "t\n", b"x"), bm.Publish(6, 1, "t", b"x"))
        assert (named.correlation_id, named.code) == (5, 400)
        assert (full.correlation_id, full.code) == (6, 500)
        assert house.broker.topics.find("t") is None

    def test_what_was_sent_before_the_end_is_carried_out(self) -> None:
        """Also what the log had no room for at once."""
        house = BlipmqHouse(settings=BrokerSettings(max_uncommitted_bytes=MIB))
        client = house.client()
        client.send(*[bm.Publish(4, 1, "t", bytes(100_000)) for _ in range(50)])
        client.send_no_more()
        house.run()
        assert not client.is_open
        assert house.broker.topics.existing("t").partition(0).next_offset == 50


# -- subscribing ------------------------------------------------------------------------------


def test_each_subscribe_makes_a_subscription_of_its_own() -> None:
    house = BlipmqHouse()
    one, other = house.client(), house.client()
    assert [one.subscribe(), one.subscribe(), other.subscribe("u")] == [1, 2, 3]
    one.publish(b"x")
    assert [other.poll_all(number) for number in (1, 2, 3)] == [[b"x"], [b"x"], []]


def test_its_ack_says_that_it_is_durable() -> None:
    house = BlipmqHouse()
    client = house.client()
    client.send(bm.Subscribe(3, "t", 1))
    assert client.answers() == []
    assert client.first_answers() == [bm.Ack(3, 1)]
    house = house.crash()
    client = house.client()
    client.publish(b"x")
    assert client.poll_all(1) == [b"x"]


def test_it_gets_what_is_published_later_and_not_before() -> None:
    house = BlipmqHouse()
    client = house.client()
    client.publish(b"before")
    answers = client.ask(
        bm.Publish(4, 1, "t", b"just before"),
        bm.Subscribe(3, "t", 1),
        bm.Publish(4, 1, "t", b"after"),
        bm.Poll(5, 1),
        bm.Poll(6, 1),
    )
    assert answers == [bm.Ack(3, 1), bm.Publish(3, 1, "t", b"after")]


class TestLookingBack:
    SETTINGS = BlipmqSettings(api_keys=(KEY,), look_back_us=100_000)

    def test_a_subscription_may_begin_a_moment_ago(self) -> None:
        house = BlipmqHouse(self.SETTINGS)
        client = house.client()
        client.publish(b"old")
        house.pass_time(0.5)
        client.publish(b"raced")
        house.pass_time(0.05)
        assert client.poll_all(client.subscribe()) == [b"raced"]

    def test_each_looks_back_for_itself(self) -> None:
        house = BlipmqHouse(self.SETTINGS)
        client = house.client()
        client.publish(b"raced")
        assert client.poll_all(client.subscribe()) == [b"raced"]
        house.pass_time(0.5)
        assert client.poll_all(client.subscribe()) == []
        client.publish(b"raced", topic="u")
        assert client.poll_all(client.subscribe("u")) == [b"raced"]

    def test_frames_behind_it_wait_for_it(self) -> None:
        house = BlipmqHouse(self.SETTINGS)
        client = house.client()
        client.publish(b"raced")
        answers = client.ask(
            bm.Subscribe(3, "t", 1), bm.Subscribe(4, "t", 0), bm.Poll(5, 1), bm.Poll(6, 2)
        )
        assert answers == [
            bm.Ack(3, 1),
            bm.Ack(4, 2),
            bm.Publish(1, 1, "t", b"raced"),
            bm.Publish(6, 0, "t", b"raced"),
        ]

    def test_a_topic_that_is_new_has_nothing_to_look_back_on(self) -> None:
        house = BlipmqHouse(self.SETTINGS)
        client = house.client()
        one = client.subscribe()
        client.publish(b"x")
        assert client.poll_all(one) == [b"x"]

    def test_a_log_that_cannot_be_read_refuses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        house = BlipmqHouse(self.SETTINGS)
        client = house.client()
        client.publish(b"x")

        def fail(topic_name: str, time_us: int, found: object) -> None:
            house.clock.callLater(0, found, None, OSError("I/O error"))  # type: ignore[arg-type]

        monkeypatch.setattr(house.broker.subscriptions, "start_offsets_at", fail)
        answers = client.ask(bm.Subscribe(3, "t", 1), bm.Ping(4))
        assert answers == [nack(3, 500, "subscribe failed: I/O error"), bm.Pong(4)]
        house.broker.quotas.put(OPEN, Quota("default", "*", requests=1_000))
        client.ask(bm.Subscribe(5, "t", 1), bm.Publish(6, 1, "t", b"y"), bm.Subscribe(7, "t", 1))
        (quota,) = house.broker.quotas.status()
        assert quota["requests"] == 3  # the refused ones count, and so does the next

    def test_a_connection_that_goes_meanwhile_makes_none(self) -> None:
        house = BlipmqHouse(self.SETTINGS)
        client = house.client()
        client.publish(b"x")
        client.send(bm.Subscribe(3, "t", 1))
        client.disconnect()
        house.run()
        assert house.broker.subscriptions.count == 0


# -- anything at all ----------------------------------------------------------------------------


@given(st.lists(any_message, max_size=30), st.integers(1, 400))
def test_whatever_is_sent_somebody_else_is_served(sent: list[bm.Message], size: int) -> None:
    """Frames of any type, in any order, cut anywhere: each has its answer or none."""
    house = BlipmqHouse(BlipmqSettings())
    client, witness = house.stranger(), house.client()
    one = witness.subscribe("witness")
    data = bm.encode(HELLO) + bm.encode(bm.Auth(2, "")) + b"".join(map(bm.encode, sent))
    for start in range(0, len(data), size):
        client.send_bytes(data[start : start + size])
    house.run()
    assert client.is_open
    assert client.answers()[:2] == [bm.Ack(1), bm.Ack(2)]
    assert client.ask(bm.Ping(77)) == [bm.Pong(77)]
    witness.publish(b"x", topic="witness")
    assert witness.poll_all(one) == [b"x"]


def test_records_of_other_formats_do_not_mind() -> None:
    """A factory without clients does nothing."""
    house = BlipmqHouse()
    produce(house, "t", b"x")
    house.run()
    assert isinstance(house.factory, BlipmqFactory) and not house.factory.connections


@pytest.mark.parametrize("max_groups", [1, 2])
def test_a_topic_that_a_subscribe_creates_is_in_the_audit_trail(max_groups: int) -> None:
    """Also if the subscription is refused then, for the limit of groups."""
    settings = BrokerSettings(audit_keep_us=1 << 50, max_groups=max_groups)
    house = BlipmqHouse(settings=settings)
    client = house.client()
    client.subscribe("one")
    (answer,) = client.ask(bm.Subscribe(2, "two", 1))
    assert isinstance(answer, bm.Nack if max_groups == 1 else bm.Ack)
    client.ask(bm.Subscribe(3, "two", 1))
    house.pass_time(1)
    trail = house.broker.topics.existing(AUDIT_TOPIC).partitions[0]
    chunks = [trail.find(offset) for offset in range(trail.next_offset)]
    events = [json.loads(chunk.values[at - chunk.base]) for at, chunk in enumerate(chunks)]
    made = [one["resource"] for one in events if one["type"] == "topic.create"]
    assert made == ["one", "two"]
