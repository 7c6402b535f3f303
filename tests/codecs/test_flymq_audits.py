"""The audit trail on FlyMQ's wire, as the Go client and as the Java SDK have it."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs import flymq as fm
from tests.codecs.test_flymq_answers import read
from tests.strategies.flymq import audit_events, audit_queries, exportable, texts

GO, JAVA = fm.QueryAudit(), fm.QueryAudit(java=True)
EVENT = fm.AuditEvent(
    "1", 2, "auth.failure", "bob", "10.0.0.7", "", "login", "failure", "n", (("k", "v"),)
)
PAGE = fm.AuditEvents((EVENT, EVENT), 9, True)
both = pytest.mark.parametrize("query", [GO, JAVA])


@given(st.lists(audit_events, max_size=4).map(tuple), st.integers(0, (1 << 31) - 1), st.booleans())
def test_events_come_as_they_are_in_both_layouts(events, total, more):
    found = fm.AuditEvents(events, total, more)
    for query in (GO, JAVA):
        assert read(query, fm.audit_events(found, query.java)) == found


@given(audit_queries.map(exportable), texts, st.binary(max_size=100))
def test_an_export_comes_as_it_is_and_go_is_told_its_format(query, form, data):
    request = fm.ExportAudit(query, form)
    told = "" if query.java else form
    assert read(request, fm.exported(request, data)) == fm.Exported(data, told)


@both
def test_an_answer_that_is_cut_or_too_long_is_not_believed(query):
    answer = fm.audit_events(PAGE, query.java)
    opcode, payload = answer[2], answer[8:]
    for end in range(len(payload)):
        with pytest.raises(fm.AnswerError, match="cannot be read"):
            fm.decode_answer(query, opcode, payload[:end])
    with pytest.raises(fm.AnswerError, match="1 bytes left over"):
        fm.decode_answer(query, opcode, payload + b"\0")


@both
def test_a_claimed_count_costs_no_memory(query):
    count_at = 5 if query.java else 0
    tracemalloc.start()
    try:
        for size in (0, 40):
            with pytest.raises(fm.AnswerError, match="says 4294967295 items"):
                payload = bytes(count_at) + b"\xff" * 4 + bytes(size)
                fm.decode_answer(query, fm.opcode_of(query), payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


@given(audit_queries, st.binary(max_size=120), st.booleans())
def test_any_bytes_are_an_answer_or_a_named_error(query, payload, exports):
    request = fm.ExportAudit(query, "csv") if exports else query
    try:
        fm.decode_answer(request, fm.opcode_of(request), payload)
    except fm.AnswerError as error:
        assert str(error)


@given(st.lists(st.lists(audit_events, max_size=3), max_size=4))
def test_an_export_in_pieces_is_the_export_of_all(pieces):
    """An empty piece leaves no gap, wherever it is."""
    events = [event._replace(time_ms=event.time_ms % (1 << 47)) for one in pieces for event in one]
    for form in ("csv", "json"):
        cut = iter(events)
        made = [fm.export_piece([next(cut) for _ in one], form) for one in pieces]
        whole = fm.joined_pieces(made, form)
        assert whole == fm.joined_pieces([fm.export_piece(events, form)], form)
        if form == "json":
            assert [one["id"] for one in json.loads(whole)] == [one.id for one in events]


def test_times_are_rfc_3339_in_utc():
    piece = fm.export_piece([EVENT._replace(time_ms=1_700_000_000_007)], "csv")
    assert b",2023-11-14T22:13:20.007Z," in piece


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r"])
def test_no_cell_is_a_formula(begin):
    piece = fm.export_piece([EVENT._replace(user=begin + "cmd()")], "csv")
    assert f"'{begin}cmd()".encode() in piece
