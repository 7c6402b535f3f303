# Tests: tests/admin/test_metrics.py
"""Metrics for Prometheus, computed from one status at scrape time. docs/monitoring.rst lists them.

There is no process-global registry. Each scrape builds its own registry around a frozen status,
which another thread can format without a lock.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from brokerd.broker.delayed.schedule import LATENESS_SECONDS
from brokerd.histogram import BOUNDS_SECONDS

GROUP_LABELS = ("topic", "group", "partition")


class Definition(NamedTuple):
    """One metric: its key in the status, name, type and help text."""

    path: str
    """Dotted keys of the status."""
    name: str
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily]
    meaning: str
    label: str = ""
    """If given, the value is a map, and its keys are the values of this label."""


class HistogramDefinition(NamedTuple):
    """One histogram of durations: its key in the status, name and help text."""

    path: str
    name: str
    meaning: str


HISTOGRAMS = (
    HistogramDefinition(
        "loop_lag", "brokerd_loop_lag_seconds", "Delay of a timer of the event loop"
    ),
    HistogramDefinition(
        "wal.commit_times",
        "brokerd_wal_commit_seconds",
        "Time of a commit until its answers may leave",
    ),
    HistogramDefinition(
        "wal.write_times",
        "brokerd_wal_write_seconds",
        "Time of write and sync of a commit in the writer's thread",
    ),
)
TOPIC_METRICS = (
    ("brokerd_topic_written_records", "Records written to the journal"),
    ("brokerd_topic_written_bytes", "Bytes of batches written to the journal"),
    ("brokerd_topic_read_records", "Records fetched or leased"),
    ("brokerd_topic_read_bytes", "Bytes of records fetched or leased"),
)
"""Counters by topic, in the order of the status."""

C, G = CounterMetricFamily, GaugeMetricFamily
DEFINITIONS = (
    Definition("ready", "brokerd_ready", G, "1 while the broker serves clients, else 0"),
    Definition("uptime_seconds", "brokerd_uptime_seconds", G, "Time since the service started"),
    Definition("topics", "brokerd_topics", G, "Topics that exist"),
    Definition("connections", "brokerd_connections", G, "Open client connections", "format"),
    Definition(
        "unread_bytes",
        "brokerd_unread_bytes",
        G,
        "Bytes of answers that peers have not read, and of requests in progress",
        "format",
    ),
    Definition(
        "slow_readers",
        "brokerd_slow_readers",
        G,
        "Connections whose peers do not read their answers",
        "format",
    ),
    Definition(
        "schema_checks.waiting", "brokerd_schema_checks_waiting", G, "Schema checks that wait"
    ),
    Definition(
        "schema_checks.outcomes", "brokerd_schema_checks", C, "Ended schema checks", "outcome"
    ),
    Definition(
        "telemetry.spans", "brokerd_telemetry_spans", C, "Spans for the collector", "operation"
    ),
    Definition(
        "telemetry.dropped",
        "brokerd_telemetry_dropped",
        C,
        "Spans dropped because a limit was reached",
        "limit",
    ),
    Definition("telemetry.exported", "brokerd_telemetry_exported", C, "Spans sent"),
    Definition("telemetry.failed", "brokerd_telemetry_failed", C, "Spans that could not be sent"),
    Definition("telemetry.waiting", "brokerd_telemetry_waiting", G, "Spans that wait"),
    Definition(
        "telemetry.open_leases",
        "brokerd_telemetry_open_leases",
        G,
        "Open leases of traced records",
    ),
    Definition(
        "telemetry.unseen",
        "brokerd_telemetry_unseen",
        C,
        "Leases and settles of records that were not in memory",
    ),
    Definition(
        "telemetry.invalid",
        "brokerd_telemetry_invalid",
        C,
        "Trace contexts that could not be read",
    ),
    Definition(
        "connections_refused",
        "brokerd_connections_refused",
        C,
        "Connections closed at once for lack of a place",
        "format",
    ),
    Definition(
        "memory.budget_bytes",
        "brokerd_memory_budget_bytes",
        G,
        "Memory of peers: limits.memory, or its default",
    ),
    Definition(
        "memory.limit_bytes",
        "brokerd_memory_limit_bytes",
        G,
        "Memory that peers may claim, without transactions",
    ),
    Definition(
        "memory.kind_limit_bytes",
        "brokerd_memory_kind_limit_bytes",
        G,
        "Memory that peers may claim of one kind, while other kinds need only their shares",
        "kind",
    ),
    Definition(
        "memory.claimed_bytes", "brokerd_memory_claimed_bytes", G, "Memory that peers claim", "kind"
    ),
    Definition("memory.waiting", "brokerd_memory_waiting", G, "Connections that wait for memory"),
    Definition("memory.cut", "brokerd_memory_cut", C, "Connections closed for their claims"),
    Definition("records_produced", "brokerd_records_produced", C, "Records appended", "format"),
    Definition("bytes_produced", "brokerd_produced_bytes", C, "Bytes of values appended"),
    Definition("leases_granted", "brokerd_leases_granted", C, "Leases granted"),
    Definition("settled", "brokerd_records_settled", C, "Records settled as processed"),
    Definition("failed", "brokerd_records_failed", C, "Settles with a failure"),
    Definition("expired", "brokerd_leases_expired", C, "Leases that lapsed"),
    Definition(
        "records_removed",
        "brokerd_records_removed",
        C,
        "Offsets below moved start offsets",
        "reason",
    ),
    Definition(
        "dead_letters_removed",
        "brokerd_dead_letters_removed",
        C,
        "Dead letters removed with their records",
    ),
    Definition("retention.errors", "brokerd_retention_errors", C, "Failed steps of retention"),
    Definition(
        "retention.waiting_bytes",
        "brokerd_removable_wal_bytes",
        G,
        "Bytes of segments that the broker deletes after the next snapshots",
    ),
    Definition(
        "clock.skew_seconds",
        "brokerd_clock_skew_seconds",
        G,
        "How far broker time is ahead of the wall clock",
    ),
    Definition(
        "clock.ahead_seconds",
        "brokerd_clock_ahead_seconds",
        G,
        "How far broker time is ahead of the time by which records are removed; 0 while trusted",
    ),
    Definition("producers", "brokerd_idempotent_producers", G, "Idempotent producers in memory"),
    Definition("subscriptions", "brokerd_subscriptions", G, "Subscriptions of BlipMQ's clients"),
    Definition("streams.count", "brokerd_streams", G, "Named streams"),
    Definition(
        "streams.reports", "brokerd_stream_reports", C, "Positions that named streams reported"
    ),
    Definition(
        "streams.holds_dropped",
        "brokerd_stream_holds_dropped",
        C,
        "Holds of named streams that were dropped",
    ),
    Definition(
        "group_state_bytes",
        "brokerd_group_state_bytes",
        G,
        "Memory of the state of all groups, at most limits.group_state_bytes",
    ),
    Definition("transactions.open", "brokerd_transactions_open", G, "Open transactions"),
    Definition(
        "transactions.held_bytes",
        "brokerd_transaction_bytes",
        G,
        "Bytes that open transactions hold in memory",
    ),
    Definition(
        "transactions.committed", "brokerd_transactions_committed", C, "Transactions committed"
    ),
    Definition(
        "transactions.rolled_back",
        "brokerd_transactions_rolled_back",
        C,
        "Transactions rolled back by clients, or with their connection",
    ),
    Definition(
        "transactions.timed_out",
        "brokerd_transactions_timed_out",
        C,
        "Transactions rolled back by limits.transaction_seconds",
    ),
    Definition("audit.written", "brokerd_audit_events", C, "Events written to the audit trail"),
    Definition(
        "audit.repeated",
        "brokerd_audit_repeated",
        C,
        "Logins and denials counted, not written one by one",
    ),
    Definition(
        "audit.dropped",
        "brokerd_audit_events_dropped",
        C,
        "Audit events lost because the journal had no room",
    ),
    Definition(
        "audit.logins_failed", "brokerd_logins_failed", C, "Failed logins, including throttled ones"
    ),
    Definition(
        "audit.logins_refused",
        "brokerd_logins_refused",
        C,
        "Logins refused because too many waited to be checked",
    ),
    Definition("audit.denied", "brokerd_denials", C, "Requests refused for lack of a permission"),
    Definition("tls_refused", "brokerd_tls_refused", C, "Failed TLS handshakes", "listener"),
    Definition(
        "certificates_refused",
        "brokerd_certificates_refused",
        C,
        "Valid certificates of clients without an enabled account",
    ),
    Definition(
        "formats.blipmq.publishes_dropped",
        "brokerd_blipmq_publishes_dropped",
        C,
        "QoS 0 messages dropped for lack of room",
    ),
    Definition(
        "formats.blipmq.deliveries_skipped",
        "brokerd_blipmq_skipped",
        C,
        "QoS 0 messages too large for a delivery",
    ),
    Definition(
        "formats.blipmq.nacks_dropped",
        "brokerd_blipmq_nacks_dropped",
        C,
        "NACKs dropped because a client does not read",
    ),
    Definition("long_polls", "brokerd_long_polls", G, "Acquires that wait for a record"),
    Definition("schedule.scheduled", "brokerd_schedule_added", C, "Delayed messages accepted"),
    Definition("schedule.fired", "brokerd_schedule_fired", C, "Delayed messages produced"),
    Definition("schedule.cancelled", "brokerd_schedule_cancelled", C, "Delayed messages cancelled"),
    Definition(
        "schedule.expired",
        "brokerd_schedule_expired",
        C,
        "Delayed messages expired before they were due",
    ),
    Definition("schedule.lost", "brokerd_schedule_lost", C, "Delayed messages given up"),
    Definition(
        "uncommitted_bytes",
        "brokerd_uncommitted_bytes",
        G,
        "Bytes that wait for the disk",
    ),
    Definition(
        "tail_cache_bytes", "brokerd_tail_cache_bytes", G, "Bytes of newest records in memory"
    ),
    Definition(
        "read_cache_bytes", "brokerd_read_cache_bytes", G, "Bytes of older records in memory"
    ),
    Definition("reads_from_disk", "brokerd_disk_reads", C, "Reads from disk"),
    Definition("snapshots_written", "brokerd_snapshots_written", C, "Snapshots written"),
    Definition(
        "snapshot_lsn", "brokerd_snapshot_lsn", G, "Journal position of the newest snapshot"
    ),
    Definition("wal.commits", "brokerd_wal_commits", C, "Durable commits"),
    Definition("wal.frames", "brokerd_wal_frames", C, "Frames of durable commits"),
    Definition("wal.durable_lsn", "brokerd_wal_durable_lsn", G, "Durable journal position"),
    Definition("wal.segments", "brokerd_wal_segments", G, "Segments of the journal"),
    Definition(
        "wal.disk_free_bytes",
        "brokerd_disk_free_bytes",
        G,
        "Free bytes of the disk with the journal, some seconds ago",
    ),
    Definition(
        "wal.commit_seconds",
        "brokerd_commit_under_way_seconds",
        G,
        "Time for which the commit under way has waited for the disk; 0 without one",
    ),
    Definition("wal.segments_deleted", "brokerd_segments_deleted", C, "Segments deleted"),
    Definition("wal.bytes", "brokerd_wal_bytes", G, "Bytes of the journal on disk"),
    Definition(
        "wal.room_bytes", "brokerd_wal_room_bytes", G, "Bytes allocated and not yet written"
    ),
    Definition(
        "wal.starved", "brokerd_wal_starved", G, "1 while the disk has no room for another segment"
    ),
    Definition(
        "archive.usable",
        "brokerd_archive_usable",
        G,
        "1 while the broker can use the archive, else 0",
    ),
    Definition("archive.version", "brokerd_archive_version", G, "Version of the archive in use"),
    Definition(
        "archive.files", "brokerd_archive_files", G, "Files of the archive's table of records"
    ),
    Definition(
        "archive.bytes", "brokerd_archive_bytes", G, "Bytes of the archive's table of records"
    ),
    Definition(
        "archive.records_lsn",
        "brokerd_archive_records_lsn",
        G,
        "Journal position below which the archive has all records",
    ),
    Definition(
        "archive.events_lsn",
        "brokerd_archive_events_lsn",
        G,
        "Journal position below which the archive has all group events",
    ),
    Definition(
        "archive.behind_bytes",
        "brokerd_archive_lag_bytes",
        G,
        "Bytes of the journal that the archive lacks",
    ),
    Definition(
        "archive.behind_segments",
        "brokerd_archive_lag_segments",
        G,
        "Segments that the archive lacks, or has in part",
    ),
    Definition(
        "archive.waiting_bytes",
        "brokerd_archive_waiting_bytes",
        G,
        "Bytes of sealed segments that the broker keeps, by reason",
        "waits_for",
    ),
    Definition(
        "archive.deleted_segments",
        "brokerd_archive_segments_deleted",
        C,
        "Segments deleted because the archive has them",
    ),
    Definition(
        "archive.deleted_bytes",
        "brokerd_archive_deleted_bytes",
        C,
        "Bytes of segments deleted because the archive has them",
    ),
    Definition(
        "archive.refreshes",
        "brokerd_archive_refreshes",
        C,
        "Checks for a newer version of the archive",
    ),
    Definition(
        "archive.failed_refreshes",
        "brokerd_archive_refresh_failures",
        C,
        "Failed checks for a newer version of the archive",
    ),
    Definition("archive.reads", "brokerd_archive_reads", C, "Reads from the archive"),
    Definition(
        "archive.failed_reads",
        "brokerd_archive_failed_reads",
        C,
        "Failed reads from the archive, to be tried again",
    ),
    Definition(
        "archive.read_bytes",
        "brokerd_archive_read_bytes",
        C,
        "Bytes of records read from the archive, as they are in memory",
    ),
    Definition(
        "archive.read_seconds",
        "brokerd_archive_read_seconds",
        C,
        "Time of reads from the archive, from request to answer",
    ),
    Definition("archive.bounds.written", "brokerd_bounds_written", C, "Writes of state/bounds"),
    Definition(
        "archive.bounds.lsn", "brokerd_bounds_lsn", G, "Journal position of the last state/bounds"
    ),
    Definition("recovery.seconds", "brokerd_recovery_seconds", G, "Duration of the replay"),
    Definition("recovery.frames", "brokerd_recovery_frames", G, "Frames replayed"),
    Definition(
        "recovery.damages", "brokerd_recovery_damages", G, "Damaged places found by the replay"
    ),
    Definition(
        "damage.ranges",
        "brokerd_damaged_ranges",
        G,
        "Ranges of offsets known to be unreadable",
    ),
    Definition("damage.records", "brokerd_damaged_records", G, "Offsets in the unreadable ranges"),
    Definition(
        "damage.reads",
        "brokerd_damaged_reads",
        C,
        "Reads of a record from disk that found damage, one for each record of a damaged batch",
    ),
    Definition(
        "damage.failed_reads",
        "brokerd_failed_reads",
        C,
        "Failed reads from disk, to be tried again",
    ),
    Definition(
        "damage.recorded_places",
        "brokerd_recorded_damages",
        G,
        "Damaged places that a repair recorded",
    ),
    Definition(
        "damage.recorded_records",
        "brokerd_recorded_lost_records",
        G,
        "Offsets lost in the recorded places",
    ),
    Definition(
        "damage.indexes",
        "brokerd_damaged_indexes",
        C,
        "Indexes rebuilt from their segments",
    ),
    Definition(
        "damage.snapshots",
        "brokerd_damaged_snapshots",
        C,
        "Damaged snapshots that the start ignored",
    ),
)

GROUP_DEFINITIONS = (
    Definition("lag", "brokerd_group_lag_records", G, "Records not yet settled"),
    Definition("leased", "brokerd_group_leased_records", G, "Records under a live lease"),
    Definition("delayed", "brokerd_group_delayed_records", G, "Records that wait for a back-off"),
    Definition("dead", "brokerd_group_dead_letters", G, "Dead letters"),
    Definition("paused", "brokerd_group_paused", G, "1 while the group is paused, else 0"),
    Definition(
        "oldest_age_seconds",
        "brokerd_group_oldest_unsettled_seconds",
        G,
        "Age of the oldest record not yet settled",
    ),
)

STREAM_DEFINITIONS = (
    Definition(
        "lag_records", "brokerd_stream_lag_records", G, "Records that a named stream has not read"
    ),
    Definition(
        "lag_bytes",
        "brokerd_stream_lag_bytes",
        G,
        "Bytes of the journal behind a named stream's position; 0 if it has read all records",
    ),
    Definition(
        "silent_seconds",
        "brokerd_stream_silent_seconds",
        G,
        "Time since the last report of a named stream",
    ),
    Definition(
        "holds", "brokerd_stream_holds", G, "1 while retention waits for a named stream, else 0"
    ),
)

QUOTA_LABELS = ("kind", "name")
QUOTA_SERIES_MAX = 100
"""Most quotas with series of their own; the others are summed up."""
QUOTA_DEFINITIONS = (
    Definition("requests", "brokerd_quota_requests", C, "Produces and reads counted by a quota"),
    Definition("bytes_in", "brokerd_quota_bytes_in", C, "Bytes of produces counted by a quota"),
    Definition("bytes_out", "brokerd_quota_bytes_out", C, "Bytes of answers counted by a quota"),
    Definition("waits", "brokerd_quota_waits", C, "Requests that waited for a quota"),
    Definition("waiting", "brokerd_quota_waiting", G, "Requests that wait for a quota now"),
    Definition("refused", "brokerd_quota_refused", C, "Connections refused by a quota"),
    Definition("connections", "brokerd_quota_connections", G, "Open connections of a quota"),
)


class StatusCollector:
    """Makes metric families from a status; skips keys that the status lacks."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of the status."""
        for definition in DEFINITIONS:
            value = _at(self._status, definition.path)
            if value is not None:
                yield _family(definition, value)
        if "version" in self._status:
            yield _build_info(self._status["version"], self._status["compiled"])
        for histogram in HISTOGRAMS:
            value = _at(self._status, histogram.path)
            if value is not None:
                yield _histogram(histogram, value)
        if "request_times" in self._status:
            yield _request_times(self._status["request_times"])
        if "refusals" in self._status:
            yield _refusals(self._status["refusals"])
        if "traffic" in self._status:
            yield from _topics(self._status["traffic"])
        if "conditions" in self._status:
            yield _conditions(self._status["conditions"])
        if "schedule" in self._status:
            yield _lateness(self._status["schedule"])
        yield from self._quota_families(self._status.get("quotas", ()))
        yield from _streams(_at(self._status, "streams.lags") or ())
        groups = self._status.get("groups")
        if groups is not None:
            yield from self._group_families(groups)

    def _quota_families(self, quotas: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
        shown, others = quotas[:QUOTA_SERIES_MAX], quotas[QUOTA_SERIES_MAX:]
        for definition in QUOTA_DEFINITIONS if quotas else ():
            family = definition.kind(definition.name, definition.meaning, labels=QUOTA_LABELS)
            for quota in shown:
                family.add_metric([quota["kind"], quota["name"]], quota[definition.path])
            if others:
                total = sum(quota[definition.path] for quota in others)
                family.add_metric(["others", ""], total)
            yield family

    def _group_families(self, groups: list[Mapping[str, Any]]) -> Iterator[Metric]:
        for definition in GROUP_DEFINITIONS:
            family = definition.kind(definition.name, definition.meaning, labels=GROUP_LABELS)
            for group in groups:
                value = group.get(definition.path)
                if value is not None:
                    family.add_metric([str(group[label]) for label in GROUP_LABELS], value)
            yield family
        yield GaugeMetricFamily(
            "brokerd_group_series_omitted",
            "Partitions of groups that the scrape leaves out",
            value=self._status.get("groups_omitted", 0),
        )


def make_registry(status: Mapping[str, Any]) -> CollectorRegistry:
    """Make the registry of one scrape: the status, and the figures of the process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(status))
    ProcessCollector(registry=registry)
    return registry


def _at(status: Mapping[str, Any], path: str) -> Any:
    value: Any = status
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


def _build_info(version: str, compiled: bool) -> Metric:
    family = GaugeMetricFamily(
        "brokerd_build_info",
        "1, labelled with versions, and whether mypyc compiled the core",
        labels=["version", "python", "compiled"],
    )
    family.add_metric([version, platform.python_version(), str(compiled).lower()], 1)
    return family


def _histogram(definition: HistogramDefinition, status: Mapping[str, Any]) -> Metric:
    return HistogramMetricFamily(
        definition.name,
        definition.meaning,
        buckets=_buckets(status),
        sum_value=status["sum"],
    )


def _buckets(status: Mapping[str, Any]) -> list[tuple[str, float]]:
    bounds = [*map(str, BOUNDS_SECONDS), "+Inf"]
    return list(zip(bounds, accumulate(status["counts"]), strict=True))


def _request_times(times: Mapping[str, Mapping[str, Any]]) -> Metric:
    """One histogram for each format and operation."""
    family = HistogramMetricFamily(
        "brokerd_request_seconds",
        "Time from the read of a request to its answer, of a sample",
        labels=["format", "operation"],
    )
    for wire_format, operations in times.items():
        for operation, status in operations.items():
            family.add_metric([wire_format, operation], _buckets(status), status["sum"])
    return family


def _refusals(refusals: list[Mapping[str, Any]]) -> Metric:
    family = CounterMetricFamily(
        "brokerd_refusals", "Refused requests", labels=["format", "reason"]
    )
    for one in refusals:
        family.add_metric([one["format"], one["reason"]], one["count"])
    return family


def _topics(traffic: Mapping[str, list[int]]) -> Iterator[Metric]:
    """Yield the counters by topic."""
    for at, (name, meaning) in enumerate(TOPIC_METRICS):
        family = CounterMetricFamily(name, meaning, labels=["topic"])
        for topic, counts in traffic.items():
            family.add_metric([topic], counts[at])
        yield family


def _streams(lags: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield the gauges by stream; limits.streams bounds their number."""
    for definition in STREAM_DEFINITIONS if lags else ():
        family = definition.kind(definition.name, definition.meaning, labels=["stream"])
        for lag in lags:
            family.add_metric([lag["name"]], lag[definition.path])
        yield family


def _conditions(reasons: Mapping[str, str]) -> Metric:
    """One gauge for each condition, also for those that do not stand."""
    family = GaugeMetricFamily(
        "brokerd_condition", "1 while the condition stands, else 0", labels=["condition"]
    )
    for name, reason in reasons.items():
        family.add_metric([name], int(bool(reason)))
    return family


def _lateness(status: Mapping[str, Any]) -> Metric:
    """The histogram of the schedule, from counts by bucket."""
    counts = list(accumulate(status["lateness"]))
    bounds = [*map(str, LATENESS_SECONDS), "+Inf"]
    return HistogramMetricFamily(
        "brokerd_schedule_lateness_seconds",
        "Delay of delayed messages beyond their due time",
        buckets=list(zip(bounds, counts, strict=True)),
        sum_value=status["lateness_seconds"],
    )


def _family(definition: Definition, value: Any) -> Metric:
    if not definition.label:
        return definition.kind(definition.name, definition.meaning, value=value)
    family = definition.kind(definition.name, definition.meaning, labels=[definition.label])
    for label, number in value.items():
        family.add_metric([str(label)], number)
    return family
