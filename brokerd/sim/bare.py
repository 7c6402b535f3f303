# Tests: tests/sim/test_flips.py
"""The real broker without Protocols and threads, on a simulated disk, driven by hand.

The cheapest start there is, for checks that start a broker a hundred thousand times.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.task import Clock

from brokerd.broker import Broker, BrokerSettings, Chunk, Lane, Partition
from brokerd.errors import DamagedData
from brokerd.sim.disk import SimDisk
from brokerd.sim.inline import InlineCommitter
from brokerd.values import Record
from brokerd.wal import Snapshots, Wal, WalOptions

WAL_DIR = "/data/wal"
STATE_DIR = "/data/state"
WALL_SECONDS = 1_700_000_000.0
MONOTONIC_SECONDS = 1_000.0


class BareBroker:
    """One run of a broker; ``ids`` makes the random bytes of its segments and snapshots.

    What is durable leaves memory at once; what was read stays while ``read_cache_bytes`` allow.
    """

    def __init__(
        self,
        disk: SimDisk,
        segment_bytes: int,
        ids: Callable[[int], bytes],
        read_cache_bytes: int,
        wall_seconds: float = WALL_SECONDS,
    ) -> None:
        self.disk = disk
        self.clock = Clock()
        self.clock.advance(MONOTONIC_SECONDS)
        self.wall_seconds = wall_seconds
        self.failures: list[Exception] = []
        self._committers = [InlineCommitter() for _ in range(4)]
        writer, background, readers, snapshot_writer = self._committers
        self.wal = Wal(
            disk,
            WAL_DIR,
            WalOptions(segment_bytes=segment_bytes, free_bytes_min=0),
            writer,
            background,
            ids,
            self.clock.seconds,
        )
        self.wal.on_fatal = self.failures.append
        self.broker = Broker(
            self.wal,
            Snapshots(disk, STATE_DIR, ids),
            readers,
            snapshot_writer,
            self.clock,
            lambda: self.wall_seconds,
            BrokerSettings(tail_cache_bytes=0, read_cache_bytes=read_cache_bytes),
        )
        self.report = self.broker.replay()
        self.broker.start()

    def run(self) -> None:
        """End the turn, and do all that is left to do now."""
        self.clock.advance(0)
        while any([committer.step() for committer in self._committers]):
            self.clock.advance(0)

    def pass_time(self, seconds: float, step: float = 0.05) -> None:
        """Let both clocks advance, running whatever becomes due."""
        for _ in range(round(seconds / step)):
            self.wall_seconds += step
            self.clock.advance(step)
            self.run()

    # -- asking -------------------------------------------------------------------------------

    def partitions(self) -> list[Partition]:
        """All of them, in order."""
        return [partition for topic in self.broker.topics() for partition in topic.partitions]

    def load(self, partition: Partition, offset: int) -> tuple[Chunk | None, Exception | None]:
        """Read from the log, whatever is in memory."""
        answers: list[tuple[Chunk | None, Exception | None]] = []
        self.broker.load(partition, offset, lambda *answer: answers.append(answer))
        while not answers:
            if not any([committer.step() for committer in self._committers]):
                raise AssertionError("a read waits for nothing")
        return answers[0]

    def read_all(self, partition: Partition) -> dict[int, Record | Exception]:
        """Every offset of a partition: the record as the log has it, or why there is none."""
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
        """Lease all that a group can get, as a Protocol does: (records by place, complaints).

        What cannot be read becomes a dead letter.
        """
        found: dict[tuple[int, int], Record] = {}
        complaints: list[str] = []
        while True:
            taking = _Taking(self.broker)
            leased = self.broker.acquire(topic, group, "reader", 1_000_000, 10_000, taking)
            for (lane, grant), record in zip(leased, taking.records, strict=True):
                found[lane.partition.index, grant.offset] = record
            if taking.cold is None:
                return found, complaints
            lane, offset = taking.cold
            _, error = self.load(lane.partition, offset)
            if isinstance(error, DamagedData):
                self.broker.dead_letter(lane, offset, "damaged")
            elif error is not None:
                complaints.append(str(error))
                return found, complaints


class _Taking:
    """Takes whatever is in memory; ``cold`` is the record that must be read first."""

    lane: Lane

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.stopped = False
        self.records: list[Record] = []
        self.cold: tuple[Lane, int] | None = None

    def takes(self, offset: int) -> bool:
        chunk = self._broker.find(self.lane.partition, offset)
        if chunk is None:
            self.cold = (self.lane, offset)
            self.stopped = True
            return False
        self.records.append(chunk.record(offset - chunk.base))
        return True
