"""Large compressed requests: read in turns, one at a time, and nobody else waits for them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from brokerd.broker import BrokerSettings
from brokerd.broker.slices import SLICE_SECONDS
from brokerd.codecs import flymq
from brokerd.protocols.base.framing import STRANGER_BYTES_MAX
from brokerd.protocols.flymq import connection as flymq_protocol
from brokerd.protocols.flymq.decompression import AT_ONCE_BYTES, SLICE_STEPS
from brokerd.security import ADMIN, WRITE
from tests.guards import Given, GuardOf
from tests.protocols.flymq_desk import MIB, FlymqClient, FlymqHouse, SteppedHouse
from tests.security.hall import Hall

KIB = 1 << 10
STEP_BYTES = 64 * KIB
LARGE = 8 * MIB
NARROW = BrokerSettings(max_uncommitted_bytes=64 * KIB, frame_bytes=64 * KIB)


def produce(size: int, letter: bytes = b"x", topic: str = "t") -> flymq.Produce:
    return flymq.Produce(topic, None, letter * size, 0)


def offsets(client: FlymqClient) -> list[int]:
    return [answer.offset for answer in client.answers()]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes came of decompressing, in one number."""
    made = [0]
    step = flymq.CompressedRequest.step

    def counting(request: Any) -> bool:
        before = request.done_bytes
        try:
            return step(request)
        finally:
            made[0] += request.done_bytes - before

    monkeypatch.setattr(flymq.CompressedRequest, "step", counting)
    return made


def test_others_are_served_while_a_large_request_is_read_and_what_is_behind_it_waits() -> None:
    house = SteppedHouse()
    house.fill(1)
    slow, other = house.client(), house.client()
    slow.send(produce(LARGE, topic="u"), gzip=True)
    slow.send(flymq.ListTopics(), flymq.Consume("u", 0, 0))
    turns = 0
    while house.steps.waiting:
        other.send(flymq.Fetch("t", 0, 0, 1))
        assert len(other.answers()) == 1
        assert not slow.transport.received
        house.steps.step()
        turns += 1
    assert turns >= LARGE // (SLICE_STEPS * STEP_BYTES)
    house.finish()
    produced, topics, consumed = slow.answers()
    assert produced == flymq.Produced("u", 0, 0, produced.timestamp_ms, -1, LARGE)
    assert topics == flymq.Topics(("t", "u"))
    assert consumed == flymq.Consumed(None, b"x" * LARGE)


def test_a_slice_ends_when_its_time_is_over_however_little_it_made() -> None:
    """There are blocks that say nothing at great length."""
    house = SteppedHouse()
    house.steps.look_seconds = SLICE_SECONDS / 2
    client = house.client()
    client.send(produce(4 * MIB), gzip=True)
    turns = 0
    while house.steps.waiting:
        house.steps.step()
        turns += 1
    assert turns >= 4 * MIB // (3 * STEP_BYTES)
    house.finish()
    assert offsets(client) == [0]


def test_a_small_request_is_read_at_once() -> None:
    house = SteppedHouse()
    house.fill(1)
    client = house.client()
    client.send(flymq.Fetch("t", 0, 0, 1), gzip=True)
    assert len(client.answers()) == 1


def test_small_requests_have_so_much_of_a_turn_together_whoever_sends_them(
    counted: list[int],
) -> None:
    """A flood of them is one more piece of work in turns, and comes to its end."""
    house = SteppedHouse()
    clients = [house.client() for _ in range(20)]
    for client in clients:
        client.send(*[produce(20 * KIB)] * 10, gzip=True)
    assert counted[0] <= AT_ONCE_BYTES + STEP_BYTES + 16 * KIB
    while house.steps.waiting:
        before = counted[0]
        house.steps.step()
        assert counted[0] - before <= AT_ONCE_BYTES + 2 * STEP_BYTES
        house.run()
    house.finish()
    assert sorted(one for client in clients for one in offsets(client)) == list(range(200))


