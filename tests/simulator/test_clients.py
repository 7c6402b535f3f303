"""Random clients, the vandal and the auditor, against a peer that a test plays by hand."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from random import Random
from typing import Any

import msgpack
import pytest
from msgspec.structs import replace

from brokerd.codecs import mamamia as mm
from brokerd.codecs.mamamia.packing import pack
from brokerd.values import Encoding
from simulator.clients import (
    AuditFailed,
    Auditor,
    MamamiaClient,
    Vandal,
    WrongAnswer,
)
from simulator.clients.describe import asked, outcome
from simulator.clients.vandal import TRICKS
from simulator.draw import MIXES
from simulator.history.operations import (
    NEVER,
    Acquire,
    Cancel,
    Describe,
    Explain,
    Extend,
    Letter,
    Letters,
    Look,
    Operation,
    Place,
    Produce,
    Resume,
    Settle,
    Settlement,
)
from simulator.plan import Action, ClientPlan, Plan, Settings, Topic
from tests.simulator.peer import Peer

SECOND = 1_000_000
TOPIC = Topic(name="t")
NOT_OWNER = "Client does not own the lease for this message"


class FakeBroker:
    """Answers every request somehow plausibly: records in order, leased once, settled at once."""

    def __init__(self) -> None:
        self.records: defaultdict[str, list[mm.BatchMessage]] = defaultdict(list)
        self.cursors: Counter[tuple[str, str]] = Counter()
        self.token = 100

    def __call__(self, request: Any) -> bytes:
        match request:
            case mm.Produce():
                number = self._store(request.log_id, mm.BatchMessage(*request[1:]))
                return mm.scheduled(number) if request.delay else mm.produced(number)
            case mm.ProduceBatch():
                ids = [self._store(request.log_id, message) for message in request.messages]
                waits = [message.delay is not None for message in request.messages]
                if not any(waits):
                    return mm.produced_batch(ids)
                return mm.produced_batch(
                    [None if wait else number for number, wait in zip(ids, waits, strict=True)],
                    [number if wait else None for number, wait in zip(ids, waits, strict=True)],
                )
            case mm.Acquire():
                taken = self._lease(request.log_id, request.group_id, 1)
                if not taken:
                    return mm.acquired_nothing()
                ((number, record),) = taken
                return mm.acquired(
                    number, request.log_id, record.value, record.encoding, record.metadata
                )
            case mm.AcquireBatch():
                taken = self._lease(request.log_id, request.group_id, request.max_messages)
                return mm.acquired_batch([self._item(number, record) for number, record in taken])
            case mm.Settle():
                return mm.settled()
            case mm.SettleBatch():
                return mm.settled_batch([mm.SETTLED] * len(request.settles))
            case mm.Extend():
                return mm.extended(request.duration)
            case mm.Release():
                return mm.released(len(request.message_ids or ()))
            case mm.Cancel():
                return mm.cancelled(True)
            case mm.GroupInfo():
                return mm.group_info(mm.GroupState(1, 9, 8, 2, 3, 3, 1, None, None, 3, 1))
        raise AssertionError(request)

    def _store(self, topic: str, record: mm.BatchMessage) -> int:
        self.records[topic].append(record)
        return len(self.records[topic]) - 1

    def _lease(self, topic: str, group: str, limit: int) -> list[tuple[int, mm.BatchMessage]]:
        begin = self.cursors[topic, group]
        taken = list(enumerate(self.records[topic]))[begin : begin + limit]
        self.cursors[topic, group] += len(taken)
        return taken

    def _item(self, number: int, record: mm.BatchMessage) -> bytes:
        self.token += 1
        return mm.batch_item(
            number,
            record.value,
            record.encoding,
            record.metadata,
            record.key,
            self.token,
            1,
            2.5,
        )


def a_plan(*actions: Action, **changes: Any) -> ClientPlan:
    """A client that does the given actions, each as likely."""
    plan = ClientPlan(
        name="c7",
        identity="owner",
        role="worker",
        seed=5,
        operations=1,
        topics=(TOPIC,),
        groups=("g",),
        mix=dict.fromkeys(actions, 1),
    )
    return replace(plan, **changes)


def start(peer: Peer, plan: ClientPlan) -> MamamiaClient:
    client = MamamiaClient(plan, peer.world, peer.connect, peer.history)
    client.start()
    return client


def play(plan: ClientPlan, broker: FakeBroker | None = None) -> Peer:
    """All that a client does with a broker that answers."""
    peer = Peer()
    peer.reply = broker or FakeBroker()
    client = start(peer, plan)
    peer.run()
    assert client.finished
    return peer


def one(peer: Peer) -> Any:
    (operation,) = peer.operations
    return operation


def of_kind(peer: Peer, kind: type[Operation]) -> list[Any]:
    return [operation for operation in peer.operations if isinstance(operation, kind)]


class TestHistory:
    """What a client puts on record."""

    def test_a_request_is_recorded_when_it_is_sent(self) -> None:
        peer = Peer()
        start(peer, a_plan("produce", begin_us=40))
        peer.run(1_000)
        operation = one(peer)
        assert (operation.number, operation.client) == (0, "c7")
        assert operation.sent_us == 40
        assert (operation.answered_us, operation.written_us) == (NEVER, NEVER)

    def test_an_answer_completes_it(self) -> None:
        peer = Peer()
        start(peer, a_plan("produce"))
        peer.run(1_000)
        answer = mm.produced(mm.message_id_of(2, 9))
        peer.link.answer(answer)
        operation = one(peer)
        assert operation.places == (Place(2, 9),)
        assert operation.succeeded
        assert operation.boot == 3
        assert operation.arrived_us == len(peer.link.sent)
        assert operation.written_us == SECOND + len(answer)
        assert operation.answered_us == 1_000

    def test_times_are_those_of_each_requests_own_last_byte(self) -> None:
        peer = Peer()
        start(peer, a_plan("look", operations=3, window=3))
        peer.run(1_000)
        length = len(peer.link.sent) // 3
        answer = FakeBroker()(peer.asked[0])
        peer.link.answer(answer, answer, answer)
        assert [o.arrived_us for o in peer.operations] == [length, 2 * length, 3 * length]
        written = [o.written_us - SECOND for o in peer.operations]
        assert written == [len(answer), 2 * len(answer), 3 * len(answer)]

    def test_answers_may_come_byte_by_byte(self) -> None:
        peer = Peer()
        start(peer, a_plan("produce"))
        peer.run(1_000)
        for byte in mm.produced(70_000):
            assert not one(peer).succeeded
            peer.link.on_data(bytes([byte]))
        assert one(peer).places == (Place(0, 70_000),)

    def test_a_refusal_keeps_the_text_and_nothing_else(self) -> None:
        peer = Peer()
        start(peer, a_plan("produce"))
        peer.run(1_000)
        peer.link.answer(mm.error(mm.Command.PRODUCE, "no room"))
        operation = one(peer)
        assert (operation.error, operation.places) == ("no room", ())
        assert operation.answered_us == 1_000 and not operation.succeeded

    def test_a_refusal_without_words_is_a_refusal_too(self) -> None:
        peer = Peer()
        start(peer, a_plan("produce"))
        peer.run(1_000)
        peer.link.answer(mm.error(mm.Command.PRODUCE, ""))
        assert one(peer).error

    def test_a_lost_connection_leaves_requests_open_and_tells_what_arrived(self) -> None:
        peer = Peer()
        start(peer, a_plan("produce", operations=2, window=2))
        peer.run(1_000)
        peer.arrives = len(peer.sends[0]) - 1 if len(peer.sends) == 1 else len(peer.sends[0])
        peer.link.lose()
        first, second = peer.operations
        assert first.arrived_us != NEVER and second.arrived_us == NEVER
        assert first.boot == second.boot == 3
        assert first.answered_us == second.answered_us == NEVER

    def test_what_arrives_after_hanging_up_is_noted_at_the_end(self) -> None:
        peer = Peer()
        client = start(peer, a_plan("produce"))
        peer.run(1_000)
        peer.arrives = 0
        client.hang_up()
        assert one(peer).arrived_us == NEVER
        peer.arrives = 1 << 60
        client.note_arrivals()
        assert one(peer).arrived_us == len(peer.link.sent)

    def test_what_had_arrived_when_it_hung_up_is_noted_at_once(self) -> None:
        peer = Peer()
        client = start(peer, a_plan("produce"))
        peer.run(1_000)
        client.hang_up()
        assert one(peer).arrived_us == len(peer.link.sent)

    def test_requests_of_one_connection_share_its_number(self) -> None:
        peer = Peer()
        start(peer, a_plan("look", operations=9, window=3, reconnect_us_max=10))
        peer.run(1_000)
        peer.link.lose()
        peer.run(1_000)
        by_connection = Counter(operation.connection for operation in peer.operations)
        assert len(peer.links) == 2 and len(by_connection) == 2
        assert NEVER not in by_connection

    def test_the_owner_of_leases_is_the_identity_and_the_producer_the_client_itself(self) -> None:
        peer = play(a_plan("produce", "acquire", "settle", operations=60))
        assert {o.client for o in of_kind(peer, Produce)} == {"c7"}
        assert {o.client for o in of_kind(peer, Acquire)} == {"owner"}
        assert {o.client for o in of_kind(peer, Settle)} == {"owner"}
        assert {r.client_id for r in peer.asked if isinstance(r, mm.Acquire)} == {"owner"}

    @pytest.mark.parametrize("action", list(MIXES["consumer"]) + list(MIXES["producer"]))
    def test_what_is_recorded_is_what_was_asked(self, action: Action) -> None:
        plan = a_plan(
            "produce",
            "acquire",
            "acquire_batch",
            action,
            operations=200,
            token_permille=500,
            failure_permille=500,
            verdict_permille=500,
            delay_us_max=3 * SECOND,
            wait_us_max=SECOND,
            duration_us_min=1_001,
            metadata_permille=500,
            keys=3,
            delayed_permille=300,
            schedule_us_max=3 * SECOND,
            ttl_permille=300,
            ttl_us_max=SECOND,
            default_permille=300,
            resends=True,
        )
        peer = play(plan)
        assert len(peer.asked) == len(peer.operations) > 100
        for request, operation in zip(peer.asked, peer.operations, strict=True):
            assert_same(request, operation)


def us(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1_000_000)


def assert_same(request: Any, operation: Any) -> None:
    """The request on the wire says what the operation says."""
    assert request.log_id == operation.topic
    if not isinstance(operation, Produce | Look | Cancel):
        assert request.client_id == operation.client
    if not isinstance(operation, Produce | Cancel):
        assert request.group_id == operation.group
    match request:
        case mm.Produce() | mm.ProduceBatch():
            wires = request.messages if isinstance(request, mm.ProduceBatch) else [request]
            for wire, message in zip(wires, operation.messages, strict=True):
                assert packed_payload(wire) == message.payload
                assert (wire.metadata, wire.key, wire.partition) == message[1:4]
                assert (us(wire.delay), us(wire.ttl)) == message[4:6]
            if operation.producer_id:
                asked = request.producer_id, request.sequence
                assert asked == (operation.producer_id, operation.sequence)
        case mm.Acquire() | mm.AcquireBatch():
            asked_us = us(request.duration)
            assert operation.by_default == (asked_us is None)
            assert asked_us in (None, operation.duration_us)
            assert us(request.wait) == operation.wait_us
            assert getattr(request, "max_messages", 1) == operation.limit
        case mm.Settle():
            place = Place(*mm.split_message_id(request.message_id))
            assert operation.settlements == (
                Settlement(
                    place, request.success, None, us(request.delay), request.reason, request.dead
                ),
            )
        case mm.SettleBatch():
            assert operation.settlements == tuple(
                Settlement(
                    Place(*mm.split_message_id(item.message_id)),
                    item.success,
                    item.token,
                    us(item.delay),
                    item.reason,
                    item.dead,
                )
                for item in request.settles
            )
        case mm.Extend():
            assert us(request.duration) == operation.duration_us
            assert Place(*mm.split_message_id(request.message_id)) == operation.place
        case mm.GroupInfo():
            assert isinstance(operation, Look)
        case mm.Release(message_ids=ids):
            places = None if ids is None else tuple(Place(*mm.split_message_id(i)) for i in ids)
            assert (operation.owner, operation.places) == (request.client_id, places)
        case mm.Cancel():
            assert operation.schedule_id == request.schedule_id
        case _:
            raise AssertionError(request)


def packed_payload(wire: Any) -> bytes:
    """What a consumer of a stored record would put on record."""
    match wire.encoding:
        case Encoding.BYTES:
            return pack(wire.value)
        case Encoding.TEXT:
            return pack(wire.value.decode())
    return bytes(wire.value)


class TestResends:
    """Batches with a sequence number."""

    def batches(self, peer: Peer) -> list[mm.ProduceBatch]:
        return [r for r in peer.asked if isinstance(r, mm.ProduceBatch)]

    def test_a_batch_without_an_answer_is_sent_again_on_the_next_connection(self) -> None:
        peer = Peer()
        start(peer, a_plan("produce_batch", operations=9, resends=True, window=3))
        peer.run(SECOND)
        lost = self.batches(peer)
        peer.link.lose()
        peer.reply = FakeBroker()
        peer.run()
        assert lost and self.batches(peer)[len(lost) :][: len(lost)] == lost
        numbers = [o.sequence for o in of_kind(peer, Produce)]
        assert {o.producer_id for o in of_kind(peer, Produce)} == {"c7"}
        assert numbers[: len(lost)] == list(range(1, len(lost) + 1))

    def test_now_and_then_one_that_was_answered_is_sent_again(self) -> None:
        peer = play(a_plan("produce_batch", operations=300, resends=True))
        sequences = [batch.sequence for batch in self.batches(peer)]
        assert 0 < len(sequences) - len(set(sequences)) < 60

    def test_without_it_nothing_is_sent_twice_and_nothing_is_numbered(self) -> None:
        peer = play(a_plan("produce_batch", operations=100))
        assert {(b.producer_id, b.sequence) for b in self.batches(peer)} == {(None, None)}
        payloads = [m.value for batch in self.batches(peer) for m in batch.messages]
        assert len(payloads) == len(set(payloads))


class TestAnswers:
    """What a client makes of answers."""

    def test_leased_messages_are_recorded_as_they_were_sent(self) -> None:
        plan = a_plan(
            "produce",
            "produce_batch",
            "acquire",
            "acquire_batch",
            operations=300,
            metadata_permille=700,
            keys=4,
        )
        peer = play(plan)
        sent = {}
        for produce in of_kind(peer, Produce):
            sent.update(zip(produce.places, produce.messages, strict=True))
        deliveries = [d for o in of_kind(peer, Acquire) for d in o.deliveries]
        assert len(deliveries) > 50
        for delivery in deliveries:
            message = sent[delivery.place]
            assert (delivery.payload, delivery.metadata) == (message.payload, message.metadata)
            if delivery.token is not None:
                assert (delivery.key, delivery.grants) == (message.key, 1)
                assert delivery.remaining_us == 2_500_000
        assert {d.token is None for d in deliveries} == {True, False}

    def test_what_the_broker_says_of_a_group_is_recorded(self) -> None:
        look = one(play(a_plan("look")))
        assert look.view == (1, 9, 8, 2, 3, 3, 1, None, 1)

    def test_each_result_of_a_batch_is_recorded(self) -> None:
        peer = Peer()
        start(peer, a_plan("acquire_batch", "settle_batch", operations=200, batch_max=4))
        fake = FakeBroker()
        fake.records["t"] = [mm.BatchMessage(b"%d" % n) for n in range(100)]

        def reply(request: Any) -> bytes:
            if isinstance(request, mm.SettleBatch):
                return mm.settled_batch([NOT_OWNER] + [mm.SETTLED] * (len(request.settles) - 1))
            return fake(request)

        peer.reply = reply
        peer.run()
        settles = of_kind(peer, Settle)
        assert settles
        for settle in settles:
            assert settle.results == (NOT_OWNER, *[""] * (len(settle.settlements) - 1))

    def test_an_extended_lease_has_what_remains(self) -> None:
        peer = play(a_plan("produce", "acquire", "extend", operations=60))
        extends = of_kind(peer, Extend)
        assert extends
        assert all(o.remaining_us == pytest.approx(o.duration_us, abs=1) for o in extends)

    @pytest.mark.parametrize(
        ("action", "answer", "why"),
        [
            ("produce", mm.settled(), "command 3"),
            ("produce", mm.frame(1, b"\xc1"), "not MessagePack"),
            ("produce", b"\x00\x00\x00\x00\x01\x01", "broken frame"),
            ("produce", mm.produced(1) * 2, "answer to nothing"),
            ("acquire", mm.acquired(1, "other", b"", 0, None), "came from 't'"),
            (
                "acquire_batch",
                mm.acquired_batch([b"\x83\xa2id\x01\xa7payload\xc0\xa8metadata\xc0"] * 99),
                "answered with",
            ),
            ("produce_batch", mm.produced_batch(range(99)), "answered with"),
        ],
    )
    def test_an_answer_that_breaks_the_wires_rules_ends_the_run(
        self, action: Action, answer: bytes, why: str
    ) -> None:
        peer = Peer()
        start(peer, a_plan(action, operations=2))
        peer.run(1_000)
        with pytest.raises(WrongAnswer, match=why):
            peer.link.answer(answer)


class TestPace:
    """When a client asks."""

    def test_never_more_requests_than_its_window_wait(self) -> None:
        peer = Peer()
        start(peer, a_plan("look", operations=100, window=7))
        peer.run(10 * SECOND)
        assert len(peer.operations) == 7
        answer = FakeBroker()(peer.asked[0])
        peer.link.answer(answer, answer)
        peer.run(SECOND)
        assert len(peer.operations) == 9

    def test_a_window_of_one_is_strict_turn_taking(self) -> None:
        peer = play(a_plan("look", operations=20))
        for before, after in zip(peer.operations, peer.operations[1:], strict=False):
            assert after.sent_us >= before.answered_us

    def test_several_requests_may_leave_in_one_piece(self) -> None:
        peer = play(a_plan("look", operations=50, window=10))
        lone = len(mm.encode_request(mm.GroupInfo("t", "g")))
        assert max(map(len, peer.sends)) >= 3 * lone

    def test_it_finishes_after_its_operations_and_hangs_up(self) -> None:
        finished = []
        peer = Peer()
        peer.reply = FakeBroker()
        client = start(peer, a_plan("look", operations=12, window=3))
        client.on_finished = lambda: finished.append(peer.world.now_us)
        peer.run()
        assert len(peer.operations) == 12
        assert len(finished) == 1 and client.finished
        assert not peer.link.is_open

    def test_pauses_are_those_of_the_plan(self) -> None:
        peer = play(a_plan("look", operations=20, think_us=5 * SECOND))
        pauses = [
            after.sent_us - before.answered_us
            for before, after in zip(peer.operations, peer.operations[1:], strict=False)
        ]
        assert max(pauses) > SECOND and max(pauses) <= 5 * SECOND

    def test_a_lost_connection_is_made_again(self) -> None:
        peer = Peer()
        client = start(peer, a_plan("look", operations=6, window=2, reconnect_us_max=1_000))
        for _ in range(3):
            peer.run(SECOND)
            peer.link.lose()
        peer.run(SECOND)
        assert client.finished
        assert len(peer.operations) == 6
        assert len(peer.links) >= 3

    def test_refused_again_and_again_it_asks_ever_less_often(self) -> None:
        peer = Peer()
        peer.refuses = True
        start(peer, a_plan("look", operations=1_000_000, reconnect_us_max=10))
        peer.run(SECOND)
        assert 20 <= len(peer.links) <= 400
        peer.run(SECOND)
        at_first = len(peer.links)
        peer.run(SECOND)
        assert len(peer.links) - at_first <= 300

    def test_accepted_again_it_comes_back_as_quickly_as_before(self) -> None:
        peer = Peer()
        peer.refuses = True
        start(peer, a_plan("look", operations=1_000_000, reconnect_us_max=10))
        peer.run(SECOND)
        peer.refuses = False
        peer.reply = FakeBroker()
        peer.run(SECOND // 10)
        assert peer.link.is_open
        count = len(peer.links)
        peer.link.lose()
        peer.run(20)
        assert len(peer.links) == count + 1

    def test_an_answer_long_overdue_makes_it_connect_again(self) -> None:
        peer = Peer()
        start(peer, a_plan("look", operations=2, patience_us=2 * SECOND, reconnect_us_max=5))
        peer.run(2 * SECOND - 1)
        assert len(peer.links) == 1
        peer.run(SECOND)
        assert len(peer.links) == 2 and not peer.links[0].is_open
        first, second = peer.operations
        assert first.answered_us == NEVER and second.connection != first.connection

    def test_it_is_patient_while_answers_come(self) -> None:
        peer = play(a_plan("look", operations=80, patience_us=1_000, think_us=900))
        assert len(peer.links) == 1

    def test_stopped_it_asks_no_more_and_waits_for_what_it_is_owed(self) -> None:
        peer = Peer()
        client = start(peer, a_plan("look", operations=50, window=2))
        peer.run(SECOND)
        client.stop()
        assert not client.finished and peer.link.is_open
        answer = FakeBroker()(peer.asked[0])
        peer.link.answer(answer, answer)
        assert client.finished
        peer.run(SECOND)
        assert len(peer.operations) == 2

    def test_stopped_while_it_waits_to_connect_it_is_finished(self) -> None:
        peer = Peer()
        client = start(peer, a_plan("look", operations=50))
        peer.run(SECOND)
        peer.link.lose()
        client.stop()
        assert client.finished
        peer.run()
        assert len(peer.links) == 1

    def test_answers_after_hanging_up_are_not_heard(self) -> None:
        peer = Peer()
        client = start(peer, a_plan("look", operations=50))
        peer.run(SECOND)
        client.hang_up()
        peer.link.on_data(FakeBroker()(peer.asked[0]))
        assert one(peer).answered_us == NEVER

    def test_the_same_plan_asks_the_same(self) -> None:
        plan = a_plan(*MIXES["worker"], operations=200, window=4, think_us=900, keys=2)
        first, second = play(plan), play(plan)
        assert first.sends == second.sends
        assert first.world.lines == second.world.lines
        assert play(replace(plan, seed=6)).sends != first.sends


class TestBehaviour:
    """What a client asks."""

    def test_payloads_may_be_empty_and_alike(self) -> None:
        """A client's are all of one kind, so that nobody can tell them apart."""
        plan = a_plan("produce", "produce_batch", operations=100, empty_permille=1_000)
        kinds = set()
        for seed in range(8):
            peer = play(replace(plan, seed=seed))
            payloads = {m.payload for o in of_kind(peer, Produce) for m in o.messages}
            assert len(payloads) == 1
            kinds |= {msgpack.unpackb(payload) for payload in payloads}
        assert kinds == {b"", ""}

    def test_payloads_are_all_different_and_of_every_form(self) -> None:
        peer = play(a_plan("produce", "produce_batch", operations=300, payload_bytes_max=50))
        payloads = [m.payload for o in of_kind(peer, Produce) for m in o.messages]
        assert len(payloads) > 400 and len(set(payloads)) == len(payloads)
        assert {type(msgpack.unpackb(p)) for p in payloads} == {
            bytes,
            str,
            list,
            dict,
            msgpack.ExtType,
        }
        assert all(b"c7/" in payload for payload in payloads)

    def test_sizes_are_those_of_the_plan(self) -> None:
        small = play(a_plan("produce", operations=200, payload_bytes_max=500))
        sizes = [len(m.payload) for o in of_kind(small, Produce) for m in o.messages]
        assert 300 < max(sizes) < 800
        large = play(a_plan("produce", operations=20, large_permille=1_000))
        assert all(20_000 <= len(o.messages[0].payload) <= 201_000 for o in large.operations)

    def test_keys_partitions_and_metadata_are_there_if_asked_for(self) -> None:
        bare = play(a_plan("produce", operations=100))
        assert {m[1:] for o in bare.operations for m in o.messages} == {(None,) * 6}
        topics = (Topic(name="t", partitions=3),)
        full = play(
            a_plan(
                "produce",
                operations=400,
                topics=topics,
                keys=2,
                partition_permille=500,
                metadata_permille=500,
            )
        )
        messages = [m for o in full.operations for m in o.messages]
        assert {m.key for m in messages} == {b"key-0", b"key-1"}
        assert {m.partition for m in messages} == {None, 0, 1, 2, 3}, "now and then a wrong one"
        assert {m.metadata is None for m in messages} == {True, False}
        assert pack({}) in {m.metadata for m in messages}

    def test_leases_are_settled_once_unless_the_plan_says_otherwise(self) -> None:
        peer = play(a_plan("produce", "acquire", "settle", "settle_batch", operations=400))
        settled = [s.place for o in of_kind(peer, Settle) for s in o.settlements]
        leased = [d.place for o in of_kind(peer, Acquire) for d in o.deliveries]
        assert len(settled) > 50
        assert len(set(settled)) == len(settled) and set(settled) <= set(leased)

    def test_settled_leases_are_settled_again_on_demand(self) -> None:
        peer = play(a_plan("produce", "acquire", "settle", "settle_again", operations=300))
        settled = [s.place for o in of_kind(peer, Settle) for s in o.settlements]
        assert len(set(settled)) < len(settled) - 20

    def test_a_batch_may_name_a_record_twice(self) -> None:
        plan = a_plan("produce", "acquire", "settle_batch", "settle_again", operations=900)
        batches = [r for r in play(plan).asked if isinstance(r, mm.SettleBatch)]
        ids = [[item.message_id for item in batch.settles] for batch in batches]
        assert any(len(set(numbers)) < len(numbers) for numbers in ids)

    def test_strangers_settle_by_another_name(self) -> None:
        peer = play(
            a_plan("produce", "acquire_batch", "settle_foreign", operations=300, token_permille=500)
        )
        settles = of_kind(peer, Settle)
        assert {o.client for o in settles} == {"owner-stranger"}
        assert {s.token is None for o in settles for s in o.settlements} == {True, False}

    def test_blind_settles_reach_beyond_what_is_there(self) -> None:
        peer = play(a_plan("produce", "settle_blind", operations=300))
        produced = 0
        beyond = []
        for operation in peer.operations:
            produced += isinstance(operation, Produce)
            if isinstance(operation, Settle):
                beyond.append(operation.settlements[0].place.offset - produced)
        assert len(set(beyond)) > 20
        assert max(beyond) == 1, "the next id, and the one after it"

    def test_late_settles_wait_until_the_lease_should_be_over(self) -> None:
        plan = a_plan(
            "produce",
            "acquire",
            "settle",
            operations=300,
            think_us=SECOND,
            late_permille=1_000,
            duration_us_min=5 * SECOND,
            duration_us_max=5 * SECOND,
        )
        peer = play(plan)
        leased = {
            o.deliveries[0].place: o.answered_us for o in of_kind(peer, Acquire) if o.deliveries
        }
        settles = of_kind(peer, Settle)
        assert settles
        for settle in settles:
            (item,) = settle.settlements
            assert settle.sent_us > leased[item.place] + 5 * SECOND

    def test_an_extended_lease_is_late_only_after_its_new_end(self) -> None:
        plan = a_plan(
            "produce",
            "acquire",
            "settle",
            "extend",
            operations=600,
            think_us=SECOND,
            late_permille=1_000,
            duration_us_min=SECOND,
            duration_us_max=20 * SECOND,
        )
        over: dict[Place, int] = {}
        settled = 0
        for operation in play(plan).operations:
            match operation:
                case Acquire(deliveries=[delivery]):
                    over[delivery.place] = operation.answered_us + operation.duration_us
                case Extend():
                    over[operation.place] = operation.answered_us + operation.duration_us
                case Settle(settlements=[item]):
                    settled += 1
                    assert operation.sent_us > over[item.place]
        assert settled > 20

    def test_what_was_refused_is_not_taken_for_settled(self) -> None:
        peer = Peer()
        fake = FakeBroker()

        def reply(request: Any) -> bytes:
            if isinstance(request, mm.Settle):
                return mm.error(mm.Command.SETTLE, NOT_OWNER)
            return fake(request)

        peer.reply = reply
        start(peer, a_plan("produce", "acquire", "settle", "settle_again", operations=300))
        peer.run()
        settled = [s.place for o in of_kind(peer, Settle) for s in o.settlements]
        assert len(settled) > 20 and len(set(settled)) == len(settled)

    def test_forgotten_leases_are_never_settled(self) -> None:
        peer = play(a_plan("produce", "acquire_batch", "forget", operations=200))
        assert not of_kind(peer, Settle)

    def test_failures_and_delays_are_those_of_the_plan(self) -> None:
        mix: tuple[Action, ...] = ("produce", "acquire", "settle")
        calm = play(a_plan(*mix, operations=200, delay_us_max=SECOND))
        assert {(s.success, s.delay_us) for o in of_kind(calm, Settle) for s in o.settlements} == {
            (True, None)
        }
        rough = play(a_plan(*mix, operations=600, failure_permille=800, delay_us_max=SECOND))
        items = [s for o in of_kind(rough, Settle) for s in o.settlements]
        delays = [s.delay_us for s in items if s.delay_us is not None]
        assert {s.success for s in items} == {True, False}
        assert delays and max(delays) <= SECOND and not any(s.success and s.delay_us for s in items)

    def test_a_settle_whose_answer_was_lost_is_sent_again(self) -> None:
        """As the reference client does that cannot know whether it arrived."""
        peer = Peer()
        fake = FakeBroker()
        fake.records["t"] = [mm.BatchMessage(b"%d" % n) for n in range(200)]

        def reply(request: Any) -> bytes:
            if isinstance(request, mm.Settle):
                peer.link.lose()
            return fake(request)

        peer.reply = reply
        start(peer, a_plan("acquire", "settle", operations=300, reconnect_us_max=10))
        peer.run()
        settled = Counter(s.place for o in of_kind(peer, Settle) for s in o.settlements)
        assert max(settled.values()) > 1

    def test_a_client_that_can_do_nothing_still_finishes(self) -> None:
        assert not play(a_plan("settle", "extend", "forget", operations=20)).operations


