"""Tables, sizes and ages that people can read."""

from __future__ import annotations

import pytest

from brokerd.cli.output import age, facts, plain, size, table, time


def test_columns_are_aligned_and_numbers_stand_right() -> None:
    rows = [("orders", 5, None), ("a", 1000, "x")]
    assert table(("NAME", "LAG", "NOTE"), rows) == [
        "NAME     LAG  NOTE",
        "orders     5  -",
        "a       1000  x",
    ]
    assert table(("NAME",), [], "no topics") == ["no topics"]
    assert facts([("lag", 5), ("oldest", None)]) == ["lag     5", "oldest  -"]


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
