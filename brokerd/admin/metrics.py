# Tests: tests/admin/test_metrics.py
"""Metrics for Prometheus, computed from one status at scrape time. docs/monitoring.rst lists them.

There is no process-global registry. Each scrape builds its own registry around a frozen status,
which another thread can format without a lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


C, G = CounterMetricFamily, GaugeMetricFamily
DEFINITIONS = (
    Definition("ready", "brokerd_ready", G, "1 while clients are served, else 0"),
    Definition("uptime_seconds", "brokerd_uptime_seconds", G, "Time since the service started"),
    Definition("topics", "brokerd_topics", G, "Topics that exist"),
    Definition("connections", "brokerd_connections", G, "Open client connections", "format"),
    Definition(
        "connections_refused",
        "brokerd_connections_refused",
        C,
        "Connections closed at once because limits.connections was reached",
        "format",
    ),
    Definition("records_produced", "brokerd_records_produced", C, "Records appended", "format"),
    Definition("bytes_produced", "brokerd_produced_bytes", C, "Bytes of values appended"),
    Definition("leases_granted", "brokerd_leases_granted", C, "Leases handed out"),
    Definition("settled", "brokerd_records_settled", C, "Records settled as processed"),
    Definition("failed", "brokerd_records_failed", C, "Settles that said failed"),
    Definition("expired", "brokerd_leases_expired", C, "Leases that lapsed"),
    Definition(
        "records_removed",
        "brokerd_records_removed",
        C,
        "Offsets that start offsets moved past",
        "reason",
    ),
    Definition(
        "dead_letters_removed",
        "brokerd_dead_letters_removed",
        C,
        "Dead letters that went with their records",
    ),
    Definition("retention.errors", "brokerd_retention_errors", C, "Steps of retention that failed"),
    Definition(
        "retention.waiting_bytes",
        "brokerd_removable_wal_bytes",
        G,
        "Bytes of journal files that can go once two snapshots hold what else they say",
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
        "How far it is ahead of the time by which records are removed; 0 while it is trusted",
    ),
    Definition("producers", "brokerd_idempotent_producers", G, "Idempotent producers in memory"),
    Definition("subscriptions", "brokerd_subscriptions", G, "Subscriptions of BlipMQ's clients"),
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
        "Transactions rolled back by their clients, or because they went",
    ),
    Definition(
        "transactions.timed_out",
        "brokerd_transactions_timed_out",
        C,
        "Transactions rolled back because they were open for too long",
    ),
    Definition("audit.written", "brokerd_audit_events", C, "Events written to the audit trail"),
    Definition(
        "audit.repeated",
        "brokerd_audit_repeated",
        C,
        "Logins and denials that were counted and not written one by one",
    ),
    Definition(
        "audit.dropped",
        "brokerd_audit_events_dropped",
        C,
        "Events that are lost because the journal had no room",
    ),
    Definition(
        "audit.logins_failed", "brokerd_logins_failed", C, "Logins that failed, throttled ones too"
    ),
    Definition("audit.denied", "brokerd_denials", C, "Requests that somebody was not permitted"),
    Definition(
        "tls_refused", "brokerd_tls_refused", C, "Handshakes of TLS that failed", "listener"
    ),
    Definition(
        "certificates_refused",
        "brokerd_certificates_refused",
        C,
        "Valid certificates of clients that let nobody in",
    ),
    Definition(
        "formats.blipmq.publishes_dropped",
        "brokerd_blipmq_publishes_dropped",
        C,
        "Messages of QoS 0 that the broker had no room for",
    ),
    Definition(
        "formats.blipmq.deliveries_skipped",
        "brokerd_blipmq_skipped",
        C,
        "Messages of QoS 0 that are too large for a delivery",
    ),
    Definition(
        "formats.blipmq.nacks_dropped",
        "brokerd_blipmq_nacks_dropped",
        C,
        "NACKs for clients that do not read",
    ),
    Definition("long_polls", "brokerd_long_polls", G, "Acquires that wait for a record"),
    Definition("schedule.scheduled", "brokerd_schedule_added", C, "Delayed messages taken in"),
    Definition("schedule.fired", "brokerd_schedule_fired", C, "Those that were produced"),
    Definition("schedule.cancelled", "brokerd_schedule_cancelled", C, "Those that were cancelled"),
    Definition("schedule.expired", "brokerd_schedule_expired", C, "Those expired when due"),
    Definition("schedule.lost", "brokerd_schedule_lost", C, "Those that could not be produced"),
    Definition(
        "uncommitted_bytes",
        "brokerd_uncommitted_bytes",
        G,
        "Bytes that wait for the disk before their answers may leave",
    ),
    Definition("tail_cache_bytes", "brokerd_tail_cache_bytes", G, "Newest records in memory"),
    Definition("read_cache_bytes", "brokerd_read_cache_bytes", G, "Older records in memory"),
    Definition("reads_from_disk", "brokerd_disk_reads", C, "Reads that had to go to disk"),
    Definition("snapshots_written", "brokerd_snapshots_written", C, "Snapshots of the state"),
    Definition("snapshot_lsn", "brokerd_snapshot_lsn", G, "Journal position of the newest one"),
    Definition("wal.commits", "brokerd_wal_commits", C, "Commits that are durable"),
    Definition("wal.frames", "brokerd_wal_frames", C, "Frames that commits made durable"),
    Definition("wal.durable_lsn", "brokerd_wal_durable_lsn", G, "Journal position that is durable"),
    Definition("wal.segments", "brokerd_wal_segments", G, "Journal files"),
    Definition("wal.segments_deleted", "brokerd_segments_deleted", C, "Journal files deleted"),
    Definition("wal.bytes", "brokerd_wal_bytes", G, "Bytes of the journal on disk"),
    Definition("wal.room_bytes", "brokerd_wal_room_bytes", G, "Allocated and not yet written"),
    Definition("wal.starved", "brokerd_wal_starved", G, "1 while work is refused for lack of room"),
    Definition(
        "archive.usable", "brokerd_archive_usable", G, "1 while the archive can be used, else 0"
    ),
    Definition("archive.version", "brokerd_archive_version", G, "Version that is in use"),
    Definition("archive.files", "brokerd_archive_files", G, "Files of its table of records"),
    Definition("archive.bytes", "brokerd_archive_bytes", G, "Bytes of its table of records"),
    Definition(
        "archive.records_lsn",
        "brokerd_archive_records_lsn",
        G,
        "Journal position below which it has all records",
    ),
    Definition(
        "archive.events_lsn",
        "brokerd_archive_events_lsn",
        G,
        "Journal position below which it has all events of groups",
    ),
    Definition(
        "archive.behind_bytes", "brokerd_archive_lag_bytes", G, "Bytes of the journal not in it"
    ),
    Definition(
        "archive.behind_segments",
        "brokerd_archive_lag_segments",
        G,
        "Journal files not in it, or not all of them",
    ),
    Definition(
        "archive.waiting_bytes",
        "brokerd_archive_waiting_bytes",
        G,
        "Bytes of sealed journal files that stay, by what they wait for",
        "waits_for",
    ),
    Definition(
        "archive.deleted_segments",
        "brokerd_archive_segments_deleted",
        C,
        "Journal files deleted because the archive has them",
    ),
    Definition("archive.deleted_bytes", "brokerd_archive_deleted_bytes", C, "Bytes of these files"),
    Definition("archive.refreshes", "brokerd_archive_refreshes", C, "Looks for a newer version"),
    Definition(
        "archive.failed_refreshes", "brokerd_archive_refresh_failures", C, "Looks that failed"
    ),
    Definition("archive.reads", "brokerd_archive_reads", C, "Reads from the archive"),
    Definition(
        "archive.failed_reads",
        "brokerd_archive_failed_reads",
        C,
        "Reads from it that failed for now",
    ),
    Definition(
        "archive.read_bytes",
        "brokerd_archive_read_bytes",
        C,
        "Bytes of records read, as they are in memory",
    ),
    Definition(
        "archive.read_seconds",
        "brokerd_archive_read_seconds",
        C,
        "Time that reads took, waiting for their turn included",
    ),
    Definition("archive.bounds.written", "brokerd_bounds_written", C, "Times bounds were written"),
    Definition(
        "archive.bounds.lsn", "brokerd_bounds_lsn", G, "Journal position that the last tell of"
    ),
    Definition("recovery.seconds", "brokerd_recovery_seconds", G, "How long the replay took"),
    Definition("recovery.frames", "brokerd_recovery_frames", G, "Frames that were replayed"),
    Definition(
        "recovery.damages", "brokerd_recovery_damages", G, "Damaged places found by the replay"
    ),
    Definition(
        "damage.ranges",
        "brokerd_damaged_ranges",
        G,
        "Ranges of offsets that are known to be unreadable",
    ),
    Definition("damage.records", "brokerd_damaged_records", G, "Offsets in those ranges"),
    Definition(
        "damage.reads",
        "brokerd_damaged_reads",
        C,
        "Tries to read a record from disk that met damage: one for each record of a damaged batch",
    ),
    Definition(
        "damage.failed_reads", "brokerd_failed_reads", C, "Reads from disk that failed for now"
    ),
    Definition(
        "damage.recorded_places",
        "brokerd_recorded_damages",
        G,
        "Damaged places that a repair has put on record",
    ),
    Definition(
        "damage.recorded_records",
        "brokerd_recorded_lost_records",
        G,
        "Offsets that are known to be lost in them",
    ),
    Definition(
        "damage.indexes",
        "brokerd_damaged_indexes",
        C,
        "Index files that had to be made again from their segments",
    ),
    Definition(
        "damage.snapshots",
        "brokerd_damaged_snapshots",
        C,
        "Snapshots that the start passed over because they are damaged",
    ),
)

GROUP_DEFINITIONS = (
    Definition("lag", "brokerd_group_lag_records", G, "Records that are still to do"),
    Definition("leased", "brokerd_group_leased_records", G, "Records under a live lease"),
    Definition("delayed", "brokerd_group_delayed_records", G, "Records that wait for a back-off"),
    Definition("dead", "brokerd_group_dead_letters", G, "Dead letters"),
    Definition(
        "oldest_age_seconds",
        "brokerd_group_oldest_unsettled_seconds",
        G,
        "Age of the oldest record that is still to do",
    ),
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
        if "schedule" in self._status:
            yield _lateness(self._status["schedule"])
        groups = self._status.get("groups")
        if groups is not None:
            yield from self._group_families(groups)

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
            "Partitions of groups beyond those with the largest lag",
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


def _lateness(status: Mapping[str, Any]) -> Metric:
    """The histogram of the schedule, from counts by bucket."""
    counts = list(accumulate(status["lateness"]))
    bounds = [*map(str, LATENESS_SECONDS), "+Inf"]
    return HistogramMetricFamily(
        "brokerd_schedule_lateness_seconds",
        "How late delayed messages were produced",
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
