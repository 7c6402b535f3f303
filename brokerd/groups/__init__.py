# Tests: tests/groups/
"""The lease store: leases, attempts, dead letters and offsets of consumer groups.

Pure: values in, values and events out. docs/leases.rst is the contract.
"""

from brokerd.groups.attempts import DeadLetter, Lease
from brokerd.groups.eligible import EXAMINED_MAX, GONE, RANGES_MAX, STOP, TAKE, gone_until
from brokerd.groups.key_order import BLOCKED_MAX, NO_KEY, UNKNOWN
from brokerd.groups.settings import MAX_DURATION_US, GroupSettings
from brokerd.groups.snapshot import FrozenGroup
from brokerd.groups.store import LeaseStore

__all__ = [
    "DeadLetter",
    "FrozenGroup",
    "GONE",
    "LeaseStore",
    "GroupSettings",
    "BLOCKED_MAX",
    "EXAMINED_MAX",
    "Lease",
    "MAX_DURATION_US",
    "NO_KEY",
    "RANGES_MAX",
    "STOP",
    "TAKE",
    "UNKNOWN",
    "gone_until",
]
