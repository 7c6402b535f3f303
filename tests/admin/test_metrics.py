"""What Prometheus sees, computed from one status."""

from __future__ import annotations

import platform
from typing import Any

import pytest
from prometheus_client import generate_latest

from brokerd.admin.metrics import DEFINITIONS, make_registry
from brokerd.codecs.mamamia import Acquire, Produce
from brokerd.histogram import Histogram
from tests.broker.fakearchive import FakeArchive
from tests.house import House, ask


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


def test_the_memory_of_clients_has_its_budget_and_the_limit_of_each_kind() -> None:
    memory = {
        "budget_bytes": 256,
        "limit_bytes": 192,
        "claimed_bytes": {"answers": 5, "transactions": 7},
        "kind_limit_bytes": {"answers": 100, "transactions": 64},
    }
    lines = scraped({"memory": memory})
    assert "brokerd_memory_budget_bytes 256.0" in lines
    assert "brokerd_memory_limit_bytes 192.0" in lines
    assert 'brokerd_memory_claimed_bytes{kind="transactions"} 7.0' in lines
    assert 'brokerd_memory_kind_limit_bytes{kind="transactions"} 64.0' in lines


@pytest.mark.parametrize(("compiled", "text"), [(True, "true"), (False, "false")])
def test_build_info_tells_versions_and_whether_the_core_is_compiled(
    compiled: bool, text: str
) -> None:
    """A change of rates after an upgrade may come from another wheel of the same version."""
    lines = scraped({"version": "0.1.0", "compiled": compiled})
    python = platform.python_version()
    labels = f'compiled="{text}",python="{python}",version="0.1.0"'
    assert f"brokerd_build_info{{{labels}}} 1.0" in lines


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


def test_groups_that_the_status_left_out_are_counted() -> None:
    """The status shows those with the largest lag; nobody takes them for all."""
    lines = scraped({"groups": [group(1, 12)], "groups_omitted": 5})
    assert "brokerd_group_series_omitted 5.0" in lines


def test_removed_records_are_counted_by_reason() -> None:
    """Somebody who misses records sees what took them."""
    lines = scraped({"records_removed": {"trimmed": 3}, "retention": {"waiting_bytes": 9}})
    assert 'brokerd_records_removed_total{reason="trimmed"} 3.0' in lines
    assert "brokerd_removable_wal_bytes 9.0" in lines


def test_a_clock_that_was_wrong_is_seen() -> None:
    """Also once it is right again: broker time stays ahead."""
    house = House()
    assert "brokerd_clock_skew_seconds 0.0" in scraped(house.broker.status())
    house.wall_seconds += 86_400
    lines = scraped(house.broker.status())
    assert "brokerd_clock_skew_seconds 0.0" in lines
    assert "brokerd_clock_ahead_seconds 86400.0" in lines
    house.wall_seconds -= 86_400
    lines = scraped(house.broker.status())
    assert "brokerd_clock_skew_seconds 86400.0" in lines
    assert "brokerd_clock_ahead_seconds 86400.0" in lines


def test_lateness_of_delayed_messages_is_a_histogram() -> None:
    """Each bucket counts those below its bound; the last one all."""
    house = House()
    house.broker.delayed.counters.count_lateness(0.02)
    house.broker.delayed.counters.count_lateness(1e9)
    lines = scraped(house.broker.status())
    name = "brokerd_schedule_lateness_seconds"
    assert f'{name}_bucket{{le="0.01"}} 0.0' in lines
    assert f'{name}_bucket{{le="0.05"}} 1.0' in lines
    assert f'{name}_bucket{{le="300.0"}} 1.0' in lines
    assert f'{name}_bucket{{le="+Inf"}} 2.0' in lines
    assert f"{name}_count 2.0" in lines


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


def test_damage_has_series_from_the_first_scrape_on() -> None:
    """An alert on a counter needs its zero."""
    lines = scraped(House().broker.status())
    for name in (
        "brokerd_damaged_ranges",
        "brokerd_damaged_records",
        "brokerd_damaged_reads_total",
        "brokerd_failed_reads_total",
        "brokerd_damaged_indexes_total",
        "brokerd_damaged_snapshots_total",
    ):
        assert f"{name} 0.0" in lines


