# Tests: tests/admin/test_api.py
"""The JSON API below ``/api/v1``: topics, records, groups, leases, dead letters, the archive.

docs/admin-api.rst is the contract; ``/api/v1/openapi.json`` describes it to programs.
"""

from __future__ import annotations

from twisted.web import http

from brokerd.admin import (
    archive_calls,
    audit_calls,
    effective_calls,
    group_calls,
    lease_calls,
    record_calls,
    schema_calls,
    security_calls,
    topic_calls,
)
from brokerd.admin.asker import Asker
from brokerd.admin.openapi import describe
from brokerd.admin.resources import JSONResource
from brokerd.admin.routing import Api
from brokerd.broker import Broker

ROUTES = [
    *topic_calls.ROUTES,
    *record_calls.ROUTES,
    *group_calls.ROUTES,
    *lease_calls.ROUTES,
    *archive_calls.ROUTES,
    *security_calls.ROUTES,
    *effective_calls.ROUTES,
    *schema_calls.ROUTES,
    *audit_calls.ROUTES,
]
OPENAPI = describe(ROUTES)


def make_api(broker: Broker, asker: Asker) -> Api:
    """The resource to be hung up at ``/api/v1``."""
    api = Api(broker, ROUTES, asker)
    api.putChild(b"openapi.json", JSONResource(lambda request: (http.OK, OPENAPI)))
    return api
