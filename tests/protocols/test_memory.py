"""The memory that peers claim: who waits, who is closed, and who goes on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from brokerd.codecs import blipmq as bm
from brokerd.codecs import mamamia as mm
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.base.memory import (
    ANSWERS,
    FURTHER_ANSWERS,
    OWN_BYTES,
    PATIENCE_SECONDS,
    PROMPT_ANSWERS,
    REQUESTS,
    SWEEP_SECONDS,
    WAITS,
    MemoryBudget,
)
from tests.house import Client, House, ask
from tests.protocols.blipmq_desk import BlipmqHouse

MIB = 1 << 20
TOTAL = 16 * MIB
"""4 MiB belong to requests, 4 to answers, 1 to waits, 1 to prompt answers; 6 are common."""


class Peer:
    """A connection with a claim."""

    def __init__(self, budget: MemoryBudget, name: str = "peer") -> None:
        self._budget = budget
        self._name = name
        self.freed = 0
        self.closed = False
        self.reads_answers = False
        self.awaits_each_answer = False
        self.on_freed: Callable[[], None] = lambda: None

    def holds(self, requests: int = 0, answers: int = 0, waits: int = 0) -> bool:
        return self._budget.charge(self, requests, answers, waits)

    def memory_freed(self) -> None:
        self.freed += 1
        self.on_freed()

    def cut_for_memory(self) -> None:
        self.closed = True
        self._budget.forget(self)

    def peer_name(self) -> str:
        return self._name


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def budget(clock: Clock) -> MemoryBudget:
    return MemoryBudget(TOTAL, clock)


def test_what_each_connection_may_always_hold_is_no_claim(budget: MemoryBudget) -> None:
    peers = [Peer(budget) for _ in range(1_000)]
    assert not any(peer.holds(OWN_BYTES // 2, OWN_BYTES // 2) for peer in peers)
    assert budget.used == [0, 0, 0]
    assert peers[0].holds(OWN_BYTES, 1)
    assert budget.used == [OWN_BYTES, 1, 0]
    assert not peers[0].holds(OWN_BYTES)
    assert budget.used == [0, 0, 0]


def test_a_kind_is_full_when_its_share_and_the_common_part_are_used(budget: MemoryBudget) -> None:
    peer = Peer(budget)
    peer.holds(answers=10 * MIB - 1)
    assert budget.full == [False, False, False, True, False]
    peer.holds(answers=10 * MIB)
    assert budget.full == [False, True, False, True, False]
    peer.holds(answers=11 * MIB)
    assert budget.full == [False, True, False, True, True]
    peer.holds(answers=10 * MIB)
    other = Peer(budget)
    other.holds(requests=4 * MIB)
    assert budget.full[REQUESTS], "the common part is used"
    other.holds(requests=4 * MIB - 1)
    assert not budget.full[REQUESTS], "the share of requests is their own"
    assert not budget.full[WAITS]


def test_further_answers_wait_before_first_ones(budget: MemoryBudget) -> None:
    peer = Peer(budget)
    peer.holds(answers=7 * MIB - 1)
    assert not budget.full[FURTHER_ANSWERS]
    peer.holds(answers=7 * MIB)
    assert budget.full[FURTHER_ANSWERS] and not budget.full[ANSWERS]


def test_the_last_share_is_for_answers_of_prompt_connections(
    budget: MemoryBudget, clock: Clock
) -> None:
    """They wait only for each other, and for connections that pass for one of them."""
    holder, reader, prompt = (Peer(budget) for _ in range(3))
    reader.reads_answers = prompt.reads_answers = prompt.awaits_each_answer = True
    holder.holds(answers=10 * MIB)
    assert budget.lacking(reader, 0) == ANSWERS
    assert budget.lacking(prompt, OWN_BYTES) is None
    assert budget.lacking(prompt, OWN_BYTES + 1) == ANSWERS
    holder.holds(answers=11 * MIB)
    assert budget.lacking(prompt, 0) == PROMPT_ANSWERS
    budget.wait(reader, ANSWERS)
    budget.wait(prompt, PROMPT_ANSWERS)
    holder.holds(answers=11 * MIB - 1)
    clock.advance(0)
    assert (reader.freed, prompt.freed) == (0, 1)


def test_a_prompt_connection_that_waits_too_long_has_the_worst_claims_cut(
    budget: MemoryBudget, clock: Clock
) -> None:
    holder, prompt = Peer(budget), Peer(budget)
    holder.holds(answers=11 * MIB)
    budget.wait(prompt, PROMPT_ANSWERS)
    pass_seconds(clock, PATIENCE_SECONDS + SWEEP_SECONDS)
    assert holder.closed and prompt.freed == 1


def test_the_longest_waiting_and_the_newest_go_on_while_there_is_room(
    budget: MemoryBudget, clock: Clock
) -> None:
    holder, order = Peer(budget), list[str]()
    holder.holds(answers=11 * MIB)
    waiting = [Peer(budget, name) for name in "abc"]
    for peer in waiting:
        budget.wait(peer, ANSWERS)

        def take(peer: Peer = peer) -> None:
            order.append(peer.peer_name())
            peer.holds(answers=MIB)

        peer.on_freed = take
    clock.advance(0)
    assert order == [] and budget.waiting == 3
    holder.holds(answers=8 * MIB)
    clock.advance(0)
    assert order == ["a", "c"], "two fill it again"
    budget.forget(holder)
    clock.advance(0)
    assert order == ["a", "c", "b"] and budget.waiting == 0


@pytest.mark.parametrize("rooms", [1, 2, 8])
def test_peers_that_read_go_on_in_turn_with_the_others(
    budget: MemoryBudget, clock: Clock, rooms: int
) -> None:
    """However much room there is at once: a crowd delays a reader by one turn, and the reverse."""
    holder, order = Peer(budget), list[str]()
    holder.holds(answers=11 * MIB)
    for name in ("a", "b", "c", "d", "reader 1", "reader 2"):
        peer = Peer(budget, name)
        peer.reads_answers = name.startswith("reader")
        budget.wait(peer, ANSWERS)

        def take(peer: Peer = peer) -> None:
            order.append(peer.peer_name())
            peer.holds(answers=MIB)

        peer.on_freed = take
    for left in range(11 - rooms, 11 - 7, -rooms):
        holder.holds(answers=left * MIB)
        clock.advance(0)
    holder.holds()
    clock.advance(0)
    assert order == ["reader 1", "a", "reader 2", "d", "b", "c"]


def test_peers_that_wait_for_each_answer_do_not_wait_behind_other_readers(
    budget: MemoryBudget, clock: Clock
) -> None:
    """All three groups go on in turn."""
    holder, order = Peer(budget), list[str]()
    holder.holds(answers=11 * MIB)
    for name in ("a", "b", "reader 1", "reader 2", "worker 1", "worker 2"):
        peer = Peer(budget, name)
        peer.reads_answers = not name.isalpha()
        peer.awaits_each_answer = name.startswith("worker") or name == "a"
        peer.on_freed = partial(order.append, name)
        budget.wait(peer, ANSWERS)
    holder.holds()
    clock.advance(0)
    assert order == ["worker 1", "reader 1", "a", "worker 2", "reader 2", "b"]


def test_a_closed_connection_no_longer_waits(budget: MemoryBudget, clock: Clock) -> None:
    holder, gone = Peer(budget), Peer(budget)
    holder.holds(answers=11 * MIB)
    budget.wait(gone, ANSWERS)
    budget.forget(gone)
    budget.forget(holder)
    clock.advance(1)
    assert gone.freed == 0


def pass_seconds(clock: Clock, seconds: float) -> None:
    for _ in range(round(seconds / SWEEP_SECONDS)):
        clock.advance(SWEEP_SECONDS)


def test_another_limit_counts_at_once(budget: MemoryBudget, clock: Clock) -> None:
    """More memory lets those go on that wait; less closes nobody, and the next ones wait."""
    holder, waiting = Peer(budget), Peer(budget)
    holder.holds(answers=11 * MIB)
    budget.wait(waiting, ANSWERS)
    budget.resize(2 * TOTAL)
    clock.advance(0)
    assert waiting.freed == 1 and budget.expected_bytes_max == TOTAL // 16
    budget.resize(TOTAL // 2)
    assert budget.full[ANSWERS] and not holder.closed


def test_the_worst_claims_are_cut_when_one_waits_too_long(
    budget: MemoryBudget, clock: Clock
) -> None:
    """The worst has the most bytes times the time without progress. A quarter is freed."""
    small, old, large = (Peer(budget, name) for name in ("small", "old", "large"))
    old.holds(answers=4 * MIB)
    clock.advance(10)
    large.holds(answers=5 * MIB)
    small.holds(answers=2 * MIB)
    late = Peer(budget)
    with capturedLogs() as events:
        budget.wait(late, ANSWERS)
        pass_seconds(clock, PATIENCE_SECONDS - SWEEP_SECONDS)
        assert not old.closed
        pass_seconds(clock, 2 * SWEEP_SECONDS)
    assert [peer.closed for peer in (old, large, small)] == [True, False, False]
    assert late.freed == 1 and budget.cut == 1
    [event] = [event for event in events if event.get("event_id") == "memory-cut"]
    assert (event["count"], event["size"], event["kind"]) == (1, 4 * MIB, "answers")
    assert event["worst"] == "old"


@pytest.mark.parametrize("kind", [ANSWERS, PROMPT_ANSWERS])
def test_the_more_connections_wait_the_more_are_cut(
    budget: MemoryBudget, clock: Clock, kind: int
) -> None:
    """Otherwise the last of them would wait for many rounds."""
    holders = [Peer(budget) for _ in range(11)]
    for peer in holders:
        peer.holds(answers=MIB)
    for _ in range(8):
        budget.wait(Peer(budget), kind)
    pass_seconds(clock, PATIENCE_SECONDS + SWEEP_SECONDS)
    assert sum(peer.closed for peer in holders) == 8


def test_a_claim_that_makes_progress_is_not_cut(budget: MemoryBudget, clock: Clock) -> None:
    reader, late = Peer(budget), Peer(budget)
    reader.holds(answers=14 * MIB)
    budget.wait(late, ANSWERS)
    for size in range(14 * MIB - 1, 14 * MIB - 20, -1):
        reader.holds(answers=size)
        pass_seconds(clock, SWEEP_SECONDS)
    assert not reader.closed
    pass_seconds(clock, PATIENCE_SECONDS + SWEEP_SECONDS)
    assert reader.closed


def test_no_claim_is_cut_while_nobody_waits(budget: MemoryBudget, clock: Clock) -> None:
    peer = Peer(budget)
    peer.holds(requests=TOTAL)
    pass_seconds(clock, 100)
    assert not peer.closed
    assert not clock.getDelayedCalls(), "no timer without a need"


def test_claims_of_other_kinds_are_not_cut(budget: MemoryBudget, clock: Clock) -> None:
    reader, sender, late = Peer(budget), Peer(budget), Peer(budget)
    reader.holds(answers=11 * MIB)
    sender.holds(requests=3 * MIB)
    budget.wait(late, ANSWERS)
    pass_seconds(clock, PATIENCE_SECONDS + SWEEP_SECONDS)
    assert reader.closed and not sender.closed


def test_freed_memory_is_reported_once_most_of_it_is_free(budget: MemoryBudget) -> None:
    calls = list[int]()
    budget.on_freed = lambda: calls.append(budget.used[ANSWERS])
    peer = Peer(budget)
    peer.holds(answers=8 * MIB)
    peer.holds(answers=3 * MIB)
    assert calls == []
    peer.holds(answers=MIB)
    peer.holds(answers=0)
    assert calls == [MIB]


def test_the_status_shows_limit_claims_and_waits(budget: MemoryBudget) -> None:
    peer = Peer(budget)
    peer.holds(1, 2 * MIB, 3)
    budget.wait(peer, ANSWERS)
    assert budget.status() == {
        "limit_bytes": TOTAL,
        "claimed_bytes": {"requests": 1, "answers": 2 * MIB, "waits": 3},
        "kind_limit_bytes": {"requests": 10 * MIB, "answers": 11 * MIB, "waits": 7 * MIB},
        "waiting": 1,
        "cut": 0,
    }


# -- connections ----------------------------------------------------------------------------------


RECORD = MIB // 4


class Crowd:
    """A broker with a small budget, some records of 256 KiB, and clients."""

    def __init__(self, records: int = 4, total: int = TOTAL // 4) -> None:
        self.house = House(limits=Limits(sweep_seconds=1e6))
        for _ in range(records):
            ask(self.house, mm.Produce("orders", b"x" * RECORD))
        self.budget = MemoryBudget(total, self.house.clock)
        self.house.factory.memory = self.budget

    def readers(self, count: int, asked: int = 1) -> list[Client]:
        """Return clients that lease records and read no answer, each with its own group."""
        clients = []
        for number in range(count):
            client = self.house.connect()
            client.transport.peer_reads = False
            client.send(*[mm.Acquire("orders", f"g{number}", "c", 600.0)] * asked)
            clients.append(client)
        self.house.run()
        return clients

    def held(self) -> int:
        """Bytes of all answers that peers have not read."""
        return sum(
            len(one.transport.buffered) + one.queued_bytes for one in self.house.factory.connections
        )


def test_unread_answers_stay_within_the_budget() -> None:
    """Each connection could have 4 MiB of them by its own limit."""
    crowd = Crowd()
    crowd.readers(60, asked=4)
    assert 7 * RECORD < crowd.held() < (11 + 2) * RECORD
    assert crowd.budget.waiting > 50, "those with an answer wait for their peers to read"


def test_unread_answers_of_blipmq_stay_within_the_budget() -> None:
    """A BlipMQ connection goes on to read its socket, but its unread answers are a claim, too."""
    house = BlipmqHouse(limits=Limits(sweep_seconds=1e6))
    first = house.client()
    subscriptions = [first.subscribe("orders") for _ in range(60)]
    first.publish(*[b"x" * RECORD] * 4, topic="orders")
    house.factory.memory = budget = MemoryBudget(TOTAL // 4, house.clock)
    peers = [house.client() for _ in subscriptions]
    for peer, subscription in zip(peers, subscriptions, strict=True):
        peer.transport.peer_reads = False
        peer.send(*[bm.Poll(10 + number, subscription) for number in range(4)])
    house.run()
    held = sum(len(peer.transport.buffered) for peer in peers)
    assert 7 * RECORD < held < (11 + 2) * RECORD
    assert budget.used[ANSWERS] >= held and budget.waiting > 40
    for _ in range(20):
        for peer in peers:
            peer.transport.read_on()
        house.run()
    assert all(len(peer.answers()) == 4 for peer in peers)
    assert budget.used == [0, 0, 0] and budget.waiting == 0


def test_an_answer_that_comes_at_once_is_a_claim_if_the_peer_does_not_read() -> None:
    """It was no claim before: the answer to a long poll came with its bytes."""
    crowd = Crowd()
    client = crowd.house.connect()
    client.transport.peer_reads = False
    [connection] = [
        one for one in crowd.house.factory.connections if one.transport is client.transport
    ]
    connection.resolve(connection.pending(), b"x" * RECORD, at_once=True)
    assert crowd.budget.used[ANSWERS] == RECORD


def test_a_connection_without_room_answers_when_others_have_read() -> None:
    crowd = Crowd()
    clients = crowd.readers(30)
    waiting = [client for client in clients if not client.transport.buffered]
    assert waiting
    for client in clients:
        client.transport.read_on()
    crowd.house.run()
    for client in clients:
        client.transport.read_on()
    crowd.house.run()
    assert all(len(client.answers()) == 1 for client in clients)
    assert crowd.budget.used == [0, 0, 0] and crowd.budget.waiting == 0


def test_settles_and_produces_go_on_while_answers_have_no_room() -> None:
    crowd = Crowd()
    worker = crowd.house.connect()
    worker.send(mm.Acquire("orders", "work", "w"))
    crowd.house.run()
    [leased] = worker.answers()
    crowd.readers(60)
    assert crowd.budget.full[ANSWERS]
    worker.send(mm.Settle("orders", "work", leased.message.id, "w", True), mm.Produce("p", b"x"))
    crowd.house.run()
    assert worker.answers() == [mm.Settled(), mm.Produced(0)]


def test_a_reader_gets_its_record_after_the_worst_were_cut() -> None:
    crowd = Crowd()
    crowd.readers(60)
    reader = crowd.house.connect()
    reader.send(mm.Acquire("orders", "work", "w"))
    crowd.house.run()
    assert reader.answers() == []
    for _ in range(40):
        crowd.house.clock.advance(SWEEP_SECONDS)
        crowd.house.run()
        answers = reader.answers()
        if answers:
            break
    assert len(answers[0].message.payload) == RECORD
    assert crowd.budget.cut > 0


def test_a_client_that_reads_gets_all_its_answers_while_others_read_none() -> None:
    """Its answers leave at once, so each further answer is a first one."""
    crowd = Crowd()
    crowd.readers(8)
    assert crowd.budget.full == [False, False, False, True, False]
    reader = crowd.house.connect()
    reader.send(*[mm.Acquire("orders", "work", "w")] * 4)
    crowd.house.run()
    assert [one.message.id for one in reader.answers()] == [0, 1, 2, 3]


@pytest.mark.parametrize("is_together", [True, False])
def test_a_client_that_awaits_each_answer_does_not_wait_for_those_that_logged_in(
    is_together: bool,
) -> None:
    """They ask for records together with a request that has an answer, or when they have read it.

    Then they never read. In the second case they pass for prompt ones, so the client waits until
    the first of them are cut, but not for all of them.
    """
    crowd = Crowd()
    worker = crowd.house.connect()
    worker.send(mm.Produce("orders", b"own"))
    crowd.house.run()
    assert len(worker.answers()) == 1

    def reads(number: int) -> list[mm.Acquire]:
        return [mm.Acquire("orders", f"g{number}", "c", 600.0)] * 4

    clients = []
    for number in range(200):
        client = crowd.house.connect()
        clients.append(client)
        client.transport.peer_reads = not is_together
        client.send(mm.Produce("login", b"x"), *reads(number) if is_together else ())
    crowd.house.run()
    crowd.house.clock.advance(0.001)
    for number, client in enumerate([] if is_together else clients):
        assert len(client.answers()) == 1
        client.transport.peer_reads = False
        client.send(*reads(number))
    crowd.house.run()
    crowd.house.clock.advance(0.001)
    worker.send(mm.Acquire("orders", "work", "w"))
    crowd.house.run()
    assert crowd.budget.waiting > 150
    if is_together:
        assert len(worker.answers()) == 1
        return
    assert worker.answers() == []
    for _ in range(6):
        crowd.house.clock.advance(SWEEP_SECONDS)
        crowd.house.run()
    assert len(worker.answers()) == 1
    assert crowd.budget.waiting > 20


def test_a_client_that_reads_does_not_wait_behind_all_that_never_do() -> None:
    crowd = Crowd()
    client = crowd.house.connect()
    client.send(mm.Produce("orders", b"own"))
    crowd.house.run()
    assert len(client.answers()) == 1
    crowd.readers(200)
    client.send(mm.Acquire("orders", "own", "c"))
    crowd.house.run()
    assert client.answers() == []
    crowd.house.pass_time(PATIENCE_SECONDS + 2 * SWEEP_SECONDS, step=SWEEP_SECONDS)
    assert len(client.answers()) == 1, "the first cut makes room for it"
    assert crowd.budget.waiting > 100


def test_a_woken_long_poll_waits_for_room() -> None:
    crowd = Crowd()
    poller = crowd.house.connect()
    poller.send(mm.Acquire("later", "g", "c", 600.0, 60.0))
    crowd.house.run()
    clients = crowd.readers(60)
    ask(crowd.house, mm.Produce("later", b"y"))
    assert poller.answers() == []
    for client in clients:
        client.transport.read_on()
    crowd.house.run()
    assert [one.message.payload for one in poller.answers()] == [b"y"]


def test_unfinished_frames_stay_within_the_budget_and_go_on_later() -> None:
    crowd = Crowd(records=0)
    frame = mm.encode_request(mm.Produce("orders", b"z" * RECORD))
    clients = [crowd.house.connect() for _ in range(40)]
    left = dict.fromkeys(clients, frame)

    def send() -> None:
        for client, rest in left.items():
            if not client.transport.paused and rest:
                client.send_bytes(rest[:OWN_BYTES])
                left[client] = rest[OWN_BYTES:]
        crowd.house.turn()

    for _ in range(10):
        send()
    assert any(client.transport.paused for client in clients)
    for _ in range(20):
        send()
        assert crowd.budget.used[REQUESTS] <= 11 * RECORD + len(clients) * 2 * OWN_BYTES
    crowd.house.run()
    assert crowd.budget.used[REQUESTS] > 10 * RECORD
    held = [client for client in clients if left[client]]
    for _ in range(200):
        crowd.house.clock.advance(SWEEP_SECONDS)
        send()
        crowd.house.run()
        if not any(left[client] for client in held if client.transport.connected):
            break
    done = [client for client in clients if client.transport.connected]
    assert done and all(len(client.answers()) == 1 for client in done)
    assert crowd.budget.used == [0, 0, 0]


def test_many_long_polls_of_one_connection_are_a_claim() -> None:
    crowd = Crowd(records=0, total=MIB)
    client = crowd.house.connect()
    client.send(*[mm.Acquire("later", "g", "c", 600.0, 60.0)] * 3_000)
    crowd.house.run()
    assert crowd.budget.full[WAITS] and client.transport.paused
    other = crowd.house.connect()
    other.send(mm.Acquire("later", "h", "c", 600.0, 60.0), mm.Produce("p", b"x"))
    crowd.house.run()
    assert not other.transport.paused


def test_a_closed_connection_has_no_claim() -> None:
    crowd = Crowd()
    for client in crowd.readers(5, asked=4):
        client.disconnect()
    crowd.house.run()
    assert crowd.budget.used == [0, 0, 0] and crowd.budget.waiting == 0
