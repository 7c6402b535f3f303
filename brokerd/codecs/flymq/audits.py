# Tests: tests/codecs/test_flymq_audits.py
"""Encodes and decodes AUDIT_QUERY and AUDIT_EXPORT with both opcodes, requests and answers.

The Go client has 0x80 and 0x81; the Python and Java SDKs have 0xA0 and 0xA1, which count some lists
in two bytes and do not frame events (page, AUDIT_QUERY).
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from brokerd.codecs.flymq.audit_values import (
    AuditAnswer,
    AuditEvent,
    AuditEvents,
    AuditRequest,
    ExportAudit,
    Exported,
    QueryAudit,
)
from brokerd.codecs.flymq.fields import Fields, pack_data, pack_text
from brokerd.codecs.flymq.frames import frame
from brokerd.codecs.flymq.values import Opcode

_DETAIL_BYTES = 4
_JAVA_EVENT_BYTES = 26

_U16 = Struct(">H")
_U32 = Struct(">I")
_I32 = Struct(">i")
_I64 = Struct(">q")
_TIMES = Struct(">qq")
_PAGE = Struct(">ii")
_TOTAL_MORE = Struct(">i?")
_TOTAL_MORE_COUNT = Struct(">I?I")


# -- requests, read ---------------------------------------------------------------------------


def _query(fields: Fields) -> QueryAudit:
    chosen = _choice(fields, java=False)
    return chosen._replace(limit=fields.i32("limit"), offset=fields.i32("offset"))


def _java_query(fields: Fields) -> QueryAudit:
    chosen = _choice(fields, java=True)
    return chosen._replace(limit=fields.i32("limit"), offset=fields.i32("offset"))


def _choice(fields: Fields, java: bool) -> QueryAudit:
    """Read the fields of a query up to limit and offset."""
    start, end = fields.i64("start"), fields.i64("end")
    count = fields.count16("types", 2) if java else fields.count("types", 2)
    return QueryAudit(
        start,
        end,
        tuple([fields.text("type") for _ in range(count)]),
        fields.text("user"),
        fields.text("resource"),
        fields.text("result"),
        fields.text("search"),
        java=java,
    )


def _export(fields: Fields) -> ExportAudit:
    query = _query(Fields(fields.data("query")))
    return ExportAudit(query, fields.text("format"))


def _java_export(fields: Fields) -> ExportAudit:
    file_format = fields.text("format")
    return ExportAudit(_choice(fields, java=True), file_format)


DECODERS: dict[int, Callable[[Fields], AuditRequest]] = {
    Opcode.AUDIT_QUERY: _query,
    Opcode.AUDIT_EXPORT: _export,
    Opcode.AUDIT_QUERY_JAVA: _java_query,
    Opcode.AUDIT_EXPORT_JAVA: _java_export,
}


# -- requests, written ------------------------------------------------------------------------


def opcode_of(request: AuditRequest) -> Opcode:
    """Return the opcode of a request."""
    if isinstance(request, QueryAudit):
        return Opcode.AUDIT_QUERY_JAVA if request.java else Opcode.AUDIT_QUERY
    return Opcode.AUDIT_EXPORT_JAVA if request.query.java else Opcode.AUDIT_EXPORT


def query_payload(request: QueryAudit) -> bytes:
    """Return the payload of 80 or A0."""
    return _choice_payload(request) + _PAGE.pack(request.limit, request.offset)


def export_payload(request: ExportAudit) -> bytes:
    """Return the payload of 81 or A1, which has no limit and no offset."""
    if request.query.java:
        return pack_text(request.format) + _choice_payload(request.query)
    return pack_data(query_payload(request.query)) + pack_text(request.format)


def _choice_payload(request: QueryAudit) -> bytes:
    count = (_U16 if request.java else _U32).pack(len(request.types))
    texts = (request.user, request.resource, request.result, request.search)
    times = _TIMES.pack(request.start_seconds, request.end_seconds)
    return times + count + b"".join(map(pack_text, (*request.types, *texts)))


# -- answers, written -------------------------------------------------------------------------


def audit_events(found: AuditEvents, java: bool) -> bytes:
    """The answer to AUDIT_QUERY, in the layout of the request."""
    if java:
        head = _TOTAL_MORE_COUNT.pack(found.total, found.more, len(found.events))
        return frame(Opcode.AUDIT_QUERY_JAVA, head + b"".join(map(_java_event, found.events)))
    framed = [pack_data(_event(event)) for event in found.events]
    payload = _U32.pack(len(framed)) + b"".join(framed) + _TOTAL_MORE.pack(found.total, found.more)
    return frame(Opcode.AUDIT_QUERY, payload)


def exported(request: ExportAudit, data: bytes) -> bytes:
    """The answer to AUDIT_EXPORT, in the layout of the request."""
    if request.query.java:
        return frame(Opcode.AUDIT_EXPORT_JAVA, data)
    head = pack_text(request.format) + _U32.pack(len(data))  # the data may be large: one copy less
    return frame(Opcode.AUDIT_EXPORT, head + data)


def _event(event: AuditEvent) -> bytes:
    details = _U32.pack(len(event.details)) + _pairs(event)
    return _event_head(event) + pack_text(event.node_id) + details


def _java_event(event: AuditEvent) -> bytes:
    details = _U16.pack(len(event.details)) + _pairs(event)
    return _event_head(event) + details + pack_text(event.node_id)


def _event_head(event: AuditEvent) -> bytes:
    texts = (event.type, event.user, event.client_ip, event.resource, event.action, event.result)
    return pack_text(event.id) + _I64.pack(event.time_ms) + b"".join(map(pack_text, texts))


def _pairs(event: AuditEvent) -> bytes:
    return b"".join([pack_text(key) + pack_text(value) for key, value in event.details])


# -- answers, read ----------------------------------------------------------------------------


def _events_of(fields: Fields) -> AuditEvents:
    count = fields.count("events", 4)
    events = tuple([_event_of(Fields(fields.data("event"))) for _ in range(count)])
    return AuditEvents(events, fields.i32("total"), fields.flag("more"))


def _java_events_of(fields: Fields) -> AuditEvents:
    total, more = fields.u32("total"), fields.flag("more")
    count = fields.count("events", _JAVA_EVENT_BYTES)
    return AuditEvents(tuple([_java_event_of(fields) for _ in range(count)]), total, more)


def _event_of(fields: Fields) -> AuditEvent:
    head = _event_head_of(fields)
    node_id = fields.text("node")
    return head._replace(
        node_id=node_id, details=_details_of(fields, fields.count("details", _DETAIL_BYTES))
    )


def _java_event_of(fields: Fields) -> AuditEvent:
    head = _event_head_of(fields)
    details = _details_of(fields, fields.count16("details", _DETAIL_BYTES))
    return head._replace(node_id=fields.text("node"), details=details)


def _event_head_of(fields: Fields) -> AuditEvent:
    return AuditEvent(
        fields.text("id"),
        fields.i64("time"),
        fields.text("type"),
        fields.text("user"),
        fields.text("client address"),
        fields.text("resource"),
        fields.text("action"),
        fields.text("result"),
        "",
    )


def _details_of(fields: Fields, count: int) -> tuple[tuple[str, str], ...]:
    return tuple([(fields.text("detail"), fields.text("detail")) for _ in range(count)])


def _exported_of(fields: Fields) -> Exported:
    file_format = fields.text("format")
    return Exported(fields.data("data"), file_format)


ANSWERS: dict[int, Callable[[Fields], AuditAnswer]] = {
    Opcode.AUDIT_QUERY: _events_of,
    Opcode.AUDIT_EXPORT: _exported_of,
    Opcode.AUDIT_QUERY_JAVA: _java_events_of,
    Opcode.AUDIT_EXPORT_JAVA: lambda fields: Exported(fields.rest()),
}
