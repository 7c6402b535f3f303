# Tests: tests/security/test_access.py
"""The permissions of one connection, checked before each request.

Permissions are bits of an integer, because every request checks them. The caller checks *before* it
looks up the topic, so that an answer never reveals whether the topic exists.
"""

from __future__ import annotations

from typing import Final

from brokerd.errors import Denied
from brokerd.security.audit import AUDIT_TOPIC, Actor

READ: Final = 1
"""Fetch, lease, settle, commit; see groups and dead letters of a topic."""
WRITE: Final = 2
"""Append to a topic, now or later, and create it by that."""
ADMIN: Final = 4
"""Create, configure, trim, delete a topic; seek, pause, delete its groups; purge dead letters."""
MONITOR: Final = 8
"""See status, metrics and the page of the whole broker."""
ANY: Final = READ | WRITE | ADMIN
"""With any of these a principal may know that a topic exists."""

NAMES: Final = {READ: "read", WRITE: "write", ADMIN: "admin", MONITOR: "monitor"}


def names_of(permissions: int) -> tuple[str, ...]:
    """The names of permissions, in the order of their bits."""
    return tuple([name for bit, name in NAMES.items() if permissions & bit])


class Access:
    """Access with all permissions: that of every connection while security is off."""

    name = ""
    """The principal; empty for anonymous."""
    wire_format = ""
    """Wire format or ``admin``, for the audit trail."""
    peer = ""
    """Address without a port, or ""."""
    key_id = ""
    """Id of the API key of the login, or ""."""

    @property
    def actor(self) -> Actor:
        """The actor for the audit trail."""
        return Actor(self.name, self.peer, self.wire_format)

    @property
    def roles(self) -> tuple[str, ...]:
        return ()

    @property
    def permissions(self) -> int:
        """Permissions by role, on everything."""
        return READ | WRITE | ADMIN | MONITOR

    @property
    def is_known(self) -> bool:
        """Whether this is an enabled account, logged in by any means."""
        return True

    @property
    def is_stranger(self) -> bool:
        """Whether this is anonymous, and anonymous has no permission on any topic."""
        return False

    def require(self, permission: int, topic_name: str) -> None:
        """Require a permission on a topic, whether or not the topic exists.

        :raises AuthenticationRequired: anonymous lacks it; a login may help.
        :raises Denied: this principal lacks it. All principals lack write access to the audit
            trail.
        """
        if topic_name == AUDIT_TOPIC and permission != READ:
            raise Denied("the audit trail is written by the broker alone")

    def require_any(self, topic_name: str) -> None:
        """Require READ, WRITE or ADMIN on a topic; raises as `require`."""

    def require_server(self, permission: int) -> None:
        """Require a permission by role; raises as `require`."""

    def require_known(self) -> None:
        """Require a login; raises `AuthenticationRequired` or `Denied`."""

    def require_lists(self) -> None:
        """Require the right to list topics; the list then has only permitted topics.

        Anonymous has it only if it may see public topics; raises as `require_known`.
        """

    def adopt_password(self) -> None:
        """Keep this login valid after it changed the account's password itself."""

    def may(self, permission: int, topic_name: str) -> bool:
        """Return whether any of these permissions on a topic is granted; for lists, not audited."""
        return topic_name != AUDIT_TOPIC


OPEN: Final = Access()
"""Security is off."""
