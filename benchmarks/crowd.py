# Tests: tests/test_archive_torture.py
"""Producers and readers of every wire format, as threads that survive kills of the broker.

Contract: a :class:`Writer` writes its share of each round and books the acknowledged records. It
never repeats an unacknowledged record. A :class:`Follower` reads a topic from offset 0 and follows
its tail; it keeps the records in the order in which they came. A leasing format delivers a record
again when its answer was lost, so its follower first waits until that lease has lapsed. Thus every
follower has to see every record once and in order.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from brokerd.client.blipmq import BlipmqClient
from brokerd.client.calls import batch_message
from brokerd.client.flymq import FlymqClient
from brokerd.client.mamamia import MamamiaClient
from brokerd.client.mega import Code, MegaClient, MegaError
from brokerd.client.rustlog import RustlogClient
from brokerd.codecs.mamamia import BatchSettle
from brokerd.codecs.rustlog import Dialect

from .ledger import Ledger, Seen
from .oracle import Origin

SHARED, KEYED = "shared", "keyed"
"""The two topics: all formats write and read ``shared``; the records of ``keyed`` have keys."""
KEYS = 40
LEASE_SECONDS = 4.0
BLIPMQ_SETTINGS = (f"blipmq.retry_base_ms={LEASE_SECONDS * 1000:.0f}",)

_TIMEOUT_SECONDS = 60.0
_AWAY_SECONDS = 0.05
_IDLE_SECONDS = 0.1
_WINDOW_MAX = 12
_MARGIN_SECONDS = 1.0


@dataclass
class Stage:
    """The objects that writers and readers share."""

    addresses: Mapping[str, str]
    """The address of each wire format; a restart keeps it."""
    ledger: Ledger
    over: threading.Event = field(default_factory=threading.Event)
    values: dict[bytes, bytes] = field(default_factory=dict)
    """Values that readers saw. Readers share one copy of each value."""

    def fail(self, who: str, error: Exception) -> None:
        """Report an unexpected error as a finding and end the run."""
        self.ledger.report(f"{who}: {type(error).__name__}: {error}")
        self.over.set()

    def is_on(self) -> bool:
        """Return whether writers and readers go on."""
        return not self.over.is_set()


# -- Writers -------------------------------------------------------------------------------------


Write = Callable[[str, Sequence[tuple[Origin, bytes]]], Sequence[int]]
"""Writes records of a topic durably and returns their offsets; empty if the format gives none."""


class Writer(threading.Thread):
    """Writes a share of bytes on request and waits for the next request."""

    def __init__(
        self,
        stage: Stage,
        number: int,
        topic: str,
        connect: Callable[[Stage], AbstractContextManager[Write]],
    ) -> None:
        super().__init__(name=f"writer {number}", daemon=True)
        self._stage = stage
        self._producer = number
        self._topic = topic
        self._connect = connect
        self._chance = random.Random(f"{stage.ledger.seed}:{number}")
        self._shares: queue.Queue[int] = queue.Queue()
        self._number = 0
        self._left = 0

    def write(self, size: int) -> None:
        """Ask the thread to write about ``size`` bytes more."""
        self._shares.put(size)

    def is_idle(self) -> bool:
        """Return whether all requested bytes are written."""
        return self._shares.unfinished_tasks == 0

    def run(self) -> None:
        try:
            while self._stage.is_on():
                try:
                    self._left = self._shares.get(timeout=_IDLE_SECONDS)
                except queue.Empty:
                    continue
                while self._left > 0 and self._stage.is_on():
                    self._connected()
                self._shares.task_done()
        except Exception as error:  # Any error ends the run as a finding.
            self._stage.fail(self.name, error)

    def _connected(self) -> None:
        """Write over one connection until it breaks or the share is written."""
        try:
            with self._connect(self._stage) as write:
                while self._left > 0 and self._stage.is_on():
                    window = [self._next() for _ in range(self._chance.randint(1, _WINDOW_MAX))]
                    self._left -= sum(len(value) for _, value in window)
                    offsets = write(self._topic, window)
                    origins = [origin for origin, _ in window]
                    self._stage.ledger.acknowledge(self._topic, origins, offsets)
        except OSError:
            time.sleep(_AWAY_SECONDS)  # The broker is away; the fate of the window is unknown.

    def _next(self) -> tuple[Origin, bytes]:
        self._number += 1
        origin = Origin(self._producer, self._number)
        return origin, self._stage.ledger.value(origin)


def key_of(origin: Origin) -> bytes:
    """Return the key of a record in the keyed topic; some keys are much more frequent."""
    return b"key %d" % (origin.number * origin.number % KEYS)


class _Connected:
    """Holds a client for the time of one connection."""

    def __init__(self, stage: Stage) -> None:
        self.client: Any = self.open(stage.addresses)

    def open(self, addresses: Mapping[str, str]) -> Any:
        raise NotImplementedError

    def write(self, topic: str, window: Sequence[tuple[Origin, bytes]]) -> Sequence[int]:
        raise NotImplementedError

    def __enter__(self) -> Write:
        return self.write

    def __exit__(self, *_: object) -> None:
        self.client.close()


class MamamiaWrites(_Connected):
    def open(self, addresses: Mapping[str, str]) -> MamamiaClient:
        return MamamiaClient(addresses["mamamia"], timeout=_TIMEOUT_SECONDS)

    def write(self, topic: str, window: Sequence[tuple[Origin, bytes]]) -> Sequence[int]:
        offsets: Sequence[int] = self.client.produce_batch(
            topic, [batch_message(value) for _, value in window]
        )
        return offsets


class FlymqWrites(_Connected):
    def open(self, addresses: Mapping[str, str]) -> FlymqClient:
        return FlymqClient(addresses["flymq"], timeout=_TIMEOUT_SECONDS)

    def write(self, topic: str, window: Sequence[tuple[Origin, bytes]]) -> Sequence[int]:
        keys = [key_of(origin) if topic == KEYED else None for origin, _ in window]
        return [
            self.client.produce(topic, value, key).offset
            for key, (_, value) in zip(keys, window, strict=True)
        ]


class BlipmqWrites(_Connected):
    """Writes over BlipMQ; its acknowledgements give no offsets."""

    def open(self, addresses: Mapping[str, str]) -> BlipmqClient:
        return BlipmqClient(addresses["blipmq"], timeout=_TIMEOUT_SECONDS)

    def write(self, topic: str, window: Sequence[tuple[Origin, bytes]]) -> Sequence[int]:
        for _, value in window:
            self.client.publish(topic, value)
        self.client.ping()
        self.client.flush()
        return []


class RustlogWrites(_Connected):
    dialect = Dialect.BINARY

    def open(self, addresses: Mapping[str, str]) -> RustlogClient:
        return RustlogClient(addresses["rustlog"], dialect=self.dialect, timeout=_TIMEOUT_SECONDS)

    def write(self, topic: str, window: Sequence[tuple[Origin, bytes]]) -> Sequence[int]:
        base: int = self.client.produce(topic, [value for _, value in window])
        return range(base, base + len(window))


class RustlogJsonWrites(RustlogWrites):
    dialect = Dialect.JSON


class MegaWrites(_Connected):
    def open(self, addresses: Mapping[str, str]) -> MegaClient:
        return MegaClient(addresses["mega"], timeout=_TIMEOUT_SECONDS)

    def write(self, topic: str, window: Sequence[tuple[Origin, bytes]]) -> Sequence[int]:
        offsets: Sequence[int] = self.client.produce_many(topic, [value for _, value in window])
        return offsets


WRITERS: Sequence[tuple[str, Callable[[Stage], AbstractContextManager[Write]]]] = (
    (SHARED, MamamiaWrites),
    (SHARED, FlymqWrites),
    (SHARED, BlipmqWrites),
    (SHARED, RustlogWrites),
    (SHARED, RustlogJsonWrites),
    (SHARED, MegaWrites),
    (KEYED, FlymqWrites),
    (KEYED, FlymqWrites),
)


# -- Readers -------------------------------------------------------------------------------------


class Follower(threading.Thread):
    """Reads a topic from its first record on, across all crashes, until it is stopped."""

    def __init__(self, stage: Stage, name: str, topic: str = SHARED) -> None:
        super().__init__(name=name, daemon=True)
        self._stage = stage
        self.topic = topic
        self.seen: list[Seen] = []
        self.finish = threading.Event()
        """When set, the thread ends at the next tail."""

    def run(self) -> None:
        try:
            while self._stage.is_on():
                try:
                    if self._follow():
                        return
                except OSError:
                    self._wait(_AWAY_SECONDS)
        except Exception as error:  # Any error ends the run as a finding.
            self._stage.fail(f"{self.name}, after {len(self.seen)} records", error)

    def _follow(self) -> bool:
        """Read over one connection; return True at the tail once `finish` is set."""
        with self.connected() as some:
            while self._stage.is_on():
                is_last = self.finish.is_set()
                if some():
                    continue
                if is_last:
                    return True
                self._wait(_IDLE_SECONDS)
        return False

    def connected(self) -> AbstractContextManager[Callable[[], bool]]:
        """Return a context whose function reads a few records and returns whether any came."""
        return _Reading(self.client(), self.some)

    def client(self) -> Any:
        """Open a new connection."""
        raise NotImplementedError

    def some(self, client: Any) -> bool:
        """Read a few records and return whether there were any."""
        raise NotImplementedError

    def see(self, records: Iterable[tuple[int | None, bytes]]) -> None:
        """Take in records, each an offset and a value, in the order in which they came."""
        values = self._stage.values
        self.seen += [Seen(offset, values.setdefault(value, value)) for offset, value in records]

    def _wait(self, seconds: float) -> None:
        self._stage.over.wait(seconds)

    @property
    def addresses(self) -> Mapping[str, str]:
        """The broker's addresses by wire format."""
        return self._stage.addresses


