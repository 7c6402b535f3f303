# Tests: tests/admin/test_api.py
"""The JSON API below ``/api/v1``: topics, records, groups, leases, dead letters, the archive,
the clocks, connections, accounts, sessions.

docs/admin-api.rst is the contract; ``/api/v1/openapi.json`` describes it to programs.
"""

from __future__ import annotations

from twisted.web import http

from brokerd.admin.calls import (
    archive,
    audit,
    clock,
    configuration,
    connections,
    effective_access,
    groups,
    history,
    leases,
    quotas,
    records,
    schemas,
    security,
    sessions,
    streams,
    topics,
    transactions,
)
from brokerd.admin.http.authentication import Authenticator
from brokerd.admin.http.resources import JSONResource
from brokerd.admin.http.routing import Api
from brokerd.admin.openapi import describe
from brokerd.broker import Broker

ROUTES = [
    *topics.ROUTES,
    *records.ROUTES,
    *groups.ROUTES,
    *history.ROUTES,
    *leases.ROUTES,
    *archive.ROUTES,
    *clock.ROUTES,
    *configuration.ROUTES,
    *connections.ROUTES,
    *security.ROUTES,
    *sessions.ROUTES,
    *effective_access.ROUTES,
    *quotas.ROUTES,
    *schemas.ROUTES,
    *audit.ROUTES,
    *transactions.ROUTES,
    *streams.ROUTES,
]
OPENAPI = describe(ROUTES)


def make_api(broker: Broker, authenticator: Authenticator) -> Api:
    """Make the resource for ``/api/v1``."""
    api = Api(broker, ROUTES, authenticator)
    api.putChild(b"openapi.json", JSONResource(lambda request: (http.OK, OPENAPI)))
    return api
