# Tests: tests/wal
"""The write-ahead log: segments, group commit, recovery, indexes, snapshots.

Bodies are opaque here; their layout is :mod:`brokerd.walformat`. Disk, threads, clock and random
bytes are arguments. Other packages import the names below.
"""

from brokerd.wal.deletion.coverage import Coverage, CoveragePlan, RetainedBytes
from brokerd.wal.deletion.removal import RemovableSegment, RemovalPlan
from brokerd.wal.disk import Disk, File, RealDisk
from brokerd.wal.lock import DirectoryLock
from brokerd.wal.log import Wal
from brokerd.wal.options import WalOptions
from brokerd.wal.read.reader import Batch, DamagedBatch, ReadPlan
from brokerd.wal.read.seek import OffsetPlan, SizePlan
from brokerd.wal.recovery.assigned_offsets import SNAPSHOT_TOPIC
from brokerd.wal.recovery.damage_fingerprint import DamageFingerprint
from brokerd.wal.recovery.loss_records import decode_loss
from brokerd.wal.recovery.report import Cut, Damage, Frame, LostRange, RecoveryReport
from brokerd.wal.segment import SegmentStatus
from brokerd.wal.snapshot import LoadedSnapshot, SnapshotChunk, Snapshots

__all__ = [
    "SNAPSHOT_TOPIC",
    "Batch",
    "Coverage",
    "CoveragePlan",
    "Cut",
    "Damage",
    "DamagedBatch",
    "DirectoryLock",
    "Disk",
    "File",
    "Frame",
    "DamageFingerprint",
    "LoadedSnapshot",
    "LostRange",
    "OffsetPlan",
    "ReadPlan",
    "RealDisk",
    "RecoveryReport",
    "RemovableSegment",
    "RemovalPlan",
    "SegmentStatus",
    "SizePlan",
    "SnapshotChunk",
    "Snapshots",
    "RetainedBytes",
    "Wal",
    "WalOptions",
    "decode_loss",
]
