"""The text that MetricsFetch answers: every metric of the reference, with the broker's numbers."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from brokerd.protocols.rustlog.metrics import metrics_text

NAMES = [
    "messages_produced_total",
    "messages_fetched_total",
    "bytes_in_total",
    "bytes_out_total",
    "throttled_consumers_total",
    "slow_consumers_total",
    "segments_deleted_total",
    "bytes_reclaimed_total",
    "compaction_runs_total",
    "compaction_skipped_segments_total",
    "retention_noop_runs_total",
    "checkpoint_corruption_total",
    "compaction_segments_rewritten_total",
    "compaction_records_dropped_total",
    "compaction_bytes_rewritten_total",
    "active_connections",
    "fetch_latency_ns_p50",
    "fetch_latency_ns_p95",
    "fetch_latency_ns_p99",
    "produce_latency_ns_p50",
    "produce_latency_ns_p95",
    "produce_latency_ns_p99",
]
STATUS = {
    "records_produced": {"mamamia": 3, "rustlog": 4},
    "bytes_produced": 70,
    "groups": [
        {"topic": 'a"\\\n', "partition": 2, "group": "g", "lag": 9},
        {"topic": "b", "partition": 0, "group": "h", "lag": 8},
    ],
}


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def text() -> str:
    def behind(topic: str, partition: int, group: str) -> int | None:
        return 5 if (topic, partition, group) == ("b", 0, "h") else None

    return metrics_text(STATUS, 6, 60, 2, behind)


def test_every_metric_of_the_reference_is_there_with_help_and_type() -> None:
    lines = text().splitlines()
    for name in [*NAMES, "consumer_lag"]:
        kind = "counter" if name.endswith("_total") else "gauge"
        at = lines.index(f"# TYPE {name} {kind}")
        assert lines[at - 1].startswith(f"# HELP {name} ")
        assert lines[at + 1].startswith(name)


def test_what_the_broker_knows_is_told_and_the_rest_is_0() -> None:
    found = samples(text())
    known = {
        "messages_produced_total": 7,
        "messages_fetched_total": 6,
        "bytes_in_total": 70,
        "bytes_out_total": 60,
        "active_connections": 2,
    }
    assert {name: found[name, ()] for name in NAMES} == {name: known.get(name, 0) for name in NAMES}


def test_lag_is_told_by_commit_or_by_what_is_not_settled() -> None:
    """Labels may hold anything that a name may."""
    found = samples(text())
    odd = (("group", "g"), ("partition", "2"), ("topic", 'a"\\\n'))
    assert found["consumer_lag", odd] == 9
    assert found["consumer_lag", (("group", "h"), ("partition", "0"), ("topic", "b"))] == 5
