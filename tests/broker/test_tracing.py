"""Spans of records with a trace context: which frames make them, and what they say."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import msgpack
import pytest
from twisted.logger import capturedLogs

from brokerd.broker import BrokerSettings
from brokerd.broker.tracing import (
    METADATA_BYTES_MAX,
    STATE_BYTES_MAX,
    FrameTracer,
    Span,
    TraceContext,
    trace_context,
)
from brokerd.codecs import blipmq as bm
from brokerd.codecs.mamamia import (
    Acquire,
    AcquireBatch,
    BatchMessage,
    Produce,
    ProduceBatch,
    Produced,
    Release,
    Settle,
)
from brokerd.groups import GroupSettings
from tests.house import House, ask
from tests.protocols.blipmq_desk import BlipmqHouse

TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736
PARENT = 0x00F067AA0BA902B7
TRACEPARENT = f"00-{TRACE:032x}-{PARENT:016x}-01"
SEED_NS = 1_700_000_000_000_000_000


def metadata(traceparent: object = TRACEPARENT, **more: object) -> bytes:
    packed: bytes = msgpack.packb({"id": 1, "traceparent": traceparent, **more})
    return packed


class Sink:
    """Takes spans up to a limit."""

    def __init__(self, limit: int = 1_000) -> None:
        self.spans: list[Span] = []
        self.limit = limit

    def offer(self, span: Span) -> bool:
        if len(self.spans) >= self.limit:
            return False
        self.spans.append(span)
        return True

    def take(self) -> list[Span]:
        spans, self.spans = self.spans, []
        return spans


class TracedHouse(House):
    """A house whose frames are observed."""

    def trace(self, leases_max: int = 100, waiting_max: int = 100, limit: int = 1_000) -> None:
        self.sink = Sink(limit)
        ids = count(1)
        self.tracer = FrameTracer(
            self.sink,
            lambda: next(ids),
            lambda: round(self.wall_seconds * 1_000) * 1_000_000,
            self.broker.time.monotonic_us,
            leases_max,
            waiting_max,
        )
        self.broker.group_commit.observer = self.tracer

    def spans(self) -> list[Span]:
        """Do all work, and return the spans that ended."""
        self.run()
        return self.sink.take()

    def lease(self, client: str = "worker", duration: float = 30.0) -> None:
        (answer,) = ask(self, Acquire("orders", "g", client, duration))
        assert answer.message is not None

    def settle(self, offset: int = 0, success: bool = True, **rest: Any) -> None:
        ask(self, Settle("orders", "g", offset, "worker", success, **rest))


def traced(settings: BrokerSettings | None = None, **limits: int) -> TracedHouse:
    house = TracedHouse(settings=settings)
    house.trace(**limits)
    return house


def traced_record(settings: BrokerSettings | None = None, **limits: int) -> TracedHouse:
    """A house with one durable record with a context, and no spans so far."""
    house = traced(settings, **limits)
    assert ask(house, Produce("orders", b"x", metadata=metadata())) == [Produced(0)]
    house.sink.take()
    return house


def names(spans: list[Span]) -> list[str]:
    return [span.name for span in spans]


def outcomes(spans: list[Span]) -> list[tuple[str, object]]:
    return [
        (span.name.partition(" ")[0], span.attributes.get("messaging.brokerd.lease.outcome"))
        for span in spans
    ]


# -- contexts ---------------------------------------------------------------------------------


IDS = f"{TRACE:032x}-{PARENT:016x}"


@pytest.mark.parametrize(
    ("text", "is_sampled"),
    [
        (f"00-{IDS}-01", True),
        (f"00-{IDS}-00", False),
        (f"00-{IDS}-03", True),  # unknown flags do not matter
        (f"00-{IDS}-fe", False),
        (f"01-{IDS}-01", True),  # a later version
        (f"cc-{IDS}-01-what-comes-later", True),
        (f"cc-{IDS}-01-", True),
        (f"00-{IDS}-01".encode(), True),  # bin
    ],
)
def test_a_valid_traceparent(text: object, is_sampled: bool) -> None:
    assert trace_context(metadata(text)) == TraceContext(TRACE, PARENT, is_sampled, "")


@pytest.mark.parametrize(
    "odd",
    [
        "",
        f"ff-{IDS}-01",
        f"00-{IDS}-01-more",
        f"00-{IDS}-01\n",
        f" 00-{IDS}-01",
        f"cc-{IDS}-01more",
        f"00-{IDS}-1",
        f"00-{IDS}",
        f"00-{IDS.upper()}-01",
        f"00-{IDS}-0A",
        f"0-{IDS}-01",
        f"00-{0:032x}-{PARENT:016x}-01",
        f"00-{TRACE:032x}-{0:016x}-01",
        f"00-{IDS[1:]}-01",
        f"00_{IDS}_01",
        f"00-{IDS}-01".replace("4", "\uff14"),  # a digit, but not of ASCII
        7,
        None,
        [TRACEPARENT],
        {"traceparent": TRACEPARENT},
    ],
)
def test_an_invalid_traceparent_makes_no_span(odd: object) -> None:
    with pytest.raises(ValueError, match="traceparent"):
        trace_context(metadata(odd))
    house = traced()
    ask(house, Produce("orders", b"x", metadata=metadata(odd)))
    assert not house.spans()
    assert house.tracer.invalid == 1


@pytest.mark.parametrize(
    "packed",
    [
        msgpack.packb({}),
        msgpack.packb({"TraceParent": TRACEPARENT, "text": "traceparent"}),
        msgpack.packb({"nested": {"traceparent": TRACEPARENT}}),
        msgpack.packb({"qos": 0}),
        msgpack.packb(["traceparent", TRACEPARENT]),
    ],
)
def test_metadata_without_a_context(packed: bytes) -> None:
    assert trace_context(packed) is None


def test_metadata_that_cannot_be_searched() -> None:
    """Such bytes come only past the wire formats. They make no span and do no harm."""
    house = traced()
    large = metadata(more="x" * METADATA_BYTES_MAX)
    maps_as_keys = b"\x82\xabtraceparent\x01\x80\x01"
    deep = b"\x81\xabtraceparent" + b"\x91" * 2_000 + b"\x01"
    for odd in (large, maps_as_keys, deep, b"\x82\xabtraceparent", b"\xc1traceparent"):
        with pytest.raises(ValueError):
            trace_context(odd)
        house.append("orders", b"x", metadata=odd)
    assert not house.spans()
    assert house.tracer.invalid == 5
    assert trace_context(msgpack.packb({1: 2, b"\xff": 3, "traceparent": TRACEPARENT}))


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        ("vendor=1,other=2", "vendor=1,other=2"),
        ("v=" + "1" * (STATE_BYTES_MAX - 2), "v=" + "1" * (STATE_BYTES_MAX - 2)),
        ("v=" + "1" * (STATE_BYTES_MAX - 1), ""),
        ("vendor=ü", ""),
        (5, ""),
    ],
)
def test_tracestate_is_kept_if_short(state: object, kept: str) -> None:
    """A state that is left out does not invalidate the context."""
    context = trace_context(metadata(tracestate=state))
    assert context is not None and context.state == kept


# -- produce ----------------------------------------------------------------------------------


def test_a_produce_lasts_from_its_frame_until_it_is_durable() -> None:
    house = traced()
    client = house.connect()
    client.send(Produce("orders", b"x", metadata=metadata(tracestate="v=1")))
    house.turn()
    assert not house.sink.spans, "its frame is not durable"
    house.clock.advance(0.25)
    (span,) = house.spans()
    assert span == Span(
        "produce orders",
        "server",
        TraceContext(TRACE, PARENT, True, "v=1"),
        1,
        SEED_NS,
        SEED_NS + 250_000_000,
        {
            "messaging.system": "brokerd",
            "messaging.operation.name": "produce",
            "messaging.operation.type": "send",
            "messaging.destination.name": "orders",
            "messaging.destination.partition.id": "0",
            "messaging.message.id": "0",
        },
    )
    assert house.tracer.status() == {
        "spans": {"produce": 1, "lease": 0, "settle": 0},
        "dropped": {"queue": 0, "leases": 0},
        "invalid": 0,
        "unseen": 0,
        "open_leases": 0,
    }


def test_each_sampled_record_of_a_batch_has_a_span() -> None:
    """In the second batch, too: it is in the same chunk of memory."""
    unsampled = TRACEPARENT[:-1] + "0"
    contexts = (metadata(), None, metadata(unsampled), msgpack.packb({"a": 1}), metadata())
    batch = ProduceBatch("orders", tuple(BatchMessage(b"x", metadata=one) for one in contexts))
    house = traced()
    for base in (0, 5):
        ask(house, batch)
        spans = house.spans()
        assert [span.attributes["messaging.message.id"] for span in spans] == [
            str(base),
            str(base + 4),
        ]
        assert len({span.span_id for span in spans}) == 2
    assert house.tracer.invalid == 0


def test_records_without_a_context_make_no_spans() -> None:
    house = traced()
    ask(house, Produce("orders", b"x"), Produce("orders", b"y", metadata=msgpack.packb({"a": 1})))
    house.lease()
    house.settle()
    assert not house.spans()
    assert house.tracer.status() == traced().tracer.status()


def test_a_delayed_message_is_traced_when_it_becomes_a_record() -> None:
    """Its wait in an internal topic is the broker's own matter, and no record is looked for."""
    house = traced(BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0))
    ask(house, Produce("orders", b"x", metadata=metadata(), delay=2.0))
    assert not house.spans()
    house.pass_time(2.1)
    (span,) = house.spans()
    assert span.name == "produce orders"
    assert house.tracer.unseen == 0
    assert SEED_NS + 1_900_000_000 < span.start_ns < SEED_NS + 2_200_000_000


