"""The progress bar."""

from __future__ import annotations

import io
import sys

import pytest

from brokerd.cli.progress import progress_bar


class Terminal(io.StringIO):
    """A terminal for text in UTF-8."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_that_disappears(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TERM", "xterm"), ("COLUMNS", "80"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar("verify [log]") as show:
        for number in range(512):
            show(2 * (number + 1), 2048)
    drawn = terminal.getvalue()
    assert "verify [log]" in drawn
    assert "1.0/2.0 KiB" in drawn
    assert drawn.endswith("\x1b[2K")  # the line is erased


def test_programs_get_none(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress_bar("verify") as show:
        show(2048, 2048)
    assert stderr.getvalue() == ""
