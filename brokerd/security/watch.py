# Tests: tests/security/test_watch.py
"""Who is told of logins, denials and administration; see the audit trail in docs/security.rst."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from brokerd.security.access import Access

SUCCESS: Final = "success"
FAILURE: Final = "failure"
DENIED: Final = "denied"

ADMITTED_BYTES = 4_096
"""More log space than being told of a change may take; it was admitted with the change."""


class Watch:
    """Is told, and does nothing about it."""

    def happened(
        self,
        kind: str,
        access: Access,
        *,
        resource: str = "",
        action: str = "",
        result: str = SUCCESS,
        details: Mapping[str, str] | None = None,
    ) -> None:
        """Called in the reactor's thread, and for a change in the turn in which it is made.

        Before the frame that holds the change is cut, and with `ADMITTED_BYTES` of room: what is
        appended here is durable together with it.

        :param kind: such as ``auth.failure``, ``access.denied``, ``user.create``.
        :param access: who did it: name, ``form`` and ``peer``.
        :param resource: what it was done to: the name of a topic, an account, an API key's id.
        """


NOBODY: Final = Watch()
