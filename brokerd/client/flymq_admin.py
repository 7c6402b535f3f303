# Tests: tests/client/test_flymq_admin.py
"""Methods of `brokerd.client.flymq.FlymqClient` for users, access lists, roles and the audit trail.

They raise as its other methods do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from brokerd.client.checks import check_number, check_numbers, check_text, kind_of
from brokerd.codecs.flymq import (
    Acls,
    Answer,
    AuditEvents,
    ChangePassword,
    CreateUser,
    DeleteAcl,
    DeleteUser,
    Done,
    ExportAudit,
    Exported,
    GetAcl,
    GetUser,
    Identity,
    ListAcls,
    ListRoles,
    ListUsers,
    OneAcl,
    QueryAudit,
    Request,
    Role,
    Roles,
    SetAcl,
    UpdateUser,
    User,
    Users,
    WhoAmI,
)
from brokerd.errors import BrokerdError

_I32_MAX = (1 << 31) - 1

Result = TypeVar("Result", bound=Answer)


class FlymqError(BrokerdError):
    """The broker refused a request; the text is the broker's. The connection stays open."""


class FlymqAdmin:
    """Requests that need a login, and most of them an administrator's."""

    def _call(self, request: Request, kind: type[Result]) -> Result:
        """Send a request and return its answer. Raises `FlymqError` and what the client raises."""
        raise NotImplementedError

    def whoami(self) -> Identity:
        """Return the account of this connection and its permissions on everything."""
        return self._call(WhoAmI(), Identity)

    # -- users --------------------------------------------------------------------------------

    def create_user(self, user: str, password: str, roles: Sequence[str] = ()) -> User:
        """Create an enabled user."""
        check_text(user=user, password=password)
        return self._call(CreateUser(user, password, _names(roles=roles)), User)

    def delete_user(self, user: str) -> None:
        """Delete a user other than the client's own."""
        check_text(user=user)
        self._call(DeleteUser(user), Done)

    def update_user(self, user: str, roles: Sequence[str], enabled: bool) -> None:
        """Set a user's roles, and enable or disable the user."""
        check_text(user=user)
        _check_flag(enabled=enabled)
        self._call(UpdateUser(user, _names(roles=roles), enabled), Done)

    def list_users(self) -> tuple[User, ...]:
        """All users, without their permissions."""
        return self._call(ListUsers(), Users).users

    def get_user(self, user: str) -> User:
        """Return a user with the permissions of the roles."""
        check_text(user=user)
        return self._call(GetUser(user), User)

    def change_password(self, user: str, password: str, old_password: str = "") -> None:
        """Change a password; the client's own needs the old one."""
        check_text(user=user, password=password, old_password=old_password)
        self._call(ChangePassword(user, password, old_password), Done)

    # -- access lists and roles ---------------------------------------------------------------

    def set_acl(
        self,
        topic: str,
        *,
        public: bool = False,
        users: Sequence[str] = (),
        roles: Sequence[str] = (),
    ) -> None:
        """Set the access list of a topic: these users and roles may read and write."""
        check_text(topic=topic)
        _check_flag(public=public)
        self._call(SetAcl(topic, public, _names(users=users), _names(roles=roles)), Done)

    def get_acl(self, topic: str) -> OneAcl:
        """Return the access list of a topic, or that it has none."""
        check_text(topic=topic)
        return self._call(GetAcl(topic), OneAcl)

    def delete_acl(self, topic: str) -> None:
        """Delete the access list of a topic, if any."""
        check_text(topic=topic)
        self._call(DeleteAcl(topic), Done)

    def list_acls(self) -> Acls:
        """Return the access lists of all topics."""
        return self._call(ListAcls(), Acls)

    def list_roles(self) -> tuple[Role, ...]:
        """Return the roles."""
        return self._call(ListRoles(), Roles).roles

    # -- the audit trail ----------------------------------------------------------------------

    def query_audit(self, wanted: QueryAudit | None = None) -> AuditEvents:
        """Return matching events, newest first; 100 without a limit."""
        return self._call(_checked(wanted), AuditEvents)

    def export_audit(self, wanted: QueryAudit | None = None, format: str = "json") -> bytes:
        """Return all matching events as a JSON array, or as CSV with ``csv``."""
        check_text(format=format)
        return self._call(ExportAudit(_checked(wanted), format), Exported).data


def _checked(wanted: QueryAudit | None) -> QueryAudit:
    """Return a query that fits a frame, in the layout that every broker supports."""
    if wanted is None:
        return QueryAudit()
    if not isinstance(wanted, QueryAudit):
        raise TypeError(f"wanted must be a QueryAudit, not {kind_of(wanted)}")
    check_text(
        user=wanted.user, resource=wanted.resource, result=wanted.result, search=wanted.search
    )
    check_numbers(start_seconds=wanted.start_seconds, end_seconds=wanted.end_seconds)
    check_number("limit", wanted.limit, 0, _I32_MAX)
    check_number("offset", wanted.offset, 0, _I32_MAX)
    return wanted._replace(types=_names(types=wanted.types), java=False)


def _names(**given: Sequence[str]) -> tuple[str, ...]:
    """Return the texts of one argument. Raises TypeError for a single text."""
    ((name, values),) = given.items()
    if isinstance(values, str):
        raise TypeError(f"{name} must be several texts, not one: put it in a list")
    for value in values:
        check_text(**{name: value})
    return tuple(values)


def _check_flag(**given: bool) -> None:
    for name, value in given.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, not {value!r}")
