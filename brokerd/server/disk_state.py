# Tests: tests/test_conditions.py
"""The state of the disk of the journal: its free space, and conditions for a full or slow disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from brokerd.admin.conditions import Condition
from brokerd.broker.group_commit import GroupCommit
from brokerd.wal import Disk, Wal
from brokerd.worker_pool import WorkerPool

FREE_SECONDS = 5.0
"""Interval at which free space is measured."""
STALLED_SECONDS = 10.0
"""Age of the commit under way at which the disk counts as stalled."""
NEARLY_FULL_SEGMENTS = 4
"""The disk is nearly full if it has no room for this many segments. It must have room for one more
before that is over, so that the condition does not come and go."""


class DiskState:
    """Measures the disk of the journal, in a thread, because a hung disk does not answer.

    :param path: a directory on it.
    """

    def __init__(
        self,
        wal: Wal,
        group_commit: GroupCommit,
        disk: Disk,
        path: str,
        thread: WorkerPool,
        seconds: Callable[[], float],
    ) -> None:
        self._wal = wal
        self._group_commit = group_commit
        self._disk = disk
        self._path = path
        self._thread = thread
        self._seconds = seconds
        self.free_bytes: int | None = None
        """Free space at the last measurement; None before the first one."""
        self._measured_at: float | None = None
        self._is_measuring = False
        self._earlier_refusals = 0
        """Refusals before the present shortage."""
        self._was_short = False
        """Whether there was a shortage at the last check."""
        self._is_nearly_full = False

    def measure(self) -> None:
        """Start a measurement of the free space, if the last one is old."""
        measured_at = self._measured_at
        is_new = measured_at is not None and self._seconds() - measured_at < FREE_SECONDS
        if not (self._is_measuring or is_new):
            self._is_measuring = True
            self._thread.submit(lambda: self._disk.free_bytes(self._path), self._measured)

    def _measured(self, free_bytes: int | None, error: Exception | None) -> None:
        self._is_measuring = False
        self._measured_at = self._seconds()
        self.free_bytes = free_bytes
        if error is not None and not isinstance(error, OSError):
            raise error

    def conditions(self) -> Iterator[Condition]:
        """Yield the conditions of the disk."""
        yield Condition("disk-stalled", self._stalled, serves=False)
        yield Condition("disk-full", self._full)
        yield Condition("disk-nearly-full", self._nearly_full)

    def _stalled(self) -> str:
        waits_seconds = self._wal.commit_seconds
        if waits_seconds < STALLED_SECONDS:
            return ""
        return (
            f"a commit has waited for the disk for {waits_seconds:.0f} s; nothing is acknowledged "
            "meanwhile"
        )

    def _full(self) -> str:
        shortage, refusals = self._wal.shortage, self._group_commit.space_refusals
        if shortage is None:
            self._earlier_refusals = refusals
            if self._was_short:  # the last measurement may be older than the end of the shortage
                self._was_short, self.free_bytes, self._measured_at = False, None, None
            return ""
        self._was_short = True
        if refusals == self._earlier_refusals and self._wal.room:
            return ""
        return (
            f"the disk is full ({shortage}), and the broker refuses records; reads, and settles "
            "within their reserve, go on; free some space"
        )

    def _nearly_full(self) -> str:
        if self._full():
            return ""
        shortage = self._wal.shortage
        if shortage is not None:
            return (
                f"the next segment of the journal cannot be allocated ({shortage}), and "
                f"{self._wal.room} bytes are left in this one; free some space"
            )
        options, free_bytes = self._wal.options, self.free_bytes
        segments = NEARLY_FULL_SEGMENTS + self._is_nearly_full
        least_bytes = options.free_bytes_min + segments * options.segment_bytes
        self._is_nearly_full = free_bytes is not None and free_bytes < least_bytes
        if not self._is_nearly_full:
            return ""
        return (
            f"the disk of the journal has {free_bytes} free bytes, which are less than wal."
            f"free_bytes and {NEARLY_FULL_SEGMENTS} segments; free some space"
        )
