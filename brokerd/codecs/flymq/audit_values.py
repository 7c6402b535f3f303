# Tests: tests/codecs/test_flymq_audits.py
"""The audit trail: what is asked of it and what it answers, free of bytes.

Layouts: docs/protocols/flymq.rst, 0x80, 0x81, 0xA0 and 0xA1.
"""

from __future__ import annotations

from typing import NamedTuple


class QueryAudit(NamedTuple):
    """Which events, newest first; a field that is empty or 0 does not choose."""

    start_seconds: int = 0
    """Since the Unix epoch."""
    end_seconds: int = 0
    types: tuple[str, ...] = ()
    user: str = ""
    resource: str = ""
    """Part of the resource's name."""
    result: str = ""
    search: str = ""
    """Part of the action, the resource or a detail, whatever the case."""
    limit: int = 0
    offset: int = 0
    """So many of the newest that match are left out."""
    java: bool = False
    """Whether it has the layout of the Java and Python SDKs (A0, A1), not the Go client's."""


class ExportAudit(NamedTuple):
    query: QueryAudit
    format: str
    """``csv``; anything else is JSON."""


AuditRequest = QueryAudit | ExportAudit


class AuditEvent(NamedTuple):
    """One event, all of it text but the time."""

    id: str
    time_ms: int
    """Since the Unix epoch."""
    type: str
    user: str
    client_ip: str
    resource: str
    action: str
    result: str
    node_id: str
    details: tuple[tuple[str, str], ...] = ()


class AuditEvents(NamedTuple):
    """The answer to AUDIT_QUERY."""

    events: tuple[AuditEvent, ...]
    total: int
    """How many match in all, as far as was looked."""
    more: bool
    """Whether there are more behind these."""


class Exported(NamedTuple):
    """The answer to AUDIT_EXPORT."""

    data: bytes
    format: str = ""
    """Empty in the answer to A1, which does not say it."""


AuditAnswer = AuditEvents | Exported
