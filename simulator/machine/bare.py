# Tests: tests/simulator/test_flips.py
"""The real broker, and the log alone, on a simulated disk without threads, stepped by the caller.

They start fast, for checks that start a broker a hundred thousand times.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.task import Clock

from brokerd.archive.contract.view import Archive
from brokerd.broker import (
    NO_KEY,
    STOP,
    TAKE,
    UNKNOWN,
    ArchiveAccess,
    Broker,
    BrokerSettings,
    Chunk,
    GroupPartition,
    Partition,
    build_broker,
    gone_until,
    key_hash,
)
from brokerd.errors import DamagedData, RecordRemoved
from brokerd.values import Record
from brokerd.wal import Snapshots, Wal, WalOptions
from simulator.machine.disk import SimDisk
from simulator.machine.inline import InlinePool

DATA_DIR = "/data"
WAL_DIR = f"{DATA_DIR}/wal"
STATE_DIR = f"{DATA_DIR}/state"
WALL_SECONDS = 1_700_000_000.0
"""The first time of the wall clock of each simulated machine."""
MONOTONIC_SECONDS = 1_000.0
FORGETFUL = BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0)
"""Settings without caches: each read of a durable record goes to the log."""


def counting_ids(prefix: bytes) -> Callable[[int], bytes]:
    """Return a replacement for random bytes: a prefix and a count."""
    given = 0

    def ids(count: int) -> bytes:
        nonlocal given
        given += 1
        return prefix + given.to_bytes(count - len(prefix), "big")

    return ids


class BareLog:
    """A log without a broker, not opened yet. ``ids`` makes the random bytes of its segments."""

    def __init__(self, disk: SimDisk, options: WalOptions, ids: Callable[[int], bytes]) -> None:
        self.disk = disk
        self.failures: list[Exception] = []
        self.writer, self.background = InlinePool(), InlinePool()
        self.wal = Wal(disk, WAL_DIR, options, self.writer, self.background, ids, lambda: 0.0)
        self.wal.on_fatal = self.failures.append

    def run(self) -> None:
        """Do all waiting work of all threads."""
        while any([self.writer.step(), self.background.step()]):
            pass

    def close(self) -> None:
        """Close it cleanly."""
        closed: list[object] = []
        self.wal.close(closed.append)
        self.run()
        assert closed == [None], f"the log does not close: {closed}"


class BareBroker:
    """One run of a broker; ``ids`` makes the random bytes of its segments and snapshots.

    It has an archive and a log id if ``open_archive(log_id)`` returns one.
    """

    def __init__(
        self,
        disk: SimDisk,
        options: WalOptions,
        ids: Callable[[int], bytes],
        settings: BrokerSettings = FORGETFUL,
        wall_seconds: float = WALL_SECONDS,
        open_archive: Callable[[str], Archive] | None = None,
    ) -> None:
        self.disk = disk
        self.options = options
        self.settings = settings
        self.wall_seconds = wall_seconds
        self.clock = Clock()
        self.clock.advance(MONOTONIC_SECONDS)
        self.failures: list[Exception] = []
        self.writer, self.background = InlinePool(), InlinePool()
        self.readers, self.snapshot_writer = InlinePool(), InlinePool()
        self.archive_threads = InlinePool()
        self.wal = Wal(
            disk, WAL_DIR, options, self.writer, self.background, ids, self.clock.seconds
        )
        self.wal.on_fatal = self.failures.append
        self.snapshots = Snapshots(disk, STATE_DIR, ids)
        self.broker = build_broker(
            self.wal,
            self.snapshots,
            self.readers,
            self.snapshot_writer,
            self.clock,
            lambda: self.wall_seconds,
            settings,
            archive=open_archive
            and ArchiveAccess(open_archive, self.archive_threads, disk, STATE_DIR, ids),
        )
        self.report = self.broker.replay()
        self.broker.start()

    def _step(self) -> bool:
        """Let each thread do one piece of work. Return False if none has work."""
        threads = (
            self.writer,
            self.background,
            self.readers,
            self.snapshot_writer,
            self.archive_threads,
        )
        return any([thread.step() for thread in threads])

    def turn(self) -> None:
        """End the turn of the reactor."""
        self.clock.advance(0)

    def run(self) -> None:
        """Do all work that is due now: turns, commits, allocations, reads."""
        self.turn()
        while self._step():
            self.turn()

    def pass_time(self, seconds: float, step: float = 0.05) -> None:
        """Advance both clocks, and do the work that becomes due."""
        while seconds > 0:
            part = min(step, seconds)
            self.wall_seconds += part
            self.clock.advance(part)
            self.run()
            seconds -= part

    def stop(self) -> None:
        """Stop cleanly."""
        self.broker.stop()
        closed: list[object] = []
        self.wal.close(closed.append)
        self.run()
        assert closed == [None], f"the log does not close: {closed}"
        self.broker.write_last_snapshot()

    # -- asking -------------------------------------------------------------------------------

    def partitions(self) -> list[Partition]:
        """Return all partitions, in order."""
        return [partition for topic in self.broker.topics.all() for partition in topic.partitions]

    def load(self, partition: Partition, offset: int) -> tuple[Chunk | None, Exception | None]:
        """Read a record from the log, even if it is in memory; return its chunk or the error."""
        answers: list[tuple[Chunk | None, Exception | None]] = []
        self.broker.reader.load(partition, offset, lambda *answer: answers.append(answer))
        while not answers:
            if not self._step():
                raise AssertionError("a read waits for nothing")
        return answers[0]

    def read_all(self, partition: Partition) -> dict[int, Record | Exception]:
        """Read each offset of a partition from the log: its record, or the error."""
        found: dict[int, Record | Exception] = {}
        offset = 0
        while offset < partition.next_offset:
            chunk, error = self.load(partition, offset)
            if chunk is None:
                assert error is not None
                found[offset] = error
                offset += 1
            else:
                for at in range(offset, chunk.end):
                    found[at] = chunk.record(at - chunk.base)
                offset = chunk.end
        return found

    def drain(self, topic: str, group: str) -> tuple[dict[tuple[int, int], Record], list[str]]:
        """Lease all records of a group as a Protocol does. Return (records by place, problems).

        An unreadable record becomes a dead letter.
        """
        found: dict[tuple[int, int], Record] = {}
        complaints: list[str] = []
        while True:
            taking = _AcceptInMemory(self.broker)
            leased = self.broker.leases.acquire(topic, group, "reader", 1_000_000, 10_000, taking)
            for (group_partition, grant), record in zip(leased, taking.records, strict=True):
                found[group_partition.partition.index, grant.offset] = record
            if taking.cold is None:
                if taking.cut_short:
                    continue
                return found, complaints
            group_partition, offset = taking.cold
            _, error = self.load(group_partition.partition, offset)
            if isinstance(error, DamagedData):
                self.broker.leases.dead_letter(group_partition, offset, "damaged")
            elif error is not None and not isinstance(error, RecordRemoved):
                complaints.append(str(error))
                return found, complaints


class AcceptAll:
    """Leases each record without reading it."""

    group_partition: GroupPartition
    stopped = False
    cut_short = False

    def accept(self, offset: int) -> int:
        return TAKE

    def accept_run(self, first: int, count: int) -> int:
        return 0

    def key_of(self, offset: int) -> int:
        return NO_KEY


class _AcceptInMemory:
    """Leases records in memory. ``cold`` is the offset of a record that must be read first."""

    group_partition: GroupPartition

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.stopped = False
        self.cut_short = False
        self.records: list[Record] = []
        self.cold: tuple[GroupPartition, int] | None = None

    def accept(self, offset: int) -> int:
        chunk = self._find(offset)
        if chunk is None:
            return STOP
        if self._broker.reader.expiry.is_expired(chunk, offset - chunk.base):
            return gone_until(max(chunk.hole_end(offset), offset + 1))
        self.records.append(chunk.record(offset - chunk.base))
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