def test_broken_payloads_count_like_others(counted: list[int]) -> None:
    """They cost as much before they are found out."""
    house = SteppedHouse()
    client = house.client()
    frame = flymq.encode_request(produce(40 * KIB), gzip=True)
    broken = frame[:-8] + bytes(4) + frame[-4:]
    for _ in range(50):
        client.send_bytes(broken)
    assert counted[0] <= AT_ONCE_BYTES + STEP_BYTES + 16 * KIB
    house.finish()
    frames = flymq.FrameReader().feed(client.received_bytes())
    assert [opcode for opcode, _, _ in frames] == [flymq.Opcode.ERROR] * 50


def test_large_requests_of_one_connection_are_carried_out_in_order() -> None:
    house = SteppedHouse()
    client, other = house.client(), house.client()
    client.send(*[produce(2 * MIB + size) for size in range(4)], gzip=True)
    other.send(*[produce(2 * MIB, topic="u")] * 2, gzip=True)
    house.finish()
    answers = client.answers()
    assert [(one.offset, one.value_size - 2 * MIB) for one in answers] == [
        (number, number) for number in range(4)
    ]
    assert offsets(other) == [0, 1]


@pytest.mark.parametrize("settings", [BrokerSettings(), NARROW], ids=["roomy", "congested"])
def test_of_many_large_requests_one_is_in_memory_at_a_time(settings: BrokerSettings) -> None:
    """Kilobytes must not become a large payload on each connection, not if the log is full."""
    house = SteppedHouse(settings=settings)
    partition = house.broker.topics.create("t").partitions[0]
    house.run()
    clients = [house.client() for _ in range(20)]
    packed = flymq.encode_request(produce(LARGE), gzip=True)
    tracemalloc.start()
    try:
        for client in clients:
            client.send_bytes(packed)
        while house.steps.waiting:
            house.steps.step()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert partition.next_offset < 10
    assert peak < (partition.next_offset + 3) * LARGE
    house.finish()
    answers = [flymq.FrameReader().feed(client.received_bytes()) for client in clients]
    assert [[opcode for opcode, _, _ in frames] for frames in answers] == [
        [flymq.Opcode.PRODUCE]
    ] * 20


@pytest.mark.parametrize("gzip", [True, False])
def test_a_request_that_waits_for_room_is_not_read_again(
    gzip: bool, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    house = FlymqHouse(settings=NARROW)
    decoded = [0]
    decode_request = flymq_protocol.decode_request

    def counting(*frame: Any) -> Any:
        decoded[0] += 1
        return decode_request(*frame)

    monkeypatch.setattr(flymq_protocol, "decode_request", counting)
    clients = [house.client() for _ in range(8)]
    for client in clients:
        client.send(*[produce(40 * KIB)] * 5, gzip=gzip)
    house.run()
    assert sorted(one for client in clients for one in offsets(client)) == list(range(40))
    if gzip:
        assert 40 * 40 * KIB < counted[0] < 40 * 41 * KIB
    else:
        assert decoded == [40]


def test_a_request_that_waits_for_room_is_in_memory_once() -> None:
    house = FlymqHouse(settings=NARROW)
    house.produce(b"")
    client = house.client()
    frame = flymq.encode_request(produce(LARGE))
    tracemalloc.start()
    try:
        client.send_bytes(flymq.encode_request(produce(1)))
        client.send_bytes(frame)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1.5 * LARGE


Spoil = Callable[[bytes], bytes]


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda frame: frame[:-8] + bytes(4) + frame[-4:], "the payload is not gzip: "),
        (lambda frame: frame[:2] + b"\xb0" + frame[3:], "unknown opcode: 176"),
        (lambda frame: frame[:2] + b"\x07" + frame[3:], "topic not found: t"),
        (lambda frame: frame[:2] + b"\x05" + frame[3:], "invalid binary format: mode"),
    ],
)
def test_a_large_request_is_refused_in_its_place_and_the_connection_lives(
    spoil: Spoil, text: str
) -> None:
    house = FlymqHouse()
    client = house.client()
    frame = flymq.encode_request(flymq.Produce("t", b"\x00" * 9, b"\x00" * MIB, 0), gzip=True)
    lists = flymq.encode_request(flymq.ListTopics())
    client.send_bytes(lists + spoil(frame) + lists)
    house.run()
    first, refused, last = flymq.FrameReader().feed(client.received_bytes())
    assert first == last
    assert refused[0] == flymq.Opcode.ERROR
    assert flymq.error_text(refused[2]).startswith(text)


