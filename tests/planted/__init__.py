# Tests: tests/simulator/test_planted.py
"""Planted bugs, a module for each part of the broker, and a command that searches for them.

``python -m tests.planted`` plants one bug at a time in a copy of the tree; docs/simulator.rst,
section "Planted bugs", keeps the printed table.
"""

from __future__ import annotations

from . import archive, broker, groups, journal, leases, protocols, retention, security
from .bug import Bug

BUGS: tuple[Bug, ...] = (
    *journal.BUGS,
    *groups.BUGS,
    *broker.BUGS,
    *leases.BUGS,
    *retention.BUGS,
    *protocols.BUGS,
    *security.BUGS,
    *archive.BUGS,
)