def test_a_crash_before_the_commit_makes_no_span() -> None:
    house = traced()
    house.connect().send(Produce("orders", b"x", metadata=metadata()))
    house.turn()
    house.crash()
    assert not house.sink.spans


def test_a_step_of_the_wall_clock_changes_no_duration() -> None:
    house = traced_record()
    house.lease()
    house.wall_seconds -= 3_600
    house.clock.advance(2.0)
    house.settle()
    lease, settle = house.spans()
    assert lease.end_ns - lease.start_ns == 2_000_000_000
    assert 0 <= settle.end_ns - settle.start_ns < 1_000_000_000


# -- leases -----------------------------------------------------------------------------------


def test_a_lease_lasts_from_the_grant_to_its_settle() -> None:
    house = traced_record()
    house.lease()
    assert house.tracer.status()["open_leases"] == 1
    assert not house.spans()
    house.pass_time(3.0)
    house.settle()
    lease, settle = house.spans()
    common = {
        "messaging.system": "brokerd",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.message.id": "0",
        "messaging.consumer.group.name": "g",
        "messaging.client.id": "worker",
        "messaging.brokerd.lease.outcome": "settled",
    }
    assert lease.name == "lease orders" and lease.kind == "internal"
    assert lease.attributes == {
        **common,
        "messaging.operation.name": "lease",
        "messaging.operation.type": "receive",
        "messaging.brokerd.lease.attempt": 1,
        "messaging.brokerd.lease.duration_ms": 30_000,
    }
    assert 2.9e9 < lease.end_ns - lease.start_ns < 3.1e9
    assert settle.name == "settle orders" and settle.kind == "server"
    assert settle.attributes == {
        **common,
        "messaging.operation.name": "settle",
        "messaging.operation.type": "settle",
    }
    assert lease.parent == settle.parent == TraceContext(TRACE, PARENT, True, "")
    assert settle.linked_id == lease.span_id != settle.span_id
    assert not lease.error and not settle.error
    assert house.tracer.status()["open_leases"] == 0


