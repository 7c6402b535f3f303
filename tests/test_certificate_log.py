"""What the log says of valid certificates that let nobody in, and how much of it."""

from __future__ import annotations

from twisted.logger import capturedLogs

from brokerd.server.certificate_log import CertificateLog
from brokerd.server.log_limit import PEER_LINES, WINDOW_SECONDS


def test_a_line_says_whose_certificate_it_is_and_why_and_cannot_be_forged() -> None:
    with capturedLogs() as logged:
        lines = CertificateLog(lambda: 5.0)
        lines.add("mega", "192.0.2.1", "CN=eve\n,O=" + "x" * 300, "there is no account 'eve\n'")
        lines.add("mega", "192.0.2.2", "", "nothing")
    first, second = logged
    assert (first["event_id"], first["listener"]) == ("certificate-refused", "mega")
    assert first["peer"] == "192.0.2.1"
    assert first["subject"].startswith("CN=eve\\x0a,O=xx") and len(first["subject"]) < 210
    assert first["reason"] == r"there is no account 'eve\x0a'"
    assert second["subject"] == "without a subject"


def test_a_flood_of_them_is_a_few_lines_a_minute_and_a_count() -> None:
    now = [5.0]
    with capturedLogs() as logged:
        lines = CertificateLog(lambda: now[0])
        for _ in range(10):
            lines.add("mega", "192.0.2.1", "CN=eve", "no")
        lines.add("flymq", "192.0.2.1", "CN=eve", "no")
        now[0] += WINDOW_SECONDS
        lines.add("mega", "192.0.2.1", "CN=eve", "no")
    assert len(logged) == PEER_LINES + 2
    assert lines.count == 12
