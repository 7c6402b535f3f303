# Tests: tests/wal
"""The write-ahead log: segments, group commit, recovery, indexes, snapshots.

Bodies are opaque here; their layout is :mod:`brokerd.walformat`. Disk, threads, clock and random
bytes are arguments. What others may use is listed below.
"""

from brokerd.wal.catalog import SegmentStatus
from brokerd.wal.committer import Committer, ThreadCommitter
from brokerd.wal.coverage import Coverage, CoveragePlan, Staying
from brokerd.wal.disk import Disk, File, RealDisk
from brokerd.wal.known import KnownDamage
from brokerd.wal.lock import DirectoryLock
from brokerd.wal.log import Wal
from brokerd.wal.losses import decode_loss
from brokerd.wal.offsets import SNAPSHOT_TOPIC
from brokerd.wal.options import WalOptions
from brokerd.wal.reader import Batch, DamagedBatch, ReadPlan
from brokerd.wal.recovery import Cut, Damage, Frame, LostRange, RecoveryReport
from brokerd.wal.removal import Removable, RemovalPlan
from brokerd.wal.seeking import OffsetPlan, SizePlan
from brokerd.wal.snapshot import LoadedSnapshot, SnapshotChunk, Snapshots

__all__ = [
    "SNAPSHOT_TOPIC",
    "Batch",
    "Committer",
    "Coverage",
    "CoveragePlan",
    "Cut",
    "Damage",
    "DamagedBatch",
    "DirectoryLock",
    "Disk",
    "File",
    "Frame",
    "KnownDamage",
    "LoadedSnapshot",
    "LostRange",
    "OffsetPlan",
    "ReadPlan",
    "RealDisk",
    "RecoveryReport",
    "Removable",
    "RemovalPlan",
    "SegmentStatus",
    "SizePlan",
    "SnapshotChunk",
    "Snapshots",
    "Staying",
    "ThreadCommitter",
    "Wal",
    "WalOptions",
    "decode_loss",
]