def test_a_lease_in_the_frame_of_its_record() -> None:
    """A long poll leases a record before its frame is made."""
    house = traced()
    poll = house.connect()
    poll.send(Acquire("orders", "g", "worker", wait=10.0))
    house.run()
    ask(house, Produce("orders", b"x", metadata=metadata()))
    assert names(house.spans()) == ["produce orders"]
    house.settle()
    assert names(house.spans()) == ["lease orders", "settle orders"]


def test_failures_up_to_the_dead_letter() -> None:
    house = traced_record()
    for attempt in (1, 2, 3):
        house.lease()
        house.settle(success=False, reason="no such customer")
        outcome = "dead_letter" if attempt == 3 else "failed"
        lease, settle = spans = house.spans()
        assert outcomes(spans) == [("lease", outcome), ("settle", outcome)]
        assert lease.error == settle.error == outcome
        assert lease.attributes["messaging.brokerd.lease.attempt"] == attempt
        for span in spans:
            assert span.attributes["messaging.brokerd.reason"] == "no such customer"


def test_a_lapse_is_an_error_without_a_settle() -> None:
    house = traced_record()
    house.lease(duration=1.0)
    house.pass_time(1.5)
    (lease,) = spans = house.spans()
    assert outcomes(spans) == [("lease", "expired")]
    assert lease.error == "expired"
    assert 1.0e9 <= lease.end_ns - lease.start_ns < 1.6e9


