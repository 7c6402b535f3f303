# Tests: tests/admin/test_quota_calls.py
"""The API's calls about quotas (docs/security.rst, Quotas)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from msgspec import UNSET, structs

from brokerd.admin.http.routing import Call, NotFound, Route
from brokerd.admin.shapes.common import Deleted, Page
from brokerd.admin.shapes.quotas import QuotaChange, QuotaLimits, QuotaList, QuotaShape, QuotaUse
from brokerd.security import ADMIN
from brokerd.security.quotas import Quota

QUOTA = "/quotas/{kind}/{name}"


def list_quotas(call: Call) -> QuotaList:
    """Return a page of quotas with their use."""
    query: Page = call.query
    page, following = query.select(call.broker.quotas.quotas(), 1)
    return QuotaList([_shape(call, one) for one in page], following)


def describe_quota(call: Call) -> QuotaShape:
    """Return a quota with its use. Raises `NotFound` or `InvalidName`."""
    return _shape(call, _existing(call))


def _existing(call: Call) -> Quota:
    kind, name = call.path["kind"], call.path["name"]
    quota = call.broker.quotas.find(kind, name)
    if quota is None:
        raise NotFound(f"there is no quota of {kind} {name!r}")
    return quota


async def set_quota(call: Call) -> QuotaShape:
    """Set a quota. Raises as `Quotas.put`."""
    limits: QuotaLimits = call.body
    quota = Quota(call.path["kind"], call.path["name"], **structs.asdict(limits))
    put = partial(call.broker.quotas.put, call.access, quota)
    return _shape(call, await call.when_admitted(put))


async def change_quota(call: Call) -> QuotaShape:
    """Change some limits of a quota. Raises `NotFound`, and as `Quotas.put`."""
    limits: QuotaChange = call.body
    changes = {name: limit for name, limit in structs.asdict(limits).items() if limit is not UNSET}

    def change() -> Quota:
        return call.broker.quotas.put(call.access, replace(_existing(call), **changes))

    return _shape(call, await call.when_admitted(change))


async def delete_quota(call: Call) -> Deleted:
    """Delete a quota. Raises `NotFound`, and as `Quotas.delete`."""

    def delete() -> str:
        quota = _existing(call)
        call.broker.quotas.delete(call.access, *quota.key)
        return quota.name

    return Deleted(await call.when_admitted(delete))


def _shape(call: Call, quota: Quota) -> QuotaShape:
    return QuotaShape(
        quota.kind,  # type: ignore[arg-type]  # check_quota has checked it
        quota.name,
        QuotaLimits(**quota.limits()),
        QuotaUse(**call.broker.quotas.meter(quota).counts()),
        call.broker.quotas.lacks_account(quota),
    )


ROUTES = [
    Route(
        "GET",
        "/quotas",
        ADMIN,
        "List quotas with their use, by kind and name",
        list_quotas,
        QuotaList,
        query=Page,
    ),
    Route("GET", QUOTA, ADMIN, "Show a quota with its use", describe_quota, QuotaShape),
    Route("PUT", QUOTA, ADMIN, "Set a quota", set_quota, QuotaShape, body=QuotaLimits),
    Route(
        "PATCH",
        QUOTA,
        ADMIN,
        "Change some limits of a quota",
        change_quota,
        QuotaShape,
        body=QuotaChange,
    ),
    Route("DELETE", QUOTA, ADMIN, "Delete a quota", delete_quota, Deleted),
]