class _Reading:
    def __init__(self, client: Any, some: Callable[[Any], bool]) -> None:
        self._client = client
        self._some = some

    def __enter__(self) -> Callable[[], bool]:
        return lambda: self._some(self._client)

    def __exit__(self, *_: object) -> None:
        self._client.close()


class FlymqReads(Follower):
    _next = 0

    def client(self) -> FlymqClient:
        return FlymqClient(self.addresses["flymq"], timeout=_TIMEOUT_SECONDS)

    def some(self, client: FlymqClient) -> bool:
        fetched = client.fetch(self.topic, 0, self._next, 50)
        self.see((one.offset, one.value) for one in fetched.records)
        has_moved = fetched.next_offset > self._next
        self._next = max(self._next, fetched.next_offset)
        return has_moved


class RustlogReads(Follower):
    dialect = Dialect.BINARY
    _next = 0

    def client(self) -> RustlogClient:
        return RustlogClient(
            self.addresses["rustlog"], dialect=self.dialect, timeout=_TIMEOUT_SECONDS
        )

    def some(self, client: RustlogClient) -> bool:
        fetched = client.fetch(self.topic, self._next, max_bytes=1 << 17)
        self.see(fetched.pairs())
        has_moved = fetched.next_offset > self._next
        self._next = max(self._next, fetched.next_offset)
        return has_moved