def test_a_lapse_that_makes_a_dead_letter_has_no_settle() -> None:
    house = traced_record(BrokerSettings(groups=GroupSettings(max_attempts=1, attempts="grants")))
    house.lease(duration=1.0)
    house.pass_time(1.5)
    assert outcomes(house.spans()) == [("lease", "dead_letter")]


def test_a_settle_after_the_lapse() -> None:
    """It is told; the lease that it belonged to has ended."""
    house = traced_record()
    house.lease(duration=1.0)
    house.pass_time(1.5)
    house.sink.take()
    house.settle()
    (settle,) = spans = house.spans()
    assert outcomes(spans) == [("settle", "settled")]
    assert settle.linked_id == 0 and "messaging.client.id" not in settle.attributes


def test_a_settle_after_a_restart() -> None:
    """The lease began in another process. Its record is in memory if somebody has read it."""
    house = traced_record()
    ask(house, Produce("orders", b"y", metadata=metadata()))
    ask(house, AcquireBatch("orders", "g", "worker", 2))
    house.disk.crash()
    house = TracedHouse(house.disk)
    house.trace()
    house.settle(0)
    assert not house.spans() and house.tracer.unseen == 1
    house.load(house.partitions()[0], 1)
    house.settle(1)
    assert outcomes(house.spans()) == [("settle", "settled")]
    assert house.tracer.unseen == 1


def _release(house: TracedHouse) -> None:
    ask(house, Release("orders", "g", "worker", None))


def _reorder(house: TracedHouse) -> None:
    house.broker.groups.configure("orders", "g", GroupSettings(key_ordered=True))


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        (_release, "released"),
        (lambda house: house.broker.groups.seek("orders", "g", 0), "reset"),
        (_reorder, "reset"),
        (lambda house: house.broker.groups.delete("orders", "g"), "deleted"),
        (lambda house: house.broker.topics.delete("orders"), "deleted"),
        (lambda house: house.broker.topics.trim("orders", 0, 1), "removed"),
    ],
)
def test_other_ends_of_a_lease(change: Callable[[TracedHouse], object], outcome: str) -> None:
    house = traced_record()
    house.lease()
    change(house)
    (lease,) = spans = house.spans()
    assert outcomes(spans) == [("lease", outcome)]
    assert not lease.error
    assert house.tracer.status()["open_leases"] == 0
    assert not house.tracer._leases, "nothing is left in memory"


def test_a_trim_ends_the_leases_below_it_in_its_partition() -> None:
    house = traced()
    house.broker.topics.create("orders", 2)
    for partition in (0, 1):
        message = BatchMessage(b"x", metadata=metadata(), partition=partition)
        ask(house, ProduceBatch("orders", (message,) * 3))
    ask(house, AcquireBatch("orders", "g", "worker", 9))
    house.sink.take()
    house.broker.topics.trim("orders", 1, 2)
    assert [
        (
            span.attributes["messaging.destination.partition.id"],
            span.attributes["messaging.message.id"],
        )
        for span in house.spans()
    ] == [("1", "0"), ("1", "1")]
    assert house.tracer.status()["open_leases"] == 4


def test_expired_records_end_no_lease() -> None:
    """A range of expired records before and behind a leased one is settled by one event each."""
    house = traced()
    contexts = ((metadata(), 1.0), (metadata(), None), (metadata(), 1.0))
    batch = tuple(BatchMessage(b"x", metadata=one, ttl=ttl) for one, ttl in contexts)
    ask(house, ProduceBatch("orders", batch))
    house.pass_time(2.0)
    house.sink.take()
    house.lease()
    ask(house, Acquire("orders", "g", "other"))
    assert not house.spans()
    assert house.tracer.status()["open_leases"] == 1


