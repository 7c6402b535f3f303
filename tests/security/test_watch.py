"""Who is told of what happens does nothing unless somebody makes something of it."""

from __future__ import annotations

from brokerd.security.access import OPEN
from brokerd.security.watch import NOBODY


def test_nobody_minds_being_told() -> None:
    NOBODY.happened("user.create", OPEN, resource="ann", details={"roles": "admin"})
