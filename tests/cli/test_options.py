"""Durations, sizes, times and settings as they are typed."""

from __future__ import annotations

from datetime import UTC, datetime

import click
import pytest

from brokerd.cli.options import (
    boolean,
    changes,
    duration,
    integer,
    integer_from,
    setting,
    size,
    time,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5s", 1.5), ("250ms", 0.25), ("10m", 600), ("12h", 43_200), ("2w", 1_209_600)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "1y", "1 s", "1e3", "٣", "9" * 40])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(click.BadParameter, match="like 90"):
        duration(text)


def test_sizes() -> None:
    assert [size("4096"), size("64MiB"), size("1 GiB")] == [4096, 64 << 20, 1 << 30]
    with pytest.raises(click.BadParameter, match="like 4096"):
        size("10XB")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-11-21T11:38:31Z", "2026-11-21T11:38:31+00:00"),
        ("2026-11-21T11:38:31", "2026-11-21T11:38:31+00:00"),
        ("2026-11-21", "2026-11-21T00:00:00+00:00"),
        ("2026-11-21T11:38:31.5+02:00", "2026-11-21T11:38:31.500000+02:00"),
    ],
)
def test_times_are_utc_unless_they_say_otherwise(text: str, meant: str) -> None:
    assert time(text) == meant


@pytest.mark.parametrize("text", ["90m", "-90m", "1.5h", "-5400s"])
def test_a_time_may_be_one_ago(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(
        "brokerd.cli.options.now", lambda: datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
    )
    assert time(text) == "2026-11-21T10:30:00+00:00"


def test_a_time_ago_is_one_of_the_calendar() -> None:
    with pytest.raises(click.BadParameter, match="before the year 1"):
        time("9999999999d")


def test_a_number_may_have_bounds() -> None:
    partitions = integer_from(1, 32)
    assert [partitions("1"), partitions("32")] == [1, 32]
    for text in ("0", "33"):
        with pytest.raises(click.BadParameter, match="not from 1 to 32"):
            partitions(text)


def test_other_words() -> None:
    assert (integer("0"), integer("17"), boolean("yes"), boolean("no")) == (0, 17, True, False)
    for convert, text in ((time, "noon"), (integer, "-1"), (integer, "²"), (boolean, "1")):
        with pytest.raises(click.BadParameter):
            convert(text)


def test_settings_may_be_default_or_none() -> None:
    """Null is told from what was not said."""
    ttl = setting(duration, none=0)
    given = {"ttl": ttl("default"), "retention": ttl("none"), "age": ttl("5s"), "size": None}
    assert changes(**given) == {"ttl": None, "retention": 0, "age": 5}
    with pytest.raises(click.BadParameter):
        setting(integer)("none")
