# Tests: tests/groups/
"""The lease store: leases, attempts, dead letters and offsets of consumer groups.

Pure: values in, values and events out. docs/leases.rst is the contract.
"""

from brokerd.groups.settings import MAX_DURATION_US, GroupSettings
from brokerd.groups.snapshot import FrozenGroup
from brokerd.groups.state import DeadLetter, Lease
from brokerd.groups.store import GroupPartition

__all__ = [
    "DeadLetter",
    "FrozenGroup",
    "GroupPartition",
    "GroupSettings",
    "Lease",
    "MAX_DURATION_US",
]
