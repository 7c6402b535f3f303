"""What Prometheus sees, computed from one status."""

from __future__ import annotations

from typing import Any

from prometheus_client import generate_latest

from brokerd.admin.metrics import DEFINITIONS, MAX_GROUP_SERIES, make_registry


def scraped(status: dict[str, Any]) -> list[str]:
    return generate_latest(make_registry(status)).decode().splitlines()


def group(number: int, lag: int) -> dict[str, Any]:
    return {"topic": "t", "group": f"g{number}", "partition": 0, "lag": lag, "dead": 1}


def test_a_status_becomes_series() -> None:
    """Plain, nested and labelled figures each get their series; counters end in _total."""
    lines = scraped({"ready": 1, "wal": {"segments": 4}, "records_produced": {"mamamia": 7}})
    assert "brokerd_ready 1.0" in lines
    assert "brokerd_wal_segments 4.0" in lines
    assert 'brokerd_records_produced_total{format="mamamia"} 7.0' in lines


def test_figures_that_are_not_there_have_no_series() -> None:
    """Before the replay there is no journal to count; nothing is made up."""
    assert not any("brokerd_" in line for line in scraped({}))


def test_groups_have_lag_by_topic_group_and_partition() -> None:
    """Lag of every group can be alerted on."""
    lines = scraped({"groups": [group(1, 12)]})
    labels = '{group="g1",partition="0",topic="t"}'
    assert f"brokerd_group_lag_records{labels} 12.0" in lines
    assert f"brokerd_group_dead_letters{labels} 1.0" in lines
    assert "brokerd_group_series_omitted 0.0" in lines


def test_series_of_groups_are_bounded_and_the_rest_is_counted() -> None:
    """Ten thousand groups cost one scrape no more than a thousand; the largest lags stay."""
    groups = [group(number, lag=number) for number in range(MAX_GROUP_SERIES + 5)]
    lines = scraped({"groups": groups})
    lags = [line for line in lines if line.startswith("brokerd_group_lag_records{")]
    assert len(lags) == MAX_GROUP_SERIES
    assert not any('"g4"' in line for line in lags)
    assert "brokerd_group_series_omitted 5.0" in lines


def test_names_of_topics_cannot_break_the_format() -> None:
    """Quotes, newlines and backslashes of a name are escaped."""
    lines = scraped({"groups": [{**group(1, 1), "topic": 'a"b\nc\\'}]})
    assert any('topic="a\\"b\\nc\\\\"' in line for line in lines)


def test_the_process_is_measured_too() -> None:
    """Memory and open files come along."""
    assert any(line.startswith("process_resident_memory_bytes ") for line in scraped({}))


def test_names_follow_the_conventions() -> None:
    """All names begin with brokerd_, and counters leave the _total to the library."""
    for definition in DEFINITIONS:
        assert definition.name.startswith("brokerd_")
        assert not definition.name.endswith("_total")