class TestVandal:
    """A client without manners."""

    def play(self, seed: int) -> Peer:
        peer = Peer()
        plan = a_plan(role="vandal", seed=seed, operations=20, think_us=SECOND)
        vandal = Vandal(plan, peer.world, peer.connect, peer.history)
        assert isinstance(vandal, Vandal)
        vandal.start()
        peer.run()
        assert vandal.finished
        return peer

    def test_it_sends_much_and_records_nothing(self) -> None:
        peer = self.play(1)
        assert len(peer.links) == 20 and sum(map(len, peer.sends)) > 1_000
        assert not peer.operations
        assert not any(link.is_open for link in peer.links)

    @pytest.mark.parametrize(
        "trick",
        [pytest.param(trick, id=trick.__name__) for trick in TRICKS],
    )
    def test_nothing_that_it_sends_changes_anything(self, trick: Callable[[Random], bytes]) -> None:
        """A broker refuses it, waits for the rest of it, or tells how a group stands."""
        for seed in range(300):
            peer = Peer()
            peer.connect().send(trick(Random(seed)))
            for request in peer.asked:
                if isinstance(request, mm.BodyError):
                    break  # the connection is closed
                assert isinstance(request, mm.GroupInfo | mm.Release | mm.RequestError), request

    def test_it_does_not_care_what_is_answered_or_lost(self) -> None:
        peer = Peer()
        plan = a_plan(role="vandal", operations=5, think_us=SECOND)
        vandal = Vandal(plan, peer.world, peer.connect, peer.history)
        vandal.start()
        for _ in range(10):
            peer.run(SECOND // 2)
            if peer.link.is_open:
                peer.link.on_data(b"\xff" * 100)
                peer.link.lose()
        assert vandal.finished

    def test_sometimes_it_does_not_read(self) -> None:
        links = [link for seed in range(5) for link in self.play(seed).links]
        assert {link.paused for link in links} == {True, False}


def the_run(**changes: Any) -> Plan:
    plan = Plan(
        seed=1,
        end_us=SECOND,
        topics=(TOPIC, Topic(name="u")),
        clients=(
            a_plan(topics=(TOPIC,), groups=("g", "h"), duration_us_max=7 * SECOND),
            a_plan(topics=(Topic(name="u"),), groups=("g",)),
        ),
        settings=Settings(backoff_base_us=1_000, max_attempts=2),
    )
    return replace(plan, **changes)


class TestAuditor:
    """The end of a run."""

    LETTER = Letter(Place(0, 3), "max_attempts", 3, 3)

    def audit(self, peer: Peer, plan: Plan | None = None) -> list[int]:
        """Begin an audit; what is returned tells when it was done."""
        done: list[int] = []
        auditor = Auditor(
            plan or the_run(),
            peer.world,
            peer.connect,
            peer.direct,
            peer.history,
            lambda: done.append(peer.world.now_us),
        )
        peer.direct.tells = self.tells
        auditor.start()
        return done

    def tells(self, operation: Operation) -> object:
        if not isinstance(operation, Letters):
            return None
        return (self.LETTER,) if (operation.topic, operation.group) == ("t", "h") else ()

    def broker(self) -> FakeBroker:
        fake = FakeBroker()
        for topic, count in (("t", 1_200), ("u", 3)):
            fake.records[topic] = [mm.BatchMessage(b"%d" % n) for n in range(count)]
        return fake

    def complete(self) -> Peer:
        peer = Peer()
        peer.reply = self.broker()
        peer.run(5 * SECOND)
        done = self.audit(peer)
        peer.run()
        assert len(done) == 1
        assert not peer.link.is_open
        return peer

    def test_its_beginning_is_on_record(self) -> None:
        assert self.complete().history.audit_us == 5 * SECOND

    def test_it_reads_every_topic_whole_through_a_group_of_its_own(self) -> None:
        peer = self.complete()
        read = {
            topic: [
                delivery.place.offset
                for operation in of_kind(peer, Acquire)
                if (operation.topic, operation.group) == (topic, group)
                for delivery in operation.deliveries
            ]
            for topic, group in (("t", "audit-0"), ("u", "audit-1"))
        }
        assert read == {"t": list(range(1_200)), "u": [0, 1, 2]}
        assert not [o for o in of_kind(peer, Settle) if o.group.startswith("audit")]

    def test_it_waits_until_every_lease_and_delay_is_over(self) -> None:
        peer = self.complete()
        acquires = of_kind(peer, Acquire)
        audits = [o for o in acquires if o.group.startswith("audit")]
        read = [o.answered_us for o in audits if o.deliveries]
        drained = [o.sent_us for o in acquires if not o.group.startswith("audit")]
        assert min(drained) - max(read) >= the_run().longest_us

    def test_it_drains_every_group_and_is_not_content_with_one_empty_answer(self) -> None:
        peer = self.complete()
        for topic, group, count in (("t", "g", 1_200), ("t", "h", 1_200), ("u", "g", 3)):
            acquires = [o for o in of_kind(peer, Acquire) if (o.topic, o.group) == (topic, group)]
            settled = [
                s
                for o in of_kind(peer, Settle)
                if (o.topic, o.group) == (topic, group)
                for s in o.settlements
            ]
            assert [len(o.deliveries) for o in acquires[-2:]] == [0, 0]
            assert [s.place.offset for s in settled] == list(range(count))
            assert all(s.success and s.token is not None for s in settled)
        wire = [item for r in peer.asked if isinstance(r, mm.SettleBatch) for item in r.settles]
        assert all(item.token is not None for item in wire)

    def test_it_begins_by_resuming_groups_that_may_be_paused(self) -> None:
        peer = Peer()
        peer.reply = self.broker()
        peer.direct.refuses = lambda operation: (
            "topic 't' has no group 'h'" if getattr(operation, "group", "") == "h" else ""
        )
        done = self.audit(peer)
        peer.run()
        assert done
        first = peer.operations[:3]
        assert [(type(o), o.topic, o.group) for o in first] == [
            (Resume, topic, group) for topic, group in (("t", "g"), ("t", "h"), ("u", "g"))
        ]

    def test_it_looks_at_every_topic_before_it_reads_and_after_all_else(self) -> None:
        peer = self.complete()
        looked = [o.number for o in of_kind(peer, Describe)]
        asked = [o.number for o in peer.operations if isinstance(o, Acquire | Look | Letters)]
        assert len(looked) == 4
        assert looked[1] < min(asked) and max(asked) < looked[2]

    def test_it_reads_again_when_all_that_waited_is_stored(self) -> None:
        peer = Peer()
        fake = peer.reply = self.broker()
        late = mm.BatchMessage(b"late")
        peer.world.call_after(the_run().longest_us, lambda: fake.records["u"].append(late))
        self.audit(peer)
        peer.run()
        read = [
            d.payload for o in of_kind(peer, Acquire) if o.group == "audit-1" for d in o.deliveries
        ]
        assert read[-1] == mm.packing.pack(b"late")

    def test_it_asks_last_how_each_group_stands(self) -> None:
        peer = self.complete()
        explained = of_kind(peer, Explain)
        assert {o.topic for o in explained} <= {"t", "u"} and explained
        last = [o for o in peer.operations if not isinstance(o, Explain)][-8:-2]
        assert [(type(o), o.topic, o.group) for o in last] == [
            (kind, topic, group)
            for topic, group in (("t", "g"), ("t", "h"), ("u", "g"))
            for kind in (Look, Letters)
        ]
        assert [o.letters for o in of_kind(peer, Letters)] == [(), (self.LETTER,), ()]
        assert all(o.succeeded and o.boot == 3 for o in last)
        assert [o.number for o in peer.operations] == list(range(len(peer.operations)))

    def test_a_refusal_is_asked_again_after_a_while(self) -> None:
        peer = Peer()
        fake = self.broker()
        refusals = [mm.error(mm.Command.ACQUIRE_BATCH, "no room")] * 2
        peer.reply = lambda request: refusals.pop() if refusals else fake(request)
        done = self.audit(peer)
        peer.run()
        assert done
        assert [o.error for o in of_kind(peer, Acquire)[:3]] == ["no room", "no room", ""]

    def test_refused_for_ever_it_fails(self) -> None:
        peer = Peer()
        peer.reply = lambda request: mm.error(mm.Command.ACQUIRE_BATCH, "no room")
        done = self.audit(peer)
        with pytest.raises(AuditFailed, match="refused for ever: no room"):
            peer.run()
        assert not done

    def test_a_lost_connection_is_made_again_and_the_question_asked_again(self) -> None:
        peer = Peer()
        done = self.audit(peer)
        peer.run(SECOND)
        peer.link.lose()
        peer.reply = self.broker()
        peer.run()
        assert done
        first, second = of_kind(peer, Acquire)[:2]
        assert (first.topic, first.group) == (second.topic, second.group)
        assert first.answered_us == NEVER and second.succeeded

    def test_losing_it_too_often_it_fails(self) -> None:
        peer = Peer()
        self.audit(peer)
        peer.run(SECOND)
        with pytest.raises(AuditFailed, match="lost its connection"):
            for _ in range(10):
                peer.link.lose()
                peer.run(2 * SECOND)

    def test_a_call_goes_on_without_the_connection_and_is_made_once(self) -> None:
        """The broker may end a connection as idle while a call takes long."""
        peer = Peer()
        peer.reply, peer.direct.latency_us = self.broker(), 10 * SECOND
        done = self.audit(peer)
        for _ in range(10):
            peer.run(SECOND)
            peer.link.lose()
            peer.run(2 * SECOND)
        peer.direct.latency_us = SECOND
        peer.run()
        assert done and len(peer.links) == 11
        asked = Counter((type(o), o.topic, getattr(o, "group", "")) for o in peer.operations)
        assert [asked[Resume, *pair] for pair in (("t", "g"), ("t", "h"), ("u", "g"))] == [1] * 3
        assert [asked[Describe, topic, ""] for topic in ("t", "u")] == [2, 2]

    def test_after_a_call_without_a_connection_a_request_waits_for_one(self) -> None:
        peer = Peer()
        peer.reply, peer.direct.latency_us = self.broker(), SECOND
        done = self.audit(peer)
        peer.run(5 * SECOND - 1)
        peer.link.lose()
        peer.run()
        assert done
        (last,) = [o for o in of_kind(peer, Describe)[:2] if o.topic == "u"]
        first = of_kind(peer, Acquire)[0]
        assert first.succeeded and first.sent_us >= last.sent_us + SECOND
        assert len(peer.links) == 2

    def test_an_audit_that_ends_without_a_connection_makes_no_other(self) -> None:
        peer = Peer()
        peer.reply, peer.direct.latency_us = self.broker(), 10 * SECOND
        done = self.audit(peer)
        while not any((o.topic, o.place.offset) == ("u", 2) for o in of_kind(peer, Explain)):
            peer.run(SECOND)
        peer.run(of_kind(peer, Explain)[-1].sent_us + 10 * SECOND - 1 - peer.world.now_us)
        peer.link.lose()
        peer.run()
        assert done and len(peer.links) == 1

    def test_a_run_without_groups_is_audited_too(self) -> None:
        peer = Peer()
        peer.reply = self.broker()
        done = self.audit(peer, the_run(clients=()))
        peer.run()
        assert done and not of_kind(peer, Look)


class TestTrace:
    """The trace is for people: one line for a request, one for its answer."""

    @pytest.mark.parametrize("action", [a for a in MIXES["worker"] if a != "forget"])
    def test_requests_and_answers_can_be_followed(self, action: Action) -> None:
        peer = play(a_plan("produce", "acquire_batch", action, operations=100))
        for operation in peer.operations:
            lines = [line for line in peer.world.lines if f" #{operation.number} " in line]
            assert [line.split(f" #{operation.number} ")[1] for line in lines] == [
                asked(operation),
                outcome(operation),
            ]
            assert "'t'" in lines[0]

    def test_refusals_say_why(self) -> None:
        peer = Peer()
        start(peer, a_plan("settle_blind"))
        peer.run(1_000)
        peer.link.answer(mm.error(mm.Command.SETTLE, NOT_OWNER))
        assert f"refused: {NOT_OWNER}" in peer.world.lines[-2]

    def test_losses_are_told(self) -> None:
        peer = Peer()
        start(peer, a_plan("look", operations=5))
        peer.run(1_000)
        peer.link.lose("the cable is cut")
        assert "the cable is cut" in peer.world.lines[-1]

    def test_every_operation_has_words(self) -> None:
        letters = Letters(
            number=0, client="a", topic="t", group="g", letters=(TestAuditor.LETTER,), answered_us=1
        )
        assert asked(letters) == "dead letters of 't'/'g'"
        assert outcome(letters) == "0:3(max_attempts)"
        settle = Settle(
            number=0,
            client="a",
            topic="t",
            group="g",
            settlements=(Settlement(Place(1, 2), False, 9, 1_500_000),),
            results=("no",),
            answered_us=1,
        )
        assert asked(settle) == "settle 't'/'g' 1:2 failed by token 9 delay 1.5s"
        assert outcome(settle) == "settled, no"
