# Tests: tests/simulator/test_operator.py
"""The principal of an operator, a registrar or the auditor: the name of the client."""

from __future__ import annotations

from brokerd.security import Access

PEER = "10.0.0.9"
"""The address of all of them."""


class OperatorAccess(Access):
    """All permissions, with the name of a client as the principal."""

    wire_format = "admin"
    peer = PEER

    def __init__(self, client: str) -> None:
        self.name = client