def test_changes_that_end_no_lease() -> None:
    house = traced_record()
    ask(house, Produce("orders", b"y"))
    house.lease()
    house.broker.groups.configure("orders", "g", GroupSettings(max_attempts=9))
    house.broker.groups.pause("orders", "g")
    house.broker.topics.create("another")
    house.broker.topics.trim("orders", 0, 0)
    assert not house.spans()
    house.settle()
    assert outcomes(house.spans()) == [("lease", "settled"), ("settle", "settled")]


def test_groups_have_leases_of_their_own() -> None:
    house = traced_record()
    ask(house, Acquire("orders", "g", "worker"), Acquire("orders", "", ""))
    house.settle()
    assert [span.attributes["messaging.consumer.group.name"] for span in house.spans()] == ["g"] * 2
    ask(house, Settle("orders", "", 0, "", True))
    for span in house.spans():
        assert span.attributes["messaging.consumer.group.name"] == ""
        assert "messaging.client.id" not in span.attributes


def test_a_delivery_of_blipmq_is_a_lease() -> None:
    """The format has no metadata. Its consumers get the records of others."""
    house = BlipmqHouse()
    client = house.client()
    subscription = client.subscribe("orders")
    TracedHouse.trace(house)
    house.append("orders", b"x", metadata=metadata())
    delivery = client.poll(subscription)
    assert delivery is not None and delivery.message == b"x"
    assert client.ask(bm.Ack(delivery.correlation_id, subscription), bm.Ping(5)) == [bm.Pong(5)]
    spans = house.sink.take()
    assert outcomes(spans) == [("produce", None), ("lease", "settled"), ("settle", "settled")]
    group = f"__blipmq.{subscription}"
    assert spans[1].attributes["messaging.consumer.group.name"] == group


# -- bounds -----------------------------------------------------------------------------------


def test_a_full_queue_drops_and_counts() -> None:
    house = traced(limit=1)
    for _ in range(3):
        ask(house, Produce("orders", b"x", metadata=metadata()))
    assert len(house.spans()) == 1
    status = house.tracer.status()
    assert status["spans"]["produce"] == 1 and status["dropped"] == {"queue": 2, "leases": 0}


def test_spans_that_wait_for_their_frames_are_bounded() -> None:
    house = traced(waiting_max=3)
    batch = ProduceBatch("orders", (BatchMessage(b"x", metadata=metadata()),) * 5)
    house.connect().send(batch)
    house.turn()
    house.connect().send(batch)
    house.broker.group_commit.end_frame_early()
    assert len(house.spans()) == 3
    assert house.tracer.dropped == {"queue": 7, "leases": 0}
    house.connect().send(batch)
    assert len(house.spans()) == 3, "the places are free again"


def test_open_leases_are_bounded() -> None:
    """The settle of a lease that is not remembered is still told."""
    house = traced(leases_max=2)
    ask(house, ProduceBatch("orders", (BatchMessage(b"x", metadata=metadata()),) * 3))
    ask(house, AcquireBatch("orders", "g", "worker", 3))
    house.sink.take()
    assert house.tracer.dropped == {"queue": 0, "leases": 1}
    assert house.tracer.status()["open_leases"] == 2
    house.settle(2)
    assert outcomes(house.spans()) == [("settle", "settled")]
    house.settle(0)
    house.settle(1)
    assert len(house.spans()) == 4
    assert house.tracer.status()["open_leases"] == 0


def test_no_record_is_read_from_disk_for_a_span() -> None:
    house = traced_record(BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0))
    reads = house.broker.cold_reader.reads
    house.settle()
    assert not house.spans()
    assert house.tracer.unseen == 1
    assert house.broker.cold_reader.reads == reads


@pytest.mark.parametrize("function", ["frame_built", "frame_durable"])
def test_a_fault_ends_the_tracing_and_nothing_else(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise LookupError("planted")

    house = traced()
    monkeypatch.setattr(house.tracer, function, fail)
    with capturedLogs() as logs:
        assert ask(house, Produce("orders", b"x", metadata=metadata())) == [Produced(0)]
        assert ask(house, Produce("orders", b"x", metadata=metadata())) == [Produced(1)]
    assert [event["event_id"] for event in logs if "event_id" in event] == ["tracing-failed"]
    assert house.broker.group_commit.observer is None
    assert not house.failures and not house.spans()
