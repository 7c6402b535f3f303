# Tests: tests/backup/
"""A data directory with a small log that a test writes step by step, and what a log holds."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path

from brokerd.archive.contract.log_id import encode_log_id
from brokerd.archive.contract.pin import Pin, encode_pin
from brokerd.archive.storage.store import open_store
from brokerd.backup.create import Created, create_backup
from brokerd.backup.repository import Repository
from brokerd.backup.restore import Identity, Restored, restore
from brokerd.wal import Frame, RealDisk, SnapshotChunk, Snapshots, Wal
from brokerd.wal.damage.verify import VerifyReport, verify
from brokerd.wal.deletion.deleted_ranges import LsnRange, record_deletion
from brokerd.wal.disk import Disk
from brokerd.walformat import EntryKind, decode_records
from simulator.machine.inline import InlinePool
from tests.wal.rig import SMALL, records

LOG_ID = "0123456789abcdef" * 2
NEW_ID = "fedcba9876543210" * 2
SECOND = 1_000_000
BIG = 20_000
"""Bytes of a record of which three fill a segment."""


class Log:
    """A data directory, and the log that a broker writes there."""

    def __init__(self, data_dir: Path, log_id: str = LOG_ID, seed: int = 1) -> None:
        self.data_dir = data_dir
        self.wal_path = data_dir / "wal"
        self.state_path = data_dir / "state"
        self.state_path.mkdir(parents=True, exist_ok=True)
        (self.state_path / "log_id").write_bytes(encode_log_id(log_id))
        self.count = 0
        self._dice = random.Random(seed)
        self._pools = InlinePool(), InlinePool()
        self.wal = Wal(
            RealDisk(),
            str(self.wal_path),
            SMALL,
            *self._pools,
            self._dice.randbytes,
            lambda: 0.0,
        )
        found: list[Frame] = []
        self.wal.open(0, found.append)
        self.count = len(_values(found))
        self.run()

    def run(self) -> None:
        while any(map(len, self._pools)):
            for pool in self._pools:
                pool.run()

    def put(self, count: int = 1, size: int = 0) -> int:
        """Append frames of one record each, at 1, 2, 3... seconds. Return the LSN after them."""
        for _ in range(count):
            self.count += 1
            self.wal.append([records(self.count - 1, size=size)], self.count * SECOND)
            self.run()
        return self.wal.durable_lsn

    def seal(self) -> None:
        self.wal.seal()
        self.run()

    def snapshot(self) -> int:
        """Write a snapshot of everything up to now. Return its LSN."""
        lsn = self.wal.durable_lsn
        snapshots = Snapshots(RealDisk(), str(self.state_path), self._dice.randbytes)
        snapshots.write(lsn, [SnapshotChunk(8, b"", lsn, b"state")])
        return lsn

    def segments(self) -> list[int]:
        """Return the first LSNs of the segments."""
        return sorted(int(path.stem) for path in self.wal_path.glob("*.wal"))

    def delete_below(self, lsn: int) -> None:
        """Delete the segments that end at or below an LSN, as a broker does."""
        firsts = self.segments()
        ends = dict(itertools.pairwise(firsts))
        gone = [first for first, end in ends.items() if end <= lsn]
        ranges = [LsnRange(first, ends[first]) for first in gone]
        for name in record_deletion(RealDisk(), str(self.wal_path), ranges):
            (self.wal_path / name).unlink()
        for first in gone:
            (self.wal_path / f"{first:020d}.idx").unlink()
            (self.wal_path / f"{first:020d}.wal").unlink()

    def pin(self, archive_id: str, lsn: int) -> None:
        (self.state_path / "archived").write_bytes(encode_pin(Pin(archive_id, lsn)))


def repository(path: Path) -> Repository:
    return Repository(open_store(path))


def back_up(log: Log, where: Repository, disk: Disk | None = None, now_us: int = 0) -> Created:
    return create_backup(disk or RealDisk(), str(log.data_dir), where, now_us)


def restore_to(where: Repository, target: Path, **options: object) -> Restored:
    given = {"identity": Identity(NEW_ID), **options}
    return restore(RealDisk(), where, str(target), **given)  # type: ignore[arg-type]


def _values(frames: list[Frame]) -> list[int]:
    return [
        int(value.rstrip(b"."))
        for frame in frames
        for entry in frame.entries
        if entry.kind == EntryKind.RECORDS
        for value in decode_records(entry.body, entry.count).values
    ]


def read_log(data_dir: Path) -> tuple[list[int], VerifyReport]:
    """Return the records of a log, which are numbers, and the report of its verification."""
    frames: list[Frame] = []
    report = verify(RealDisk(), str(data_dir / "wal"), str(data_dir / "state"), frames.append)
    return _values(frames), report


def all_files(path: Path) -> list[str]:
    return sorted(
        os.path.relpath(os.path.join(top, name), path)
        for top, _, names in os.walk(path)
        for name in names
    )
