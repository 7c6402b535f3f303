# Tests: tests/wal/
"""A log on a disk in memory; the test drives every step of its threads."""

from __future__ import annotations

import random

from brokerd.errors import StorageFailed
from brokerd.wal import Frame, RecoveryReport, Wal, WalOptions
from brokerd.walformat import (
    Entry,
    EntryKind,
    RecordColumns,
    decode_records,
    encode_group_events,
    encode_records,
)
from simulator.machine.disk import CrashModel, SimDisk
from simulator.machine.inline import InlinePool

PATH = "data/wal"
SMALL = WalOptions(segment_bytes=64 << 10, free_bytes_min=0)


def records(
    first: int, count: int = 1, topic_id: int = 1, partition: int = 0, size: int = 0
) -> Entry:
    """Return a batch whose values are its offsets."""
    values = [b"%d" % offset + b"." * size for offset in range(first, first + count)]
    body = encode_records(RecordColumns(values))
    return Entry(EntryKind.RECORDS, topic_id, partition, first, count, body)


def events(offset: int) -> Entry:
    body = encode_group_events("g", [(3, offset, 0, 0, 0, "", "")])
    return Entry(EntryKind.GROUP_EVENTS, 1, 0, 0, 1, body)


class Rig:
    """One process with a log on ``disk``. Lists keep its reports."""

    def __init__(
        self,
        disk: SimDisk | None = None,
        options: WalOptions = SMALL,
        from_lsn: int = 0,
        seed: int = 1,
    ) -> None:
        self.disk = disk or SimDisk()
        self.commits = InlinePool()
        self.background = InlinePool()
        self.frames: list[Frame] = []
        self.durable: list[int] = []
        self.fatal: list[StorageFailed] = []
        self.room_calls = 0
        self.wal = Wal(
            self.disk,
            PATH,
            options,
            self.commits,
            self.background,
            random.Random(f"{seed} {sorted(self.disk.list(PATH))}").randbytes,
            lambda: 0.0,
        )
        self.wal.on_durable = self.durable.append
        self.wal.on_fatal = self.fatal.append
        self.wal.on_room = self._on_room
        self.report: RecoveryReport = self.wal.open(from_lsn, self.frames.append)

    def _on_room(self) -> None:
        self.room_calls += 1

    def run(self) -> None:
        """Let all threads finish."""
        while len(self.commits) or len(self.background):
            self.commits.run()
            self.background.run()

    def put(self, *entries: Entry, time_us: int = 1) -> int:
        """Append one frame, make it durable, and return its ticket."""
        ticket = self.wal.append(list(entries), time_us)
        self.run()
        return ticket

    def read(
        self, offset: int, max_bytes: int = 1, topic_id: int = 1, partition: int = 0
    ) -> list[bytes]:
        """Return values from the batch with ``offset`` on."""
        plan = self.wal.plan_read(topic_id, partition, offset, max_bytes)
        assert plan is not None, f"offset {offset} is not in the log"
        return [
            value
            for batch in plan.run()
            for value in decode_records(batch.body, batch.count).values
        ]

    def restart(
        self,
        model: CrashModel = CrashModel.DROP,
        dice: random.Random | None = None,
        from_lsn: int = 0,
    ) -> Rig:
        """Cut the power and start again; return the new process."""
        self.disk.crash(model, dice)
        return Rig(self.disk, self.wal.options, from_lsn, seed=2)

    def files(self, suffix: str = ".wal") -> list[str]:
        return [name for name in self.disk.list(PATH) if name.endswith(suffix)]

    def entries(self) -> list[Entry]:
        """Return every replayed entry."""
        return [entry for frame in self.frames for entry in frame.entries]


def content(disk: SimDisk, name: str) -> bytearray:
    return disk.content(f"{PATH}/{name}")