@pytest.mark.parametrize("slices", [0, 2, 5])
@pytest.mark.parametrize("leaves", ["disconnect", "send_no_more"])
def test_who_leaves_holds_up_nobody(leaves: str, slices: int) -> None:
    """In front or not; what came before the end of a stream is carried out."""
    house = SteppedHouse()
    clients = [house.client() for _ in range(4)]
    for client in clients:
        client.send(produce(LARGE), gzip=True)
    for _ in range(slices):
        house.steps.step()
    for client in clients[:2]:
        getattr(client, leaves)()
    house.finish()
    answered = [len(client.answers()) for client in clients]
    assert answered == ([0, 0, 1, 1] if leaves == "disconnect" else [1, 1, 1, 1])
    assert [client.is_open for client in clients] == [False, False, True, True]


def test_nothing_is_read_any_more_of_who_has_left(counted: list[int]) -> None:
    house = SteppedHouse()
    clients = [house.client() for _ in range(4)]
    for client in clients:
        client.send(produce(LARGE), gzip=True)
    house.steps.step()
    for client in clients:
        client.disconnect()
    before = counted[0]
    house.finish()
    assert counted[0] == before < LARGE


def test_who_leaves_while_its_request_waits_for_room_holds_up_nobody() -> None:
    house = SteppedHouse(settings=NARROW)
    house.produce(b"", topic="t")
    first, second = house.client(), house.client()
    for client in (house.client(), first, second):
        client.send(produce(MIB), gzip=True)
    while house.steps.waiting:
        house.steps.step()
    first.disconnect()
    house.finish()
    assert offsets(second) == [2]


def test_a_peer_that_does_not_read_holds_up_nobody() -> None:
    """Its large request found no room, and when there is some its answers fill the network."""
    house = SteppedHouse(settings=NARROW)
    house.produce(b"", topic="u")
    silent, other = house.client(), house.client()
    silent.stop_reading()
    silent.transport.BUFFER_BYTES = 1_000
    silent.send(*[produce(1)] * 100)
    silent.send(produce(LARGE), gzip=True)
    other.send(produce(LARGE, topic="u"), gzip=True)
    while house.steps.waiting:
        house.steps.step()
    assert not silent.transport.buffered
    house.finish()
    assert silent.transport.buffered
    assert offsets(other) == [1]
    silent.read_on()
    house.finish()
    assert offsets(silent) == list(range(101))


def test_a_broker_that_stops_waits_for_no_large_request() -> None:
    house = SteppedHouse()
    clients = [house.client() for _ in range(3)]
    for client in clients:
        client.send(produce(LARGE), gzip=True)
    house.steps.step()
    house.flymq_factory.close_all()
    house.finish()
    assert not any(client.is_open for client in clients)
    assert not house.flymq_factory.connections


@pytest.mark.parametrize("trailer", [(LARGE).to_bytes(4, "little"), bytes(4)])
def test_of_who_may_do_nothing_little_is_decompressed(trailer: bytes, counted: list[int]) -> None:
    """Whatever the payload says of its size. He logs in, and sends more."""
    house = SteppedHouse()
    hall = Hall()
    hall.add("ann")
    house.flymq_factory.guard = GuardOf(hall.somebody())
    client = house.client()
    frame = flymq.encode_request(produce(LARGE), gzip=True)
    client.send_bytes(frame[:-4] + trailer)
    house.finish()
    ((opcode, _, payload),) = flymq.FrameReader().feed(client.received_bytes())
    assert opcode == flymq.Opcode.ERROR
    assert str(STRANGER_BYTES_MAX) in flymq.error_text(payload)
    assert counted[0] <= STRANGER_BYTES_MAX + 2 * STEP_BYTES
    client.protocol.access = Given("ann", WRITE | ADMIN)
    client.send(produce(LARGE), gzip=True)
    house.finish()
    assert offsets(client) == [0]
