# Tests: tests/security/test_access.py
"""What one connection may do, as somebody: asked before each request is carried out.

Permissions are bits of an integer, because each request asks. Whoever asks does so *before* looking
for the topic, so that an answer never tells whether there is one.
"""

from __future__ import annotations

from typing import Final

from brokerd.errors import Denied
from brokerd.security.audit import AUDIT_TOPIC, Actor

READ: Final = 1
"""Fetch, lease, settle, commit; see groups and dead letters of a topic."""
WRITE: Final = 2
"""Append to a topic, now or later, and bring it about by that."""
ADMIN: Final = 4
"""Create, configure, trim, delete a topic; seek, pause, delete its groups; purge dead letters."""
MONITOR: Final = 8
"""See status, metrics and the page: of the whole broker."""
ANY: Final = READ | WRITE | ADMIN
"""Whoever has any of these may know that a topic exists."""

NAMES: Final = {READ: "read", WRITE: "write", ADMIN: "admin", MONITOR: "monitor"}


def names_of(permissions: int) -> tuple[str, ...]:
    """The names of permissions, in the order of their bits."""
    return tuple([name for bit, name in NAMES.items() if permissions & bit])


class Access:
    """Somebody who may do everything: what a connection has while security is off."""

    name = ""
    """The principal; empty for anonymous."""
    form = ""
    """The wire format that it came in by, or ``admin``; for the audit trail."""
    peer = ""
    """Its address without a port, if it has one."""
    key_id = ""
    """The API key that it came by, if that is how it came."""

    @property
    def actor(self) -> Actor:
        """Who this is in the audit trail."""
        return Actor(self.name, self.peer, self.form)

    @property
    def roles(self) -> tuple[str, ...]:
        return ()

    @property
    def permissions(self) -> int:
        """Those on everything, by role."""
        return READ | WRITE | ADMIN | MONITOR

    @property
    def is_known(self) -> bool:
        """Whether this is somebody who has logged in, in whatever way, and is let in now."""
        return True

    @property
    def is_stranger(self) -> bool:
        """Whether this is anonymous, and anonymous may do nothing with any topic."""
        return False

    def require(self, permission: int, topic_name: str) -> None:
        """Go on if this permission on a topic is given, whether or not the topic exists.

        :raises AuthenticationRequired: anonymous has not got it, and somebody might.
        :raises Denied: this principal has not got it. Nobody has, to change the audit trail.
        """
        if topic_name == AUDIT_TOPIC and permission != READ:
            raise Denied("the audit trail is written by the broker alone")

    def require_any(self, topic_name: str) -> None:
        """Go on if any of READ, WRITE and ADMIN is given on a topic; raises as `require`."""

    def require_server(self, permission: int) -> None:
        """Go on if this permission is given on everything, by role; raises as `require`."""

    def require_known(self) -> None:
        """Go on for anybody but anonymous; raises `AuthenticationRequired` or `Denied`."""

    def require_lists(self) -> None:
        """Go on for whoever may be shown topics in a list, by what holds for him at least.

        That is nobody who is anonymous, unless anonymous may see public topics; raises as
        `require_known`.
        """

    def keep_up(self) -> None:
        """Stay in although the account has another password: it was changed by this one."""

    def may(self, permission: int, topic_name: str) -> bool:
        """Whether any of these permissions on a topic is given; for lists, and never a denial."""
        return topic_name != AUDIT_TOPIC


OPEN: Final = Access()
"""Security is off."""
