# Tests: tests/broker/test_clock_admin.py
"""Sets broker time to the wall clock, on request of an operator."""

from __future__ import annotations

from brokerd.broker.context import Context
from brokerd.broker.group_commit import ENTRY_OVERHEAD_BYTES, Congested
from brokerd.broker.model.snapshotter import Snapshotter
from brokerd.errors import NoSpace


class ClockAdmin:
    """Changes broker time, in the log and in memory."""

    def __init__(self, context: Context, snapshotter: Snapshotter) -> None:
        self._time = context.time
        self._group_commit = context.group_commit
        self._wal = context.wal
        self._snapshotter = snapshotter

    def set_to_wall(self) -> None:
        """Trust the wall clock, and continue broker time from it (docs/broker.rst, "Clocks").

        The catalog searches by the times of the segments' first frames. So the change begins a
        segment, and the first frame of that segment, a mark, has the time before the change. Delays
        in a snapshot count from its time, so a new snapshot follows. Raises `Congested` and
        `NoSpace` before it changes anything.
        """
        self._group_commit.admit_events(ENTRY_OVERHEAD_BYTES)
        self._group_commit.end_frame_early()
        if not self._wal.seal():
            error = self._wal.allocation_error
            if error is not None:
                raise NoSpace(f"the disk has no room for another segment ({error})")
            raise Congested("log space is being allocated; try again")
        self._group_commit.mark()
        self._time.set_to_wall()
        self._group_commit.mark_clock_set()
        self._snapshotter.take_anew()
