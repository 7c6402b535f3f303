# Tests: tests/protocols/test_rustlog_metrics.py
"""The answer to MetricsFetch: metric names of the reference server, with brokerd's numbers.

Prometheus text format 0.0.4: a HELP and a TYPE line before each metric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

CommitLag = Callable[[str, int, str], int | None]
"""(topic, partition, group) -> number of records after the group's commit; None without one."""

_COUNTERS = (
    ("messages_produced_total", "Records produced through all wire formats"),
    ("messages_fetched_total", "Records fetched through RustLog"),
    ("bytes_in_total", "Bytes of values produced through all wire formats"),
    ("bytes_out_total", "Bytes of values fetched through RustLog"),
    ("throttled_consumers_total", "Always 0: consumers are held back by not being read"),
    ("slow_consumers_total", "Always 0"),
    ("segments_deleted_total", "Always 0: see the admin site"),
    ("bytes_reclaimed_total", "Always 0: see the admin site"),
    ("compaction_runs_total", "Always 0: there is no compaction"),
    ("compaction_skipped_segments_total", "Always 0: there is no compaction"),
    ("retention_noop_runs_total", "Always 0: see the admin site"),
    ("checkpoint_corruption_total", "Always 0: see the admin site"),
    ("compaction_segments_rewritten_total", "Always 0: there is no compaction"),
    ("compaction_records_dropped_total", "Always 0: there is no compaction"),
    ("compaction_bytes_rewritten_total", "Always 0: there is no compaction"),
)
_GAUGES = (
    ("active_connections", "Connections of this listener"),
    *(
        (f"{what}_latency_ns_{quantile}", "Always 0: not measured")
        for what in ("fetch", "produce")
        for quantile in ("p50", "p95", "p99")
    ),
)
_LAG_HELP = "Records behind the commit, or not settled where nothing is committed"


def metrics_text(
    status: Mapping[str, Any],
    fetched_records: int,
    fetched_bytes: int,
    connections: int,
    commit_lag: CommitLag,
) -> str:
    """Return all metrics as text. ``status`` is the result of `Broker.status`."""
    known = {
        "messages_produced_total": sum(status["records_produced"].values()),
        "messages_fetched_total": fetched_records,
        "bytes_in_total": status["bytes_produced"],
        "bytes_out_total": fetched_bytes,
        "active_connections": connections,
    }
    lines = []
    for kind, metrics in (("counter", _COUNTERS), ("gauge", _GAUGES)):
        for name, about in metrics:
            lines += [*_head(name, kind, about), f"{name} {known.get(name, 0)}"]
    lines += _head("consumer_lag", "gauge", _LAG_HELP)
    for row in status["groups"]:
        topic, partition, group = row["topic"], row["partition"], row["group"]
        committed_lag = commit_lag(topic, partition, group)
        lag = row["lag"] if committed_lag is None else committed_lag
        labels = f'topic="{_quoted(topic)}",partition="{partition}",group="{_quoted(group)}"'
        lines.append(f"consumer_lag{{{labels}}} {lag}")
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _quoted(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
