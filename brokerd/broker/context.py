# Tests: tests/broker/test_broker.py
"""The parts of one broker that most of its services use."""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.broker.clock import BrokerTime, Clock
from brokerd.broker.group_commit import GroupCommit
from brokerd.broker.model.state import State
from brokerd.broker.status.counters import Counters
from brokerd.wal import Wal


@dataclass(frozen=True)
class Context:
    """State, journal and clocks of one broker. `wiring` makes it for all services."""

    state: State
    group_commit: GroupCommit
    wal: Wal
    clock: Clock
    """Monotonic clock and scheduler of calls: the reactor, or the clock of a test."""
    time: BrokerTime
    counters: Counters
