"""Clients of RustLog, MEGA, BlipMQ and FlyMQ: what they send, what they make of answers."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from brokerd.codecs import blipmq, flymq, mega, rustlog
from brokerd.codecs.rustlog import Dialect
from simulator.clients.blipmq import (
    BlipMQRequests,
    BlipMQWire,
    acknowledge_ask,
    acknowledgement,
    poll_ask,
    publish_ask,
)
from simulator.clients.conversation import Ask, RefusedGreeting, Wire, WrongAnswer
from simulator.clients.flymq import FlyMQRequests, FlyMQWire
from simulator.clients.format_audits import make_audit
from simulator.clients.mega import MegaRequests, MegaWire
from simulator.clients.offset_requests import OffsetRequests
from simulator.clients.rustlog import RustLogRequests, RustLogWire
from simulator.clients.values import PATTERNS
from simulator.draw.formats import MIXES, TAILED
from simulator.history.offsets import (
    Commit,
    Committed,
    CreateTopic,
    ListTopics,
    Position,
    Read,
    Reading,
    ResetOffset,
)
from simulator.history.operations import (
    Cancel,
    DeleteTopic,
    History,
    Message,
    Operation,
    Place,
    Produce,
)
from simulator.history.subscriptions import Acknowledge, Handed, Poll, Subscribe
from simulator.history.transactions import Begin, RollBack, Stage, Transact
from simulator.oracle.subscriptions import QOS_0
from simulator.payloads import payload_of, value_of
from simulator.plan import Action, ClientPlan, Plan, Topic, WireFormat
from simulator.run import run

T = {"number": 3, "client": "c", "topic": "t"}
GROUP_PARTITION = {**T, "group": "g", "partition": 1}


def a_plan(wire_format: WireFormat, **changes: Any) -> ClientPlan:
    fields: dict[str, Any] = {
        "name": "c0",
        "identity": "c0",
        "role": "worker",
        "format": wire_format,
        "seed": 1,
        "operations": 100,
        "topics": (Topic(name="t", partitions=3), Topic(name="u")),
        "groups": ("g", "h"),
        "mix": MIXES[wire_format],
        "keys": 3,
        "partition_permille": 500,
        "filter_permille": 500,
        "qos_0_permille": 300,
        **changes,
    }
    return ClientPlan(**fields)


def answered(wire: Wire, ask: Ask, *answers: bytes) -> Any:
    """The operation of a request, when it was answered."""
    wire.encode([ask])
    told = list(wire.feed(b"".join(answers)))
    assert sum(each.done for each in told) == 1
    assert sum(each.size for each in told) == sum(map(len, answers))
    return ask.operation


# -- answers become operations ---------------------------------------------------------------------


def flymq_frame(opcode: int, payload: bytes) -> bytes:
    return flymq.frame(opcode, payload)


def one_message(**fields: Any) -> Produce:
    return Produce(**T, messages=(Message(payload_of(b"abc"), **fields),))


def reading(offset: int, value: bytes, key: bytes | None = None, tells: bool = False) -> Reading:
    return Reading(Place(1, offset), value, key, tells)


BINARY, JSON = Dialect.BINARY, Dialect.JSON


def rustlog_ask(dialect: Dialect, request: rustlog.Request, operation: Operation) -> Ask:
    return Ask((dialect, request), operation)


def rustlog_answer(dialect: Dialect, answer: rustlog.Answer) -> bytes:
    encoded = rustlog.CODECS[dialect].encode_answer(answer)
    assert rustlog.FrameReader().feed(encoded), "a whole frame"
    return encoded


@pytest.mark.parametrize("dialect", list(Dialect))
class TestRustLog:
    def fetched(self, dialect: Dialect, **fields: Any) -> Any:
        ask = rustlog_ask(
            dialect, rustlog.Fetch("t", 1, 5, 10), Read(**T, partition=1, offset=5, **fields)
        )
        answer = rustlog.Fetched(range(5, 7), [b"a", b"b"], 7)
        return answered(RustLogWire(), ask, rustlog_answer(dialect, answer))

    def test_a_batch_stands_one_after_the_other(self, dialect: Dialect) -> None:
        messages = tuple(Message(payload_of(b), partition=1) for b in (b"a", b"b"))
        ask = rustlog_ask(
            dialect, rustlog.Produce("t", 1, [b"a", b"b"]), Produce(**T, messages=messages)
        )
        told = answered(RustLogWire(), ask, rustlog_answer(dialect, rustlog.Produced(7, 2)))
        assert told.places == (Place(1, 7), Place(1, 8))

    def test_an_answer_about_fewer_records_is_wrong(self, dialect: Dialect) -> None:
        ask = rustlog_ask(dialect, rustlog.Produce("t", 1, [b"abc"]), one_message(partition=1))
        with pytest.raises(WrongAnswer, match="#3"):
            answered(RustLogWire(), ask, rustlog_answer(dialect, rustlog.Produced(7, 2)))

    def test_records_have_their_offsets(self, dialect: Dialect) -> None:
        operation = self.fetched(dialect)
        assert operation.readings == (reading(5, b"a"), reading(6, b"b"))
        assert operation.next == 7

    def test_what_is_committed_is_told_or_that_nothing_is(self, dialect: Dialect) -> None:
        for offset in (None, 0, 9):
            ask = rustlog_ask(
                dialect, rustlog.OffsetFetch("t", 1, "g"), Committed(**GROUP_PARTITION)
            )
            answer = rustlog_answer(dialect, rustlog.OffsetFetched(offset))
            assert answered(RustLogWire(), ask, answer).offset == offset

    def test_a_commit_that_was_not_stored_is_refused(self, dialect: Dialect) -> None:
        ask = rustlog_ask(
            dialect, rustlog.OffsetCommit("t", 1, "g", 4), Commit(**GROUP_PARTITION, offset=4)
        )
        answer = rustlog_answer(dialect, rustlog.OffsetCommitted(False))
        assert answered(RustLogWire(), ask, answer).error

    def test_a_refusal_keeps_its_text(self, dialect: Dialect) -> None:
        ask = rustlog_ask(dialect, rustlog.CreateTopic("t", 2), CreateTopic(**T, partitions=2))
        answer = rustlog_answer(dialect, rustlog.Failed(11, "topic already exists: t"))
        told = answered(RustLogWire(), ask, answer)
        assert (told.error, told.existed) == ("topic already exists: t", True)

    def test_the_other_dialect_is_no_answer(self, dialect: Dialect) -> None:
        ask = rustlog_ask(dialect, rustlog.ListTopics(), ListTopics(number=3, client="c"))
        other = BINARY if dialect is JSON else JSON
        with pytest.raises(WrongAnswer):
            answered(RustLogWire(), ask, rustlog_answer(other, rustlog.TopicList((("t", 1),))))


class TestMega:
    def wire(self) -> MegaWire:
        return MegaWire(Random(1))

    def test_a_record_has_the_offset_before_the_next_one(self) -> None:
        ask = Ask(mega.Consume(7, "t", 9, 5), Read(**T, partition=0, offset=5))
        told = answered(self.wire(), ask, mega.consumed(7, 123, 6, b"a"))
        assert told.readings == (Reading(Place(0, 6), b"a", timestamp=123),)

    def test_no_record_is_nothing_and_no_refusal(self) -> None:
        ask = Ask(mega.Consume(7, "t", 9, 5), Read(**T, partition=0, offset=5))
        told = answered(self.wire(), ask, mega.refused(7, mega.Code.INVALID_OFFSET))
        assert (told.readings, told.error) == ((), "")

    def test_any_other_code_is_a_refusal(self) -> None:
        ask = Ask(mega.Produce(7, "t", 9, b"abc"), one_message(partition=0))
        told = answered(self.wire(), ask, mega.refused(7, mega.Code.RESOURCE_EXHAUSTED))
        assert told.error == "RESOURCE_EXHAUSTED"

    def test_an_answer_with_another_time_is_wrong(self) -> None:
        ask = Ask(mega.Produce(7, "t", 9, b"abc"), one_message(partition=0))
        with pytest.raises(WrongAnswer):
            answered(self.wire(), ask, mega.produced(7, 8, 0))

    def test_an_answer_to_another_id_is_wrong(self) -> None:
        ask = Ask(mega.Produce(7, "t", 9, b"abc"), one_message(partition=0))
        with pytest.raises(WrongAnswer, match="broken"):
            answered(self.wire(), ask, mega.produced(8, 9, 0))


class TestFlyMQ:
    def test_a_record_is_where_the_answer_says(self) -> None:
        ask = Ask(flymq.Produce("t", b"k", b"abc"), one_message(key=b"k"))
        frame = flymq_frame(
            1,
            b"\0\x01t"
            + bytes(3)
            + b"\x02"
            + (9).to_bytes(8, "big")
            + bytes(8)
            + b"\0\0\0\x01"
            + b"\0\0\0\x03",
        )
        assert answered(FlyMQWire(Random(1)), ask, frame).places == (Place(2, 9),)

    @pytest.mark.parametrize("sizes", [b"\0\0\0\x02\0\0\0\x03", b"\0\0\0\x01\0\0\0\x04"])
    def test_an_answer_about_something_else_is_wrong(self, sizes: bytes) -> None:
        ask = Ask(flymq.Produce("t", b"k", b"abc"), one_message(key=b"k"))
        frame = flymq_frame(1, b"\0\x01t" + bytes(20) + sizes)
        with pytest.raises(WrongAnswer, match="#3"):
            answered(FlyMQWire(Random(1)), ask, frame)

    @pytest.mark.parametrize("is_sdk", [True, False])
    def test_records_have_keys_and_offsets_in_either_layout(self, is_sdk: bool) -> None:
        ask = Ask(
            flymq.Fetch("t", 1, 5, 10, sdk=is_sdk), Read(**T, partition=1, offset=5, limit=10)
        )
        key, value = b"\0\0\0\x01k", b"\0\0\0\x01a"
        offset, after = (5).to_bytes(8, "big"), (6).to_bytes(8, "big")
        layout = after + offset + key + value if is_sdk else key + value + offset + after
        told = answered(FlyMQWire(Random(1)), ask, flymq_frame(7, b"\0\0\0\x01" + layout))
        assert told.readings == (reading(5, b"a", b"k", True),)
        assert told.next == 6

    @pytest.mark.parametrize(
        "text", ["offset 5 out of range", "offset 5 is removed; the records begin at 9"]
    )
    def test_a_record_that_is_not_there_is_nothing_and_no_refusal(self, text: str) -> None:
        ask = Ask(flymq.Consume("t", 1, 5), Read(**T, partition=1, offset=5, exact=True))
        frame = flymq_frame(0xFF, flymq.error(text, sdk=False)[8:])
        assert (answered(FlyMQWire(Random(1)), ask, frame).error) == ""

    def test_a_group_that_nobody_knows_has_committed_nothing(self) -> None:
        ask = Ask(flymq.GetOffset("t", "g", 1), Committed(**GROUP_PARTITION))
        text = "consumer group not found: t:g"
        frame = flymq_frame(0xFF, flymq.error(text, sdk=True)[8:])
        told = answered(FlyMQWire(Random(1)), ask, frame)
        assert (told.offset, told.error, told.told_as_zero) == (None, "", False)

    def test_an_answer_to_nothing_is_wrong(self) -> None:
        with pytest.raises(WrongAnswer, match="to nothing"):
            list(FlyMQWire(Random(1)).feed(flymq_frame(8, bytes(4))))


# -- BlipMQ ----------------------------------------------------------------------------------------


class Blip:
    """A wire that was greeted."""

    def __init__(self) -> None:
        self.wire = BlipMQWire()
        self.ids: list[int] = []
        self._sent(self.wire.greeting)
        for correlation_id in self.ids:
            assert self.feed(blipmq.accepted(correlation_id)) == 0
        self.ids.clear()

    def _sent(self, data: bytes) -> list[blipmq.Message]:
        frames = blipmq.frame_reader().feed(data)
        messages = [blipmq.decode(frame) for frame in frames]
        self.ids += [message.correlation_id for message in messages]
        return messages

    def ask(self, *asks: Ask) -> list[blipmq.Message]:
        """What is sent for these requests."""
        return self._sent(b"".join(sent.data + sent.probe for sent in self.wire.encode(asks)))

    def feed(self, *data: bytes) -> int:
        """How many requests are over."""
        return sum(each.done for each in self.wire.feed(b"".join(data)))

    def pong(self, index: int = -1) -> bytes:
        return blipmq.encode(blipmq.Pong(self.ids[index]))


def subscribed(qos: int = 1) -> Subscribe:
    return Subscribe(**T, qos=qos, subscription=4, answered_us=1)


def handed(correlation_id: int, qos: int, topic: str) -> bytes:
    return blipmq.encode(blipmq.Publish(correlation_id, qos, topic, b"a"))


class TestBlipMQ:
    def test_only_the_login_of_a_greeting_may_have_to_wait(self) -> None:
        def refused(correlation_id: int, text: str) -> bytes:
            return blipmq.encode(blipmq.Nack(correlation_id, 401, text))

        wire = BlipMQWire()
        hello, login = (blipmq.decode(f) for f in blipmq.frame_reader().feed(wire.greeting))
        text = "too many failed logins; try again in 1 s"
        with pytest.raises(WrongAnswer, match="answers nothing"):
            list(wire.feed(refused(login.correlation_id, text)))
        wire = BlipMQWire()
        assert [part.done for part in wire.feed(blipmq.accepted(hello.correlation_id))] == [0]
        with pytest.raises(RefusedGreeting):
            list(wire.feed(refused(login.correlation_id, text)))
        with pytest.raises(WrongAnswer, match="answers nothing"):
            list(wire.feed(refused(login.correlation_id, "the key is wrong")))

    def test_publishes_are_over_with_the_pong_behind_them(self) -> None:
        blip = Blip()
        asks = [publish_ask("c", "t", value, qos=1) for value in (b"a", b"b")]
        sent = blip.ask(*asks)
        assert [type(message) for message in sent] == [blipmq.Publish, blipmq.Publish, blipmq.Ping]
        assert blip.feed(blip.pong()) == 2
        assert [ask.operation.error for ask in asks] == ["", ""]

    def test_a_refused_publish_is_known_by_its_id(self) -> None:
        blip = Blip()
        asks = [publish_ask("c", "t", value, qos=1) for value in (b"a", b"b")]
        blip.ask(*asks)
        nack = blipmq.encode(blipmq.Nack(blip.ids[1], 500, "no room"))
        assert blip.feed(nack) == 0
        assert blip.feed(blip.pong()) == 2
        assert [ask.operation.error for ask in asks] == ["", "no room"]

    def test_refusals_that_are_told_all_at_once_leave_every_publish_in_doubt(self) -> None:
        blip = Blip()
        asks = [publish_ask("c", "t", value, qos=1) for value in (b"a", b"b")]
        blip.ask(*asks)
        assert blip.feed(blipmq.encode(blipmq.Nack(blip.ids[-1], 500, "1 refusal"))) == 0
        assert blip.feed(blip.pong()) == 2
        told = [ask.operation for ask in asks]
        assert not any(isinstance(one, Produce) and one.is_promised for one in told)

    def test_a_delivery_of_qos_1_tells_its_place_by_its_tag(self) -> None:
        blip = Blip()
        ask = poll_ask("c", subscribed())
        blip.ask(ask)
        tag = (2 << 48 | 7) + 1
        assert blip.feed(handed(tag, 1, "t"), blip.pong()) == 1
        assert isinstance(ask.operation, Poll)
        assert ask.operation.handed == Handed(b"a", 1, Place(2, 7))

    def test_a_delivery_of_qos_0_has_the_id_of_its_poll(self) -> None:
        blip = Blip()
        ask = poll_ask("c", subscribed(0))
        blip.ask(ask)
        blip.feed(handed(blip.ids[0], 0, "t"), blip.pong())
        assert isinstance(ask.operation, Poll)
        assert ask.operation.handed == Handed(b"a", 0)

    def test_a_poll_may_be_answered_by_nothing(self) -> None:
        blip = Blip()
        ask = poll_ask("c", subscribed())
        blip.ask(ask)
        assert blip.feed(blip.pong()) == 1
        assert isinstance(ask.operation, Poll)
        assert ask.operation.handed is None

    @pytest.mark.parametrize(
        "make",
        [
            lambda blip: handed(5, 0, "t"),
            lambda blip: handed(5, 1, "u"),
            lambda blip: 2 * handed(5, 1, "t"),
            lambda blip: blipmq.encode(blipmq.Nack(99, 500, "who?")),
            lambda blip: blipmq.encode(blipmq.Pong(99)),
            lambda blip: blipmq.accepted(99, 1),
            lambda blip: blip.pong() + blip.pong(),
            lambda blip: b"\0\0\0\0",
            lambda blip: b"\0\0\0\x09\x0a" + bytes(8),
        ],
    )
    def test_what_answers_nothing_is_wrong(self, make: Any) -> None:
        blip = Blip()
        blip.ask(poll_ask("c", subscribed()))
        with pytest.raises(WrongAnswer):
            blip.feed(make(blip))

    def test_a_subscription_without_an_id_is_wrong(self) -> None:
        blip = Blip()
        blip.ask(Ask(blipmq.Subscribe(0, "t", 1), Subscribe(**T, qos=1)))
        with pytest.raises(WrongAnswer, match="not answered"):
            blip.feed(blip.pong())

    def test_an_acknowledgement_names_tag_and_subscription(self) -> None:
        blip = Blip()
        polled = Poll(**T, subscription=4)
        ask = acknowledge_ask(acknowledgement("c", polled, Place(1, 6)))
        assert blip.ask(ask)[0] == blipmq.Ack((1 << 48 | 6) + 1, 4)
        blip.feed(blipmq.encode(blipmq.Nack((1 << 48 | 6) + 1, 404, "unknown")), blip.pong())
        assert ask.operation.error == "unknown"

    def test_any_subscription_of_the_run_is_polled_and_its_deliveries_acknowledged(self) -> None:
        history = History(operations=[subscribed()])
        requests = BlipMQRequests(history, a_plan("blipmq"), Random(2))
        kinds = set()
        for _ in range(300):
            ask = requests.make(0)
            if ask is None:
                continue
            operation = ask.operation
            kinds.add(type(operation))
            if isinstance(operation, Poll):
                operation.handed = Handed(b"a", 1, Place(0, 1))
                requests.learn(operation)
        assert kinds == {Produce, Subscribe, Poll, Acknowledge}

    def test_qos_0_is_stored_with_the_metadata_that_says_so_and_promised_nothing(self) -> None:
        (told, kept) = (publish_ask("c", "t", b"a", qos=qos).operation for qos in (0, 1))
        assert isinstance(told, Produce)
        assert isinstance(kept, Produce)
        assert (told.messages[0].metadata, told.is_promised) == (QOS_0, False)
        assert (kept.messages[0].metadata, kept.is_promised) == (None, True)


# -- what is asked ---------------------------------------------------------------------------------

MAKERS: dict[WireFormat, type[OffsetRequests]] = {
    "rustlog": RustLogRequests,
    "mega": MegaRequests,
    "flymq": FlyMQRequests,
}


def test_every_format_with_offsets_is_looked_at() -> None:
    assert MAKERS.keys() == TAILED


def asks_of(wire_format: WireFormat, count: int = 400, **changes: Any) -> Sequence[Ask]:
    requests = MAKERS[wire_format](a_plan(wire_format, **changes), Random(3))
    return [ask for ask in (requests.make(0) for _ in range(count)) if ask is not None]


@pytest.mark.parametrize(
    ("wire_format", "kinds"),
    [
        ("rustlog", {Produce, Read, Commit, Committed, Position, CreateTopic, ListTopics}),
        ("mega", {Produce, Read, CreateTopic}),
        (
            "flymq",
            {
                Produce,
                Read,
                Commit,
                ResetOffset,
                Committed,
                Position,
                CreateTopic,
                DeleteTopic,
                ListTopics,
                Begin,
            },
        ),
    ],
)
def test_a_client_asks_everything_that_its_format_has(
    wire_format: WireFormat, kinds: set[type[Operation]]
) -> None:
    assert {type(ask.operation) for ask in asks_of(wire_format)} == kinds


def flymq_requests(*actions: Action, **changes: Any) -> FlyMQRequests:
    plan = a_plan("flymq", mix=dict.fromkeys(actions, 1), **changes)
    return FlyMQRequests(plan, Random(3))


def asked_by(requests: OffsetRequests) -> Any:
    """The next operation."""
    while (ask := requests.make(0)) is None:
        pass
    return ask.operation


def begun(requests: OffsetRequests) -> str:
    """Begin a transaction, and be told its id."""
    while not isinstance(operation := asked_by(requests), Begin):
        pass
    operation.transaction = f"txn-{id(operation)}"
    requests.learn(operation)
    return operation.transaction


def test_a_transaction_is_committed_with_what_was_put_into_it() -> None:
    requests = flymq_requests("begin", "stage", "commit_transaction", "roll_back")
    committed = 0
    for _ in range(20):
        name = begun(requests)
        staged: list[tuple[str, Message]] = []
        while not isinstance(operation := asked_by(requests), Transact | RollBack):
            if isinstance(operation, Stage):
                staged.append((operation.topic, operation.message))
        assert operation.transaction == name
        if isinstance(operation, Transact):
            assert list(operation.messages) == staged
            committed += bool(staged)
    assert committed


def test_a_refused_transaction_is_given_up() -> None:
    """It may be that of a connection that is gone."""
    requests = flymq_requests("begin", "stage")
    begun(requests)
    while not isinstance(operation := asked_by(requests), Stage):
        pass
    operation.error = f"transaction not found: {operation.transaction}"
    requests.learn(operation)
    assert {type(asked_by(requests)) for _ in range(20)} == {Begin}


def test_records_may_come_later_or_live_for_a_time() -> None:
    """And those that come later may be cancelled."""
    requests = flymq_requests(
        *("produce", "cancel"),
        delayed_permille=500,
        schedule_us_max=20_000,
        ttl_permille=500,
        ttl_us_max=60_000,
    )
    scheduled, cancelled, kinds = set(), set(), set()
    for number in range(200):
        operation = asked_by(requests)
        if isinstance(operation, Cancel):
            cancelled.add(operation.schedule_id)
            continue
        (message,) = operation.messages
        kinds.add((message.delay_us is None, message.ttl_us is None))
        assert message.delay_us in (None, *range(1_000, 20_001, 1_000))
        if message.delay_us is not None:
            operation.places, operation.schedules = (None,), (2 * number,)
            scheduled.add(2 * number)
            requests.learn(operation)
    assert kinds == {(True, True), (True, False), (False, True)}
    assert cancelled & scheduled
    assert cancelled - scheduled


@pytest.mark.parametrize("wire_format", list(MAKERS))
def test_values_are_all_different(wire_format: WireFormat) -> None:
    values = [
        value_of(message.payload)
        for ask in asks_of(wire_format)
        if isinstance(ask.operation, Produce)
        for message in ask.operation.messages
    ]
    assert len(set(values)) == len(values) > 50


@pytest.mark.parametrize("wire_format", list(MAKERS))
def test_topics_that_the_format_cannot_name_are_left_alone(wire_format: WireFormat) -> None:
    topics = (Topic(name=""), Topic(name="t"))
    for ask in asks_of(wire_format, topics=topics):
        assert getattr(ask.operation, "topic", "t") != ""


def test_only_filters_of_the_sdks_are_sent_and_all_of_them() -> None:
    fetches = [ask for ask in asks_of("flymq", 2_000) if isinstance(ask.request, flymq.Fetch)]
    assert {ask.request.filter for ask in fetches} == set(PATTERNS)
    for ask in fetches:
        assert isinstance(ask.operation, Read)
        assert ask.operation.pattern == ask.request.filter
        assert ask.request.sdk or not ask.request.filter


def test_rustlog_is_spoken_in_both_dialects() -> None:
    assert {ask.request[0] for ask in asks_of("rustlog")} == set(Dialect)


def test_some_requests_of_flymq_are_compressed_and_none_without_a_payload() -> None:
    wire = FlyMQWire(Random(1))
    asks = asks_of("flymq", 2_000)
    flags = {type(ask.request): set[int]() for ask in asks}
    for ask, sent in zip(asks, wire.encode(asks), strict=True):
        flags[type(ask.request)].add(sent.data[3])
    assert flags[flymq.Produce] == flags[flymq.Fetch] == {1, 3}
    assert flags[flymq.ListTopics] == {1}


# -- whole runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire_format", list(MIXES))
def test_a_run_with_one_client_of_a_format_keeps_all_promises(wire_format: WireFormat) -> None:
    plan = Plan(
        seed=5,
        end_us=10_000_000,
        topics=(Topic(name="t", partitions=3), Topic(name="u")),
        clients=(a_plan(wire_format, window=5, think_us=20_000),),
    )
    result = run(plan)
    assert result.violations == []
    done = [op for op in result.history.operations if op.client == "c0" and op.succeeded]
    assert len(done) > 60
    by_audit = f"{wire_format}-auditor"
    assert any(op.client == by_audit and op.succeeded for op in result.history.operations)


def test_there_is_an_audit_for_each_format() -> None:
    assert callable(make_audit)
