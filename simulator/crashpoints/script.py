# Tests: tests/simulator/test_crashpoints.py
"""The fixed workload of a whole broker: the real core, its Protocol, and a few clients.

Four lives of the broker on one directory end by a clean stop, SIGKILL, loss of power, and a clean
stop. Each life stores single messages and batches, leases, settles, fails, extends and lets lapse.
It writes enough to seal a segment and take snapshots.

A request that depends on another is sent after its answer, so the requests of each record have one
order. No acquire is pending when the broker ends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from brokerd.codecs import mamamia as mm
from brokerd.server.assembly import BrokerCore
from brokerd.server.config import Broker, Config, Wal
from simulator.clients.conversation import Ask, Conversation
from simulator.clients.mamamia_wire import MamamiaWire
from simulator.crashpoints.points import require
from simulator.history.operations import (
    NEVER,
    Acquire,
    Delivery,
    Extend,
    History,
    Look,
    Message,
    Operation,
    Place,
    Produce,
    Settle,
    Settlement,
)
from simulator.machine.crash import CrashModel
from simulator.machine.disk import SimDisk
from simulator.machine.machine import Machine
from simulator.machine.network import Network
from simulator.machine.world import World
from simulator.plan import DiskTimes
from simulator.plan import Network as NetworkRules

SEED = 1
SEGMENT_BYTES = 64 << 10
CONFIG = Config(
    wal=Wal(segment_bytes=SEGMENT_BYTES, snapshot_interval_bytes=32 << 10),
    broker=Broker(frame_bytes=16 << 10),
)
"""Sizes below the limits of an operator, so that the run reaches every boundary soon."""

TIMES = DiskTimes(sync_us_min=200, sync_us_max=6_000)
"""Some syncs are slow, so that a snapshot may be finished before earlier frames are durable."""
WAIT_US = 60_000_000
"""The longest wait of the workload."""

TOPICS = {"orders": 3}
"""Topics that exist from the start. Other topics have one partition."""

QUIET_US = 250_000
"""Long enough for a mark to be written."""
UNDER_WAY_US = 170
"""Time after which a request has arrived and its commit is under way."""
LEASE_US = 30_000_000
SHORT_LEASE_US = 200_000
FAR_DELAY_US = 3_600_000_000
NEAR_DELAY_US = 100_000
FILLING_BYTES = 3_000


class Client:
    """A client of one connection that waits for answers on request."""

    def __init__(self, script: Script, name: str) -> None:
        self.name = name
        self._script = script
        connect = partial(script.network.connect, name)
        self.talk = Conversation(
            name,
            script.world,
            connect,
            script.history,
            lambda operation: None,
            lambda why: None,
            MamamiaWire(),
        )
        script.clients.append(self)

    def ask(self, *asks: Ask) -> list[Operation]:
        """Send requests in one piece and wait for all answers."""
        self.send(*asks)
        self._script.run(lambda: not self.talk.in_flight)
        return [ask.operation for ask in asks]

    def send(self, *asks: Ask) -> None:
        """Send requests in one piece."""
        self.talk.ask(*asks)
        for ask in asks:
            self._script.requests[ask.operation.number] = ask.request

    # -- requests -------------------------------------------------------------------------------

    def produce(self, topic: str, *messages: mm.BatchMessage) -> Ask:
        """Return a produce: one message, or a batch of several."""
        said = tuple(
            Message(message.value, message.metadata, message.key, message.partition)
            for message in messages
        )
        operation = Produce(number=NEVER, client=self.name, topic=topic, messages=said)
        if len(messages) == 1:
            return Ask(mm.Produce(topic, *messages[0]), operation)
        return Ask(mm.ProduceBatch(topic, messages), operation)

    def lease(self, topic: str, group: str, limit: int, duration_us: int = LEASE_US) -> Acquire:
        """Acquire ``limit`` messages, a single one by ACQUIRE_NEXT; all must be there."""
        operation = Acquire(
            number=NEVER,
            client=self.name,
            topic=topic,
            group=group,
            duration_us=duration_us,
            limit=limit,
        )
        seconds = duration_us / 1_000_000
        request: mm.Request = mm.AcquireBatch(topic, group, self.name, limit, seconds)
        if limit == 1:
            request = mm.Acquire(topic, group, self.name, seconds)
        self.ask(Ask(request, operation))
        require(len(operation.deliveries) == limit, f"{limit} leases were to be had: {operation}")
        return operation

    def settle(
        self, topic: str, group: str, place: Place, success: bool, delay_us: int | None = None
    ) -> Ask:
        operation = Settle(
            number=NEVER,
            client=self.name,
            topic=topic,
            group=group,
            settlements=(Settlement(place, success, None, delay_us),),
        )
        delay = None if delay_us is None else delay_us / 1_000_000
        message_id = mm.message_id_of(*place)
        return Ask(mm.Settle(topic, group, message_id, self.name, success, delay), operation)

    def settle_by_token(self, topic: str, group: str, *deliveries: Delivery) -> Ask:
        """Return a batch of settles by token, of which the last is a failure."""
        said = tuple(
            Settlement(delivery.place, delivery is not deliveries[-1], delivery.token)
            for delivery in deliveries
        )
        operation = Settle(
            number=NEVER, client=self.name, topic=topic, group=group, settlements=said
        )
        settles = tuple(
            mm.BatchSettle(mm.message_id_of(*one.place), one.success, one.token) for one in said
        )
        return Ask(mm.SettleBatch(topic, group, self.name, settles), operation)

    def extend(self, topic: str, group: str, place: Place, duration_us: int) -> Ask:
        operation = Extend(
            number=NEVER,
            client=self.name,
            topic=topic,
            group=group,
            place=place,
            duration_us=duration_us,
        )
        message_id = mm.message_id_of(*place)
        seconds = duration_us / 1_000_000
        return Ask(mm.Extend(topic, group, self.name, message_id, seconds), operation)

    def look(self, topic: str, group: str) -> Ask:
        operation = Look(number=NEVER, client=self.name, topic=topic, group=group)
        return Ask(mm.GroupInfo(topic, group), operation)


class Script:
    """One run of the workload. `history` and `requests` are complete when `play` has returned."""

    def __init__(self) -> None:
        self.world = World(SEED)
        self.disk = SimDisk()
        self.machine = Machine(self.world, self.disk, CONFIG, TIMES)
        self.network = Network(self.world, NetworkRules(), self.machine.service)
        self.history = History(boots=self.machine.boots)
        self.requests: dict[int, mm.Request] = {}
        """Requests by number of the operation."""
        self.clients: list[Client] = []
        self.machine.on_ready = self._ready
        self.machine.on_end = lambda boot: self.network.machine_gone(lambda: 0)
        self._messages = 0

    def play(self) -> None:
        """Run from the first start on an empty disk to the last stop. Raises WorkloadFailure."""
        try:
            self._play()
        finally:
            for client in self.clients:
                client.talk.note_arrivals()

    def _play(self) -> None:
        self._live()
        self.machine.stop()
        self.run(lambda: not self.machine.is_up)
        self._live()
        self._leave_under_way("killed")
        self.machine.kill()
        self._live()
        self._leave_under_way("cut off")
        self.machine.power_off(CrashModel.TEAR, Random(SEED))
        self._live()
        self.machine.stop()
        self.run(lambda: not self.machine.is_up)

    def digest(self) -> str:
        """Return a hash that is equal for equal runs."""
        return f"{self.world.digest()}-{self.disk.digest()}"

    def run(self, until: Callable[[], object]) -> None:
        """Run events until ``until()`` is true. Raises WorkloadFailure if that takes a minute."""
        end_us = self.world.now_us + WAIT_US
        while not until():
            require(self.world.now_us < end_us, "an answer, a start or a stop takes a minute")
            require(self.world.step(), "nothing is due any more, and the workload is not over")

    def pass_us(self, us: int) -> None:
        """Let time pass."""
        over: list[bool] = []
        self.world.call_after(us, over.append, True)
        self.run(lambda: over)

    def _ready(self, core: BrokerCore) -> None:
        for name, partitions in TOPICS.items():
            core.broker.topics.create(name, partitions)

    # -- one life -------------------------------------------------------------------------------

    def _live(self) -> None:
        self.machine.boot()
        self.run(lambda: self.machine.is_ready)
        life = self.machine.boots[-1].number
        ann, bob = Client(self, f"ann-{life}"), Client(self, f"bob-{life}")
        self._store(ann, bob)
        self._work(ann, bob)
        self._fail_until_dead(bob)
        self._let_lapse(ann, bob)
        self._fill(ann)
        self.pass_us(QUIET_US)

    def _message(
        self,
        size: int = 20,
        key: bytes | None = None,
        metadata: dict[str, int] | None = None,
        partition: int | None = None,
    ) -> mm.BatchMessage:
        """Return the next message, unlike all others. Bytes, text and maps take turns."""
        self._messages += 1
        text = f"message {self._messages} BKfr " + "." * size
        payload: object = [text.encode(), text, {"text": text}][self._messages % 3]
        packed = mm.pack_metadata(metadata)
        return mm.BatchMessage(*mm.pack_payload(payload), packed, key, partition)

    def _store(self, ann: Client, bob: Client) -> None:
        """Store messages of every form, pipelined, on two connections at once."""
        message = self._message
        bob.send(bob.produce("events", message()), bob.produce("events", message(0)))
        ann.ask(
            ann.produce("orders", message(key=b"k1", metadata={"n": 1})),
            ann.produce("orders", message(600, partition=2)),
            ann.produce("orders", *[message(key=b"key %d" % n) for n in range(5)]),
            ann.produce("events", message(metadata={})),
        )
        ann.ask(ann.produce("orders", message(partition=0), message(partition=1)))
        bob.ask(bob.produce("events", message(), message(1_500), message()))

    def _work(self, ann: Client, bob: Client) -> None:
        """Lease one or several messages; settle, fail, delay, extend and keep leases."""
        one = ann.lease("events", "workers", 1).deliveries[0].place
        three = bob.lease("orders", "workers", 3).deliveries
        ann.ask(ann.settle("events", "workers", one, True))
        bob.ask(
            bob.settle_by_token("orders", "workers", *three[:2]),
            bob.extend("orders", "workers", three[2].place, 2 * LEASE_US),
            bob.look("orders", "workers"),
        )
        far, near, kept = (d.place for d in ann.lease("events", "workers", 3).deliveries)
        ann.ask(
            ann.settle("events", "workers", far, False, FAR_DELAY_US),
            ann.settle("events", "workers", near, False, NEAR_DELAY_US),
            ann.extend("events", "workers", kept, 3 * LEASE_US),
        )
        ann.ask(ann.settle("events", "workers", one, True))  # a repeated settle
        other = ann.lease("events", "watchers", 2).deliveries
        ann.ask(ann.settle("events", "watchers", other[0].place, True))

    def _fail_until_dead(self, bob: Client) -> None:
        first = bob.lease("events", "careless", 1).deliveries[0].place
        for _ in range(2):
            bob.ask(bob.settle("events", "careless", first, False))
            again = bob.lease("events", "careless", 1).deliveries[0].place
            require(again == first, f"{again} was delivered before {first}, which came back")
        bob.ask(bob.settle("events", "careless", first, False))

    def _let_lapse(self, ann: Client, bob: Client) -> None:
        lost = ann.lease("events", "careless", 2, SHORT_LEASE_US).deliveries[0].place
        self.pass_us(SHORT_LEASE_US + 50_000)
        again = bob.lease("events", "careless", 1).deliveries[0].place
        require(again == lost, f"{again} was delivered before {lost}, whose lease lapsed")

    def _fill(self, ann: Client) -> None:
        """Write more than a segment, several frames at once, with leases in between."""
        for _ in range(2):
            batches = [[self._message(FILLING_BYTES) for _ in range(2)] for _ in range(6)]
            ann.ask(
                ann.produce("filling", self._message(FILLING_BYTES)),
                *[ann.produce("orders", *batch) for batch in batches],
            )
            place = ann.lease("filling", "workers", 1).deliveries[0].place
            ann.ask(ann.settle("filling", "workers", place, True))

    def _leave_under_way(self, how: str) -> None:
        """Send requests whose commit is in flight at the end; their results stay unknown."""
        cut = Client(self, how)
        leased = cut.lease("events", "workers", 2).deliveries
        cut.ask(cut.produce("events", self._message()))
        cut.send(
            cut.produce("events", self._message()),
            cut.settle("events", "workers", leased[0].place, True),
            cut.produce("orders", *[self._message(900, partition=n) for n in range(3)]),
            cut.settle("events", "workers", leased[1].place, False),
            cut.produce("events", self._message()),
        )
        self.pass_us(UNDER_WAY_US)
        require(cut.talk.in_flight == 5, "requests were answered before their commit was over")
