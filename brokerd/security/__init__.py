# Tests: tests/security/test_access.py
"""Authorization: principals, roles, access lists, passwords.

Pure: no wire, no disk, no threads. docs/security.rst is the contract.
"""

from brokerd.security.access import ADMIN, ANY, MONITOR, OPEN, READ, WRITE, Access
from brokerd.security.guard import OPEN_GUARD, Guard

__all__ = ["ADMIN", "ANY", "MONITOR", "OPEN", "OPEN_GUARD", "READ", "WRITE", "Access", "Guard"]
