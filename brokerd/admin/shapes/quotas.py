# Tests: tests/admin/test_quota_calls.py
"""Requests and answers about quotas."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from brokerd.security.quotas import RATE_MAX

QuotaKind = Literal["default", "listener", "address", "account"]
Limit = Annotated[int, Meta(ge=0, le=RATE_MAX)]


class QuotaLimits(Struct, forbid_unknown_fields=True):
    """The limits of a quota; 0 or left out is no limit."""

    requests: Limit = 0
    """Produces and reads a second."""
    bytes_in: Limit = 0
    """Bytes of produces a second."""
    bytes_out: Limit = 0
    """Bytes of answers a second."""
    connections: Limit = 0


class QuotaChange(Struct, forbid_unknown_fields=True):
    """Limits to change; 0 is no limit; left out: unchanged."""

    requests: Limit | UnsetType = UNSET
    bytes_in: Limit | UnsetType = UNSET
    bytes_out: Limit | UnsetType = UNSET
    connections: Limit | UnsetType = UNSET


class QuotaUse(Struct):
    """The use of a quota since the broker started. Changes keep the counts."""

    requests: int
    bytes_in: int
    bytes_out: int
    waits: int
    """Requests that waited."""
    waiting: int
    """Requests that wait now, of one connection each."""
    connections: int
    """Open connections."""
    refused: int
    """Connections refused."""


class QuotaShape(Struct):
    """A quota with its use."""

    kind: QuotaKind
    name: str
    limits: QuotaLimits
    use: QuotaUse
    unknown_account: bool
    """Whether it is of an account that does not exist. It applies once there is one."""


class QuotaList(Struct):
    """A page of quotas, by kind and name."""

    quotas: list[QuotaShape]
    next: int | None
    """``first`` of the next page."""
