# Tests: tests/admin/test_effective_calls.py
"""The API's call about the effective permissions on a topic (docs/security.rst)."""

from __future__ import annotations

from brokerd.admin.calls.security import access_list_shape, account_shape, names_of
from brokerd.admin.http.routing import Call, Route
from brokerd.admin.shapes.common import Query
from brokerd.admin.shapes.security import EffectiveAccess, Text
from brokerd.security import ADMIN


class EffectiveQuery(Query, frozen=True):
    """The account to check."""

    user: Text = ""
    """Name of an account; empty: anonymous."""


def effective_access(call: Call) -> EffectiveAccess:
    """Return the permissions on a topic. Raises `UnknownAccount`.

    The answer assumes that security is on.
    """
    query: EffectiveQuery = call.query
    topic_name, accounts = call.path["name"], call.broker.accounts
    directory = accounts.directory
    lists = directory.lists_for(topic_name)
    account = accounts.account(query.user) if query.user else None
    bits = 0
    if account is not None and account.enabled:
        bits = directory.permissions_on(account, topic_name)
    return EffectiveAccess(
        topic=topic_name,
        access_lists=[access_list_shape(one) for one in lists],
        public=directory.is_public(topic_name),
        anonymous=names_of(directory.permissions_on(None, topic_name)),
        user=None if account is None else account_shape(account),
        permissions=None if account is None else names_of(bits),
    )


ROUTES = [
    Route(
        "GET",
        "/acls/effective/{name}",
        ADMIN,
        "Show the permissions on a topic, and the access lists that grant them",
        effective_access,
        EffectiveAccess,
        query=EffectiveQuery,
    )
]
