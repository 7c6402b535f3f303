# Tests: tests/codecs/test_flymq_audits.py
"""Exports of audit events as JSON or CSV, in pieces that are joined (page, AUDIT_EXPORT).

JSON is one array of objects. In CSV (RFC 4180) an apostrophe precedes a cell that a spreadsheet
would evaluate as a formula, because any client may choose the names in it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from datetime import UTC, datetime

from brokerd.codecs.flymq.audit_values import AuditEvent

CSV_COLUMNS = (
    "ID",
    "Timestamp",
    "Type",
    "User",
    "ClientIP",
    "Resource",
    "Action",
    "Result",
    "NodeID",
    "Details",
)
_FORMULA_BEGINS = ("=", "+", "-", "@", "\t", "\r")


def is_csv(file_format: str) -> bool:
    """Return whether an export's format is CSV; otherwise it is JSON."""
    return file_format == "csv"


def export_piece(events: Iterable[AuditEvent], file_format: str) -> bytes:
    """Return a piece of an export for `joined_pieces`."""
    if is_csv(file_format):
        return _csv_lines(map(_csv_row, events))
    return b",".join([_json_object(event) for event in events])


def joined_pieces(pieces: Iterable[bytes], file_format: str) -> bytes:
    """Return the export made of these pieces."""
    if is_csv(file_format):
        return _csv_lines([CSV_COLUMNS]) + b"".join(pieces)
    return b"[" + b",".join(filter(None, pieces)) + b"]"


def _json_object(event: AuditEvent) -> bytes:
    fields = {
        "id": event.id,
        "timestamp": _time_text(event.time_ms),
        "type": event.type,
        "user": event.user,
        "client_ip": event.client_ip,
        "resource": event.resource,
        "action": event.action,
        "result": event.result,
        "details": dict(event.details),
        "node_id": event.node_id,
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def _csv_row(event: AuditEvent) -> list[str]:
    details = json.dumps(dict(event.details), ensure_ascii=False)
    names = (event.type, event.user, event.client_ip, event.resource, event.action, event.result)
    texts = (*names, event.node_id, details)
    return [event.id, _time_text(event.time_ms), *map(_no_formula, texts)]


def _no_formula(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA_BEGINS) else text


def _csv_lines(rows: Iterable[Iterable[str]]) -> bytes:
    lines = io.StringIO()
    csv.writer(lines).writerows(rows)
    return lines.getvalue().encode()


def _time_text(time_ms: int) -> str:
    """Return a time as RFC 3339 in UTC, with milliseconds."""
    moment = datetime.fromtimestamp(time_ms // 1000, UTC).replace(microsecond=time_ms % 1000 * 1000)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
