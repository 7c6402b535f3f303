# Tests: tests/broker/
"""The broker as a Protocol uses it, without a wire: requests of the tests of the core."""

from __future__ import annotations

from brokerd.broker import STOP, TAKE, UNKNOWN, Chunk, GroupPartition, gone_until, key_hash
from brokerd.values import Grant, Record
from tests.house import House

SECOND_US = 1_000_000


class TakeAll:
    """Leases records in memory; ``cold`` is the record that must be read first."""

    group_partition: GroupPartition

    def __init__(self, house: House) -> None:
        self._broker = house.broker
        self.stopped = False
        self.cut_short = False
        self.values: list[bytes] = []
        self.cold: tuple[GroupPartition, int] | None = None

    def accept(self, offset: int) -> int:
        chunk = self._find(offset)
        if chunk is None:
            return STOP
        if self._broker.reader.expiry.is_expired(chunk, offset - chunk.base):
            return gone_until(max(chunk.hole_end(offset), offset + 1))
        self.values.append(chunk.values[offset - chunk.base])
        return TAKE

    def accept_run(self, first: int, count: int) -> int:
        return 0

    def key_of(self, offset: int) -> int:
        chunk = self._find(offset)
        return UNKNOWN if chunk is None else key_hash(chunk.keys[offset - chunk.base])

    def _find(self, offset: int) -> Chunk | None:
        chunk = self.group_partition.partition.find(offset)
        if chunk is None:
            self.cold = (self.group_partition, offset)
            self.stopped = True
        return chunk


def produce(house: House, topic: str, *values: bytes, index: int | None = None) -> list[int]:
    """Admit and append records together, create the topic if needed, and return the offsets."""
    broker = house.broker
    broker.group_commit.admit(sum(map(len, values)) + 64 * len(values))
    target = broker.topics.find(topic) or broker.topics.create(topic)
    return [broker.appender.append(target.choose(None, index), value) for value in values]


def lease(
    house: House,
    topic: str = "t",
    group: str = "g",
    owner: str = "ann",
    seconds: float = 30.0,
    limit: int = 1,
) -> list[tuple[int, bytes]]:
    """Lease records, with reads from disk if needed; return (offset, value) of each."""
    found = grants(house, topic, group, owner, seconds, limit)
    return [(grant.offset, value) for grant, value in found]


def grants(
    house: House,
    topic: str = "t",
    group: str = "g",
    owner: str = "ann",
    seconds: float | None = 30.0,
    limit: int = 1,
) -> list[tuple[Grant, bytes]]:
    """Lease records as `lease` does; return (grant, value) of each."""
    answers: list[list[tuple[Grant, bytes]]] = []
    errors: list[Exception] = []
    duration_us = None if seconds is None else int(seconds * SECOND_US)

    def attempt() -> None:
        taking = TakeAll(house)
        found = house.broker.leases.acquire(topic, group, owner, duration_us, limit, taking)
        if not found and taking.cut_short:
            attempt()
        elif found or taking.cold is None:
            answers.append([(g, value) for (_, g), value in zip(found, taking.values, strict=True)])
        else:
            group_partition, offset = taking.cold
            house.broker.reader.load(group_partition.partition, offset, loaded)

    def loaded(_chunk: Chunk | None, error: Exception | None) -> None:
        # Called at once, because the read data may leave the cache after this call.
        if error is None:
            attempt()
        else:
            errors.append(error)

    attempt()
    while not answers and not errors:
        step_read(house)
    if errors:
        raise errors[0]
    return answers[0]


def settle(
    house: House,
    offset: int,
    success: bool = True,
    topic: str = "t",
    group: str = "g",
    owner: str | None = "ann",
    delay_seconds: float | None = None,
    index: int = 0,
    token: int | None = None,
) -> bool:
    """Settle one record; return whether that changed anything."""
    delay_us = None if delay_seconds is None else int(delay_seconds * SECOND_US)
    return house.broker.leases.settle(
        house.broker.leases.group_partition(topic, group, index, offset),
        offset,
        success,
        owner=owner,
        token=token,
        delay_us=delay_us,
    )


def read(house: House, topic: str, offset: int, index: int = 0) -> Record:
    """Return one record, from memory or from the log."""
    target = house.broker.topics.find(topic)
    assert target is not None
    partition = target.partition(index)
    chunk = partition.find(offset)
    if chunk is None:
        answers: list[tuple[Chunk | None, Exception | None]] = []
        house.broker.reader.load(partition, offset, lambda *answer: answers.append(answer))
        while not answers:
            step_read(house)
        chunk, error = answers[0]
        if error is not None:
            raise error
    assert chunk is not None
    return chunk.record(offset - chunk.base, house.broker.group_commit.frame_time_us)


def step_read(house: House) -> None:
    """Let a thread that reads the log or the archive do one piece of work."""
    assert house.readers.step() or house.archive_threads.step(), "a read waits for nothing"


def acknowledged(house: House) -> list[bool]:
    """Return a list that becomes non-empty when all changes so far are durable."""
    group_commit = house.broker.group_commit
    done: list[bool] = []
    ticket = group_commit.ticket()
    if ticket <= group_commit.durable_ticket:
        done.append(True)
    else:
        group_commit.when_durable(ticket, lambda: done.append(True))
    return done
