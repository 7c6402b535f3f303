# Tests: tests/broker/test_group_stores.py
"""The lease stores of all groups: which are open, which are packed, and their memory.

A lease store is made when its group partition gets its first event. It is packed into bytes when
many others were opened since and it had no event lately. The next access opens it again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from brokerd.errors import LimitExceeded
from brokerd.groups import GroupSettings
from brokerd.groups.view import LEASE_MEMORY, STORE_MEMORY

if TYPE_CHECKING:
    from brokerd.broker.model.topics import GroupPartition, Partition

OPEN_MAX = 4_096
"""Open stores beyond which the oldest are packed."""

EXAMINED_MAX = 64
"""Open stores that `GroupStores.trim` tries to pack in vain before it gives up."""

ALL = 1 << 62

PACKED_MEMORY = 300
"""Memory of a group partition besides the bytes of its packed store."""

GROUP_MEMORY = 900
"""Memory of a group besides its group partitions, with a name of average length."""


EVENT_MEMORY = 1_300
"""More than one event adds to a store, besides a range of leases: a block, a delay, two words."""

NEW_STATE_MEMORY = STORE_MEMORY + LEASE_MEMORY
"""The most memory that a lease, a commit or a delayed message adds."""


def _nothing(*_: object) -> None:
    """Stands for a call that is not set."""


class GroupStores:
    """Opens, packs and counts the lease stores of all groups."""

    def __init__(
        self, settings: GroupSettings, memory_max: int = ALL, open_max: int = OPEN_MAX
    ) -> None:
        self.settings = settings
        """Settings of groups without settings of their own."""
        self.token_base = 0
        """Groups that are deleted or lost may have granted tokens up to this one."""
        self.snapshots = 0
        """Number of snapshots that were begun."""
        self.memory_bytes = 0
        """About the memory of all groups."""
        self.crowded: Callable[[], None] = _nothing
        """Called when more than ``open_max`` stores are open. It causes a later `trim`."""
        self.letters_removed: Callable[[Partition, int], None] = _nothing
        """Called when a group settles removed records, with the dead letters among them."""
        self.free: Callable[[list[Any]], None] = _nothing
        """Called with dicts, sets and lists of a deleted group, to free them in small parts."""
        self.memory_max = memory_max
        self._open_max = open_max
        self._open: OrderedDict[GroupPartition, None] = OrderedDict()

    @property
    def room_bytes(self) -> int:
        """Memory that new state may take."""
        return max(0, self.memory_max - self.memory_bytes)

    def check_memory(self, size: int = NEW_STATE_MEMORY) -> None:
        """Check that there is memory for ``size`` bytes of new state. Raises `LimitExceeded`."""
        if size > self.room_bytes:
            raise LimitExceeded(
                f"the state of all groups takes {self.memory_bytes} of {self.memory_max} bytes; "
                "settle records, delete groups, or raise limits.group_state_bytes"
            )

    @property
    def open(self) -> int:
        """Number of open stores."""
        return len(self._open)

    def opened(self, group_partition: GroupPartition) -> None:
        """Note a store that was opened."""
        self._open[group_partition] = None
        if len(self._open) > self._open_max:
            self.crowded()

    def closed(self, group_partition: GroupPartition) -> None:
        """Note that the store of a deleted group is disposed."""
        self._open.pop(group_partition, None)

    def trim(self, most: int = ALL) -> bool:
        """Pack the stores that were opened first, at most ``most`` of them.

        Return whether that many were packed, so that more may be left. No caller may hold a store,
        because its later changes would be lost. Stores with events in the next frame, large ones,
        and those with an event since the last look stay open.
        """
        spare = EXAMINED_MAX
        while most and spare and len(self._open) > self._open_max:
            group_partition, _ = self._open.popitem(last=False)
            if group_partition.is_recent:
                group_partition.is_recent = False
            elif group_partition.pack():
                most -= 1
                continue
            else:
                spare -= 1
            self._open[group_partition] = None
        return not most
