# Tests: tests/security/test_principal.py
"""The permissions of a principal while security is on.

The order of the rules is that of docs/security.rst. Results are cached until the directory changes,
so that a request costs little.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from brokerd.errors import AuthenticationRequired, BrokerdError, Denied
from brokerd.security.access import ADMIN, ANY, NAMES, Access
from brokerd.security.accounts import Account
from brokerd.security.audit import AuditEvent, denied
from brokerd.security.directory import Directory
from brokerd.values import RESERVED_PREFIX

Record = Callable[[AuditEvent], None]
"""Writes an event into the audit trail; see `brokerd.broker.security.audit.AuditTrail.record`."""

_ANY: Final = "any"
_LOGIN: Final = "login"
"""Names of actions in the audit trail, besides the names of permissions."""


class Principal(Access):
    """An account by name, or anonymous with the empty name.

    The first lookup binds this object to the account's id. When that account is deleted, nothing is
    permitted any more, even if another account gets its name. Before the lookup finds one, it has
    the permissions of anonymous.

    :param key_id: API key of the login; nothing is permitted after its revocation.
    :param password: hash of the password of the login; nothing is permitted after a change of the
        password. Other logins have neither.
    """

    def __init__(
        self,
        directory: Directory,
        record: Record,
        name: str = "",
        wire_format: str = "",
        peer: str = "",
        key_id: str = "",
        password: str = "",
    ) -> None:
        self.name = name
        self.wire_format = wire_format
        self.peer = peer
        self.key_id = key_id
        self._password = password
        self._directory = directory
        self._record = record
        self._account_id = 0
        self._account: Account | None = None
        self._is_barred = False
        """The account is deleted or disabled, or its key or password is no longer valid."""
        self._version = -1
        self._topic: str | None = None
        self._bits = 0
        self._look_up()

    def _look_up(self) -> None:
        self._version = self._directory.version
        self._topic = None
        account = self._directory.accounts.get(self.name) if self.name else None
        if account is not None and not self._account_id:
            self._account_id = account.account_id
        is_gone = bool(self._account_id) and (
            account is None or account.account_id != self._account_id
        )
        self._is_barred = (
            is_gone
            or (account is not None and not account.enabled)
            or (bool(self.key_id) and self.key_id not in self._directory.keys)
            or (bool(self._password) and account is not None and account.password != self._password)
        )
        self._account = None if self._is_barred else account

    def adopt_password(self) -> None:
        account = self._directory.accounts.get(self.name)
        if self._password and account is not None:
            self._password = account.password
            self._version = -1

    @property
    def account(self) -> Account | None:
        """The account, while it is enabled."""
        if self._version != self._directory.version:
            self._look_up()
        return self._account

    @property
    def roles(self) -> tuple[str, ...]:
        account = self.account
        return () if account is None else account.roles

    @property
    def permissions(self) -> int:
        account = self.account
        return 0 if account is None else account.permissions

    @property
    def is_known(self) -> bool:
        return self.account is not None

    @property
    def is_stranger(self) -> bool:
        return self.account is None and not self._directory.policy.allow_anonymous

    def _on(self, topic_name: str) -> int:
        """Return the permissions on a topic; the last answer is cached."""
        if self._version != self._directory.version:
            self._look_up()
        if topic_name != self._topic:
            self._topic = topic_name
            self._bits = (
                0 if self._is_barred else self._directory.permissions_on(self._account, topic_name)
            )
        return self._bits

    def require(self, permission: int, topic_name: str) -> None:
        if not self._on(topic_name) & permission:
            raise self._refusal(NAMES[permission], topic_name)

    def require_any(self, topic_name: str) -> None:
        if not self._on(topic_name) & ANY:
            raise self._refusal(_ANY, topic_name)

    def require_server(self, permission: int) -> None:
        if not self.permissions & permission:
            raise self._refusal(NAMES[permission])

    def require_known(self) -> None:
        if self.account is None:
            raise self._refusal(_LOGIN)

    def require_lists(self) -> None:
        if self.is_stranger:
            self.require_known()

    def may(self, permission: int, topic_name: str) -> bool:
        if topic_name.startswith(RESERVED_PREFIX):
            return False  # internal topics are not in any list
        return bool(self._on(topic_name) & permission)

    def _refusal(self, action: str, topic_name: str | None = None) -> BrokerdError:
        """Make the error to raise; it depends only on the principal, the permission and the
        name.
        """
        self._record(denied(self.actor, action, topic_name or ""))
        if not self.name:
            return AuthenticationRequired("authentication required")
        if (topic_name or "").startswith(RESERVED_PREFIX) and self.permissions & ADMIN:
            return Denied(
                f"unauthorized: topics that begin with {RESERVED_PREFIX!r} are the broker's own"
            )
        return Denied("unauthorized")