def test_the_figures_of_the_archive_are_those_of_the_broker() -> None:
    """Each of them, once a version is in use: a renamed one would vanish from dashboards."""
    archive = FakeArchive()
    house = House(open_archive=archive.open)
    house.append("t", b"x")
    house.wal.seal()
    house.run()
    archive.roll_up(house)
    house.pass_time(10)
    lines = scraped(house.broker.status())
    assert "brokerd_archive_usable 1.0" in lines
    assert "brokerd_archive_files 1.0" in lines
    assert 'brokerd_archive_waiting_bytes{waits_for="snapshot"} 0.0' in lines
    names = [one.name for one in DEFINITIONS if one.path.startswith("archive.")]
    assert len(names) > 15
    assert [name for name in names if not any(line.startswith(name) for line in lines)] == []


def test_refusals_are_counted_by_format_and_reason() -> None:
    """The reason is the name of the error, so texts of clients make no series."""
    house = House()
    ask(house, Produce("a\n", b"x"), Produce("b\n", b"x"), Produce("t", b"x"))
    lines = scraped(house.broker.status())
    assert 'brokerd_refusals_total{format="mamamia",reason="RequestError"} 2.0' in lines
    assert len([line for line in lines if line.startswith("brokerd_refusals_total")]) == 1


def test_histograms_count_up_to_each_bound() -> None:
    """Prometheus wants the counts of all smaller buckets in each."""
    histogram = Histogram()
    for seconds in (0.0001, 0.3, 99):
        histogram.observe(seconds)
    lines = scraped({"loop_lag": histogram.status()})
    assert 'brokerd_loop_lag_seconds_bucket{le="0.0005"} 1.0' in lines
    assert 'brokerd_loop_lag_seconds_bucket{le="0.5"} 2.0' in lines
    assert 'brokerd_loop_lag_seconds_bucket{le="+Inf"} 3.0' in lines
    assert "brokerd_loop_lag_seconds_count 3.0" in lines


def test_schema_checks_are_counted_by_outcome() -> None:
    """Sound, unsound, and those that gave no answer."""
    lines = scraped({"schema_checks": House().broker.schemas.check_status()})
    for outcome in ("valid", "invalid", "failed", "dropped"):
        assert f'brokerd_schema_checks_total{{outcome="{outcome}"}} 0.0' in lines
    assert "brokerd_schema_checks_waiting 0.0" in lines


def test_commits_and_their_writes_are_timed() -> None:
    """By the clock of the log: a commit that waits for its thread takes longer than its write."""
    house = House()
    client = house.connect()
    client.send(Produce("t", b"x"))
    house.turn()
    house.clock.advance(0.3)
    house.run()
    assert house.wal.commit_times.sum_seconds == pytest.approx(0.3)
    assert house.wal.write_times.sum_seconds == 0
    assert sum(house.wal.commit_times.counts) == house.wal.commits


def test_a_paused_group_is_seen() -> None:
    """Its lag is no alarm then."""
    house = House()
    ask(house, Produce("t", b"x"), Acquire("t", "g", "c"))
    house.broker.groups.pause("t", "g")
    lines = scraped(house.broker.status())
    assert 'brokerd_group_paused{group="g",partition="0",topic="t"} 1.0' in lines


def test_a_peer_that_does_not_read_is_counted() -> None:
    """By its format, until it reads on."""
    house = House()
    client = house.connect()
    client.stop_reading()
    house.append("t", b"x" * 100_000)
    client.send(*(Acquire("t", f"g{number}", "c") for number in range(3)))
    house.run()
    assert (house.factory.slow_readers(), house.factory.unread_bytes() > 0) == (1, True)
    client.read_on()
    house.run()
    assert (house.factory.slow_readers(), house.factory.unread_bytes()) == (0, 0)
