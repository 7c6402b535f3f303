"""Tables, sizes and ages that people can read."""

from __future__ import annotations

import io
import sys

import pytest

from brokerd.cli.output import age, core_text, facts, plain, size, table, time


def test_columns_are_aligned_and_numbers_stand_right() -> None:
    rows = [("orders", 5, None), ("a", 1000, "x")]
    assert table(("NAME", "LAG", "NOTE"), rows) == [
        "NAME     LAG  NOTE",
        "orders     5  -",
        "a       1000  x",
    ]
    assert table(("NAME",), [], "no topics") == ["no topics"]
    assert facts([("lag", 5), ("oldest", None)]) == ["lag     5", "oldest  -"]


def test_the_core_of_a_broker_has_the_words_of_the_console() -> None:
    assert [core_text(one) for one in (True, False)] == ["compiled", "pure Python"]
    assert core_text(None) == "unknown", "the status of a broker that does not tell"


class Terminal(io.StringIO):
    """A terminal for text in UTF-8."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stdout be a terminal of 24 columns without colours."""
    monkeypatch.setattr(sys, "stdout", Terminal())
    for name, value in (("TERM", "xterm"), ("COLUMNS", "24"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)


def test_a_terminal_gets_a_rule_and_folded_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Markup of clients is text, and a number is never folded."""
    use_terminal(monkeypatch)
    drawn = [plain_of(line) for line in table(("NAME", "LAG"), [("[red]a" * 5, 123_456), ("b", 1)])]
    assert set(drawn[1]) == {"─"}
    cells = [line.split() for line in drawn[2:]]
    assert cells[0][1] == "123456" and cells[-1] == ["b", "1"]
    assert "".join(row[0] for row in cells[:-1]) == "[red]a" * 5
    assert max(map(len, drawn)) == 24


def test_nothing_from_a_client_drives_a_drawn_table(monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch)
    assert "a\\x1b[31m" in table(("NAME",), [("a\x1b[31m",)])[2]


def plain_of(line: str) -> str:
    """Return a line without the codes for bold text."""
    return line.replace("\x1b[1m", "").replace("\x1b[0m", "")


def test_nothing_from_a_client_drives_the_terminal() -> None:
    """Escapes, tabs and line ends are shown, not obeyed."""
    assert table(("NAME",), [("a\x1b[31m\nb",)]) == ["NAME", "a\\x1b[31m\\nb"]
    assert plain("häß \u202e") == "häß \\u202e"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (64 << 20, "64.0 MiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, None),
        (0, "0s"),
        (1.25, "1.2s"),
        (59, "59s"),
        (60, "1m"),
        (123, "2m 3s"),
        (3_600, "1h"),
        (3_605, "1h"),
        (97_200, "1d 3h"),
        (604_800, "7d"),
    ],
)
def test_ages(seconds: float | None, text: str | None) -> None:
    assert age(seconds) == text


def test_times_are_utc_to_the_millisecond() -> None:
    assert time("2023-11-14T22:13:20.250500Z") == "2023-11-14 22:13:20.250Z"
    assert time("2023-11-14T22:13:20Z") == "2023-11-14 22:13:20.000Z"
    assert time(None) is None


def test_nothing_from_a_client_drives_the_names_of_facts() -> None:
    assert facts([("user a\u202eb", "read")]) == ["user a\\u202eb  read"]