class RustlogJsonReads(RustlogReads):
    dialect = Dialect.JSON


class MegaReads(Follower):
    _next = 0

    def client(self) -> MegaClient:
        return MegaClient(self.addresses["mega"], timeout=_TIMEOUT_SECONDS)

    def some(self, client: MegaClient) -> bool:
        try:
            message = client.consume(self.topic, self._next)
        except MegaError as error:
            if error.code is Code.INVALID_OFFSET:
                return False
            raise
        self._next = message.next_offset
        self.see([(self._next - 1, message.payload)])
        return True


class MamamiaReads(Follower):
    """Leases and settles in batches; after a crash it settles the leases it holds, and waits."""

    def __init__(self, stage: Stage, name: str) -> None:
        super().__init__(stage, name)
        self._held: list[int] = []
        self._is_first = True

    def client(self) -> MamamiaClient:
        client = MamamiaClient(self.addresses["mamamia"], timeout=_TIMEOUT_SECONDS)
        if not self._is_first:
            self._settle(client)
            self._wait(LEASE_SECONDS + _MARGIN_SECONDS)
        self._is_first = False
        return client

    def some(self, client: MamamiaClient) -> bool:
        leased = client.acquire_batch(self.topic, self.name, "torture", 40, LEASE_SECONDS)
        self._held = [message.id for message in leased]
        self.see((message.id, message.payload) for message in leased)
        self._settle(client)
        return bool(leased)

    def _settle(self, client: MamamiaClient) -> None:
        if not self._held:
            return
        settles = [BatchSettle(number, True) for number in self._held]
        said = client.settle_batch(self.topic, self.name, "torture", settles)
        if set(said) != {"settled"}:
            raise AssertionError(f"{self._held} were not settled: {said}")
        self._held = []


class BlipmqReads(Follower):
    """Acknowledges each delivery; after a crash it repeats the acknowledgement, and waits.

    A subscription receives only later records, so the constructor subscribes before any record
    exists.
    """

    def __init__(self, stage: Stage, name: str) -> None:
        super().__init__(stage, name)
        self._held: Any = None
        self._is_first = True
        with BlipmqClient(self.addresses["blipmq"], timeout=_TIMEOUT_SECONDS) as client:
            self._subscription = client.subscribe(self.topic)

    def client(self) -> BlipmqClient:
        client = BlipmqClient(self.addresses["blipmq"], timeout=_TIMEOUT_SECONDS)
        if not self._is_first:
            self._acknowledge(client)
            self._wait(LEASE_SECONDS + _MARGIN_SECONDS)
        self._is_first = False
        return client

    def some(self, client: BlipmqClient) -> bool:
        delivery = client.poll(self._subscription)
        if delivery is None:
            return False
        self._held = delivery
        self.see([(None, delivery.message)])
        self._acknowledge(client)
        return True

    def _acknowledge(self, client: BlipmqClient) -> None:
        if self._held is None:
            return
        client.ack(self._held)
        client.ping()
        self._held = None


def readers(stage: Stage, turn: int) -> Iterator[Follower]:
    """Yield new readers from offset 0, of all formats that can read from there."""
    yield FlymqReads(stage, f"FlyMQ {turn}")
    yield FlymqReads(stage, f"FlyMQ of keys {turn}", KEYED)
    yield RustlogReads(stage, f"RustLog binary {turn}")
    yield RustlogJsonReads(stage, f"RustLog JSON {turn}")
    yield MegaReads(stage, f"MEGA {turn}")
    yield MamamiaReads(stage, f"Mamamia {turn}")
