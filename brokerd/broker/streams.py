# Tests: tests/broker/test_streams.py, tests/broker/test_stream_holds.py
"""Named streams: positions that streams outside of the broker report, such as those of Spark.

A stream of Spark reads the files of journal and archive without the broker. If it has a name, it
tells the broker how far it is. The broker keeps the last report of each name in entries STREAM and
in the snapshot, and computes the lag: docs/broker.rst, section "Named streams", and
docs/wal-format.rst, section "STREAM body".

A stream may hold: no limit of retention removes a record of its topics that it has not read, and
the archive does not compact it away (`held_from`). The hold is dropped when the stream is silent
for ``hold_us``, when more than ``hold_bytes`` of the journal are behind its position, or when the
disk is full. A trim on request, and the deletion of a topic, pass over holds.

Memory: about 1,000 bytes a stream, 150 a topic of its position, and 8 a partition. At most
``streams_max`` streams, and `PARTITIONS_MAX` partitions of each.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from twisted.logger import Logger

from brokerd.archive.contract.topic_names import TopicNames
from brokerd.broker.context import Context
from brokerd.broker.group_commit import ENTRY_OVERHEAD_BYTES, Congested
from brokerd.broker.model.map_entries import Map, MapLayout, MapReplay
from brokerd.broker.model.state import Encode
from brokerd.broker.model.topics import Partition, Topic, check_name
from brokerd.broker.security.audit import AuditTrail
from brokerd.broker.slices import Pace
from brokerd.errors import Denied, InvalidName, InvalidRequest, LimitExceeded, NoSpace
from brokerd.security import ADMIN, READ, Access
from brokerd.security.audit import Actor, EventType
from brokerd.wal import SnapshotChunk
from brokerd.walformat import Entry, EntryKind

PARTITIONS_MAX: Final = 50_000
"""Partitions of one position."""

TOPIC_NAMES_MAX: Final = 1_000
"""Names and patterns of one selection."""

LAG_STEPS: Final = 200
"""Topics and partitions of a lag counted between two looks at the clock: about 0.1 ms."""

STATUS_STEPS: Final = 2_000
"""Topics and partitions that one status counts. It continues where the last one stopped."""

STEP_PATTERNS: Final = 10
"""The number of patterns of a selection that take as long as a topic: about 5 us."""

SNAPSHOT_STREAMS = 10
LAYOUT = MapLayout(EntryKind.STREAM, SNAPSHOT_STREAMS, "streams", "a stream")

SILENT, FAR_BEHIND, DISK_FULL = "silent", "bytes", "disk"
"""Reasons for which a hold is dropped."""

Offsets = Sequence[int]
"""The next offset of each partition of a topic."""


class StreamReport(NamedTuple):
    """The position of a stream, as the stream reports it."""

    name: str
    log_id: str
    """The id of the log that the stream reads."""
    lsn: int
    """The stream has read everything below."""
    topics: tuple[str, ...] | None
    """Names or patterns of the topics. None: all topics but the broker's own."""
    offsets: Mapping[int, Offsets]
    """By topic id. A topic that is not in it is not read yet."""
    holds: bool = False
    """Whether retention waits for the stream."""


class HoldLimits(NamedTuple):
    """Limits of holds; with a time of 0 no stream holds."""

    hold_us: int
    """The longest silence."""
    hold_bytes: int
    """The most bytes of the journal behind the position."""


class Lag(NamedTuple):
    """The part of the log that a stream has not read. Both numbers are upper bounds."""

    records: int
    """Records of its topics."""
    bytes: int
    """Bytes of the journal, with other topics and events; 0 without records."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A named stream and its last report. A new report makes a new object."""

    name: str
    owner: str
    """The account that reported first; empty: anonymous."""
    created_us: int
    reported_us: int
    """Broker time of the last report, as ``created_us`` of the first."""
    lsn: int
    topics: TopicNames
    offsets: Mapping[int, Offsets]
    holds: bool = False
    """Whether retention waits for the stream now."""
    hold_dropped: str = ""
    """Why the stream does not hold although it wants to; else empty."""

    def reads(self, topic: Topic) -> bool:
        """Return whether the stream reads a topic, or will read it."""
        if topic.internal_of:
            return False
        return topic.topic_id in self.offsets or self.topics.match(topic.name)

    def position(self, topic_id: int, partition: int) -> int:
        """Return the next offset to read of a partition; 0 if none was reported."""
        offsets = self.offsets.get(topic_id, ())
        return offsets[partition] if partition < len(offsets) else 0


class Streams:
    """All named streams of a broker. It calls ``holds_changed`` when bounds become invalid."""

    _log = Logger()

    def __init__(
        self,
        context: Context,
        audit: AuditTrail,
        log_id: Callable[[], str | None],
        streams_max: int,
        limits: HoldLimits,
        holds_changed: Callable[[], None],
    ) -> None:
        self._state = context.state
        self._group_commit = context.group_commit
        self._wal = context.wal
        self._time = context.time
        self._audit = audit
        self._log_id = log_id
        self.streams_max = streams_max
        self._streams: dict[str, Stream] = {}
        self._lags: dict[str, Lag] = {}
        """The last counted lags, for the status."""
        self._counting: Iterator[int] = iter(())
        self._reports = 0
        self._limits = limits
        self._holds_changed = holds_changed
        self._heard_us: dict[str, int] = {}
        """Monotonic times of the last reports since the start."""
        self._started_us = 0
        self._holds_dropped = 0
        MapReplay(context.state, LAYOUT, self._apply)
        context.state.captures.append(self._captures)

    def start(self, now_us: int) -> None:
        """Begin to serve at monotonic ``now_us``, which counts as a report of each stream."""
        self._started_us = now_us

    # -- reports ------------------------------------------------------------------------------

    def report(self, by: Access, report: StreamReport) -> Stream:
        """Keep the position of a stream, and return the stream. The first report creates it.

        Raises `InvalidName`, `InvalidRequest`, `LimitExceeded`, `NoSpace` or `Congested`; as
        `Access.require` without READ on the topics, or ADMIN for a hold; and `Denied` for a stream
        of another account.
        """
        permission = ADMIN if report.holds else READ
        _require(by, permission, report.topics)
        known = self._streams.get(report.name)
        if known is not None and known.owner != by.name and not by.permissions & ADMIN:
            raise Denied(f"the stream {report.name!r} belongs to another account; choose a name")
        names = TopicNames(report.topics)
        offsets = self._checked(report, None if by.permissions & permission else names)
        if known is None and len(self._streams) >= self.streams_max:
            raise LimitExceeded(
                f"there are {len(self._streams)} named streams already, and limits.streams is "
                f"{self.streams_max}; drop some (brokerctl streams drop), or raise it"
            )
        now_us = self._time.time_us()
        refusal = self._hold_refusal(report.lsn) if report.holds else ""
        stream = Stream(
            report.name,
            by.name if known is None else known.owner,
            now_us if known is None else known.created_us,
            now_us,
            report.lsn,
            names,
            offsets,
            report.holds and not refusal,
            refusal,
        )
        fields = _reported_map(stream)

        def change() -> None:
            self._add(fields)
            self._streams[stream.name] = stream
            self._heard_us[stream.name] = self._time.monotonic_us()

        if known is None:
            self._audit.carry_out(by.actor, EventType.STREAM_CREATED, stream.name, change)
        else:
            change()
        self._reports += 1
        if stream.holds and (known is None or not known.holds or stream.lsn < known.lsn):
            self._holds_changed()  # the published bounds may allow more
        if refusal and (known is None or not known.hold_dropped):
            self._tell_drop(stream.name, refusal)
        return stream

    def _checked(self, report: StreamReport, permitted: TopicNames | None) -> dict[int, Offsets]:
        """Return the offsets of existing topics. Raises `InvalidName` or `InvalidRequest`.

        Offsets of topics that are not in ``permitted`` are left out and not examined: an error
        about them would tell names and numbers of records. None permits all topics.
        """
        if not check_name(report.name, "stream name"):
            raise InvalidName("a stream needs a name of 1 to 255 bytes of UTF-8")
        if len(report.topics or ()) > TOPIC_NAMES_MAX:
            raise InvalidRequest(
                f"a stream selects at most {TOPIC_NAMES_MAX} names or patterns of topics, not "
                f"{len(report.topics or ())}; use patterns with *"
            )
        for name in report.topics or ():
            check_name(name, "topic name")
        log_id = self._log_id()
        if log_id is not None and report.log_id != log_id:
            raise InvalidRequest(
                f"the stream reads the log {report.log_id}, and this broker has the log {log_id}: "
                "report to the broker of the stream's log"
            )
        end = self._wal.appended_lsn
        if report.lsn > end:
            raise InvalidRequest(
                f"the stream is at LSN {report.lsn}, and this log ends at {end}: an older copy of "
                "the log was restored; begin the stream with a new checkpoint"
            )
        partitions = sum(map(len, report.offsets.values()))
        if partitions > PARTITIONS_MAX:
            raise InvalidRequest(
                f"the position has {partitions} partitions, and a named stream reads at most "
                f"{PARTITIONS_MAX}; select fewer topics"
            )
        offsets: dict[int, Offsets] = {}
        for topic_id, given in report.offsets.items():
            topic = self._state.by_id.get(topic_id)
            if topic is None:  # it was deleted since
                continue
            if permitted is not None and not permitted.match(topic.name):
                continue
            for partition, offset in zip(topic.partitions, given, strict=False):
                if offset > partition.next_offset:
                    raise InvalidRequest(
                        f"the stream is at offset {offset} of partition {partition.index} of topic "
                        f"{topic.name!r}, which ends at {partition.next_offset}: an older copy of "
                        "the log was restored; begin the stream with a new checkpoint"
                    )
            offsets[topic_id] = array("q", given[: len(topic.partitions)])
        return offsets

    def drop(self, by: Access, name: str) -> bool:
        """Forget a stream, and return whether it existed. A later report creates it anew.

        Raises `NoSpace` or `Congested`, and as `Access.require_server` without ADMIN.
        """
        by.require_server(ADMIN)
        if name not in self._streams:
            return False

        def change() -> None:
            self._add({"op": "dropped", "name": name})
            self._forget(name)

        self._audit.carry_out(by.actor, EventType.STREAM_DROPPED, name, change)
        return True

    def _add(self, fields: Map) -> None:
        """Add a map to the log. Raises `NoSpace` or `Congested`."""
        entry: Entry = LAYOUT.entry(fields)
        self._group_commit.admit_events(ENTRY_OVERHEAD_BYTES + len(entry.body))
        self._group_commit.add_entry(entry)

    def _forget(self, name: str) -> None:
        self._streams.pop(name, None)
        self._lags.pop(name, None)
        self._heard_us.pop(name, None)

    # -- holds --------------------------------------------------------------------------------

    def held_from(self, partition: Partition) -> int | None:
        """Return the lowest offset that a stream holds; None if no stream holds the partition."""
        topic = partition.topic
        return min(
            (
                stream.position(topic.topic_id, partition.index)
                for stream in self._streams.values()
                if stream.holds and stream.reads(topic)
            ),
            default=None,
        )

    def drop_holds(self) -> None:
        """Drop the holds that are over a limit. Retention calls it before each round."""
        now_us = self._time.monotonic_us()
        for stream in self.all():
            if not stream.holds:
                continue
            heard_us = self._heard_us.get(stream.name, self._started_us)
            reason = self._hold_refusal(stream.lsn)
            if not reason and now_us - heard_us > self._limits.hold_us:
                reason = SILENT
            if reason:
                try:
                    self._drop_hold(stream, reason)
                except (NoSpace, Congested):
                    return  # the log has no room for this now; the next round tries again

    def _hold_refusal(self, lsn: int) -> str:
        """Return the reason for which a stream at an LSN may not hold; empty if it may."""
        if self._wal.allocation_error is not None:
            return DISK_FULL
        if not self._limits.hold_us:
            return SILENT
        return FAR_BEHIND if self._wal.appended_lsn - lsn > self._limits.hold_bytes else ""

    def _drop_hold(self, stream: Stream, reason: str) -> None:
        """Drop a hold with an audit event. Raises `NoSpace` or `Congested`."""

        def change() -> None:
            self._add({"op": "hold_dropped", "name": stream.name, "reason": reason})
            self._streams[stream.name] = replace(stream, holds=False, hold_dropped=reason)

        details = {"reason": reason}
        self._audit.carry_out(Actor(), EventType.STREAM_HOLD_DROPPED, stream.name, change, details)
        self._holds_changed()
        self._tell_drop(stream.name, reason)

    def _tell_drop(self, name: str, reason: str) -> None:
        self._holds_dropped += 1
        texts = {
            SILENT: f"it has not reported for {self._limits.hold_us // 1_000_000} s "
            "(retention.stream_hold_seconds)",
            FAR_BEHIND: f"more than {self._limits.hold_bytes} bytes of the journal are behind its "
            "position (retention.stream_hold_bytes)",
            DISK_FULL: "the disk is full",
        }
        self._log.warn(
            "the stream {stream} does not hold retention: {reason}. Records that it has not read "
            "may be removed; it holds again with its next report within the limits",
            stream=name,
            reason=texts[reason],
            event_id="stream-hold-dropped",
        )

    # -- queries ------------------------------------------------------------------------------

    def find(self, name: str) -> Stream | None:
        """Return a stream; None if there is none of this name."""
        return self._streams.get(name)

    def all(self) -> list[Stream]:
        """Return all streams, by name."""
        return [self._streams[name] for name in sorted(self._streams)]

    def silent_us(self, stream: Stream) -> int:
        """Return the time since the last report, by broker time."""
        return max(0, self._time.time_us() - stream.reported_us)

    async def count_lag(self, stream: Stream, pace: Pace) -> Lag | None:
        """Count the lag of a stream in slices; None if the stream was dropped meanwhile."""
        for step, _ in enumerate(self._count(stream), 1):
            if step % LAG_STEPS == 0:
                await pace.rest()
        return self.known_lag(stream)

    def known_lag(self, stream: Stream) -> Lag | None:
        """Return the lag as it was last counted; None before the first count."""
        return self._lags.get(stream.name)

    def _count(self, stream: Stream) -> Iterator[int]:
        """Count the lag of a stream in steps. Yield the number of records so far."""
        records = 0
        cost = 1 + stream.topics.patterns // STEP_PATTERNS
        for topic in list(self._state.by_id.values()):
            for _ in range(cost):
                yield records
            if topic.deleted or not stream.reads(topic):
                continue
            offsets = stream.offsets.get(topic.topic_id, ())
            for partition in topic.partitions:
                yield records
                at = offsets[partition.index] if partition.index < len(offsets) else 0
                records += max(0, partition.next_offset - max(at, partition.start_offset))
        if stream.name in self._streams:
            size = max(0, self._wal.appended_lsn - stream.lsn) if records else 0
            self._lags[stream.name] = Lag(records, size)

    def _count_all(self) -> Iterator[int]:
        for stream in self.all():
            yield from self._count(self._streams.get(stream.name, stream))

    def count_lags(self) -> None:
        """Count lags, at most `STATUS_STEPS` topics and partitions of them.

        If the streams have more, further calls continue, and a lag is some calls old.
        """
        if next(self._counting, None) is None:
            self._counting = self._count_all()
        for _ in islice(self._counting, STATUS_STEPS):
            pass

    def status(self) -> dict[str, Any]:
        """Return the number of streams, and name, lag and silence of each for the metrics.

        A stream that was not counted yet is left out.
        """
        self.count_lags()
        rows = []
        for stream in self.all():
            lag = self._lags.get(stream.name)
            if lag is not None:
                rows.append(
                    {
                        "name": stream.name,
                        "lag_records": lag.records,
                        "lag_bytes": lag.bytes,
                        "silent_seconds": self.silent_us(stream) / 1e6,
                        "holds": int(stream.holds),
                    }
                )
        return {
            "count": len(self._streams),
            "reports": self._reports,
            "holds_dropped": self._holds_dropped,
            "lags": rows,
        }

    # -- what survives a restart ---------------------------------------------------------------

    def _apply(self, fields: Map) -> bool:
        """Apply a map; return False if its ``op`` is unknown."""
        if fields["op"] == "reported":
            stream = _parse_stream(fields)
            self._streams[stream.name] = stream
        elif fields["op"] == "dropped":
            self._forget(fields["name"])
        elif fields["op"] == "hold_dropped":
            known = self._streams.get(fields["name"])
            if known is not None:  # else damage took its report
                dropped = replace(known, holds=False, hold_dropped=fields["reason"])
                self._streams[known.name] = dropped
        else:
            return False
        return True

    def _captures(self, lsn: int) -> list[Encode]:
        """Return the encoders of the chunks, one for each stream. Without streams there is none."""
        return [partial(_chunk, lsn, number, one) for number, one in enumerate(self.all())]


def _require(by: Access, permission: int, topics: tuple[str, ...] | None) -> None:
    """Require a permission on each topic of a selection; by role for a pattern or all topics."""
    if topics is None or any("*" in name for name in topics):
        by.require_server(permission)
    for name in topics or ():
        if "*" not in name:
            by.require(permission, name)


def _reported_map(stream: Stream) -> Map:
    """Return the map of a report."""
    names = stream.topics.names
    return {
        "op": "reported",
        "name": stream.name,
        "owner": stream.owner,
        "created_us": stream.created_us,
        "time_us": stream.reported_us,
        "lsn": stream.lsn,
        "topics": None if names is None else list(names),
        "holds": stream.holds,
        "hold_dropped": stream.hold_dropped,
        "next": [[topic_id, list(offsets)] for topic_id, offsets in stream.offsets.items()],
    }


def _parse_stream(fields: Map) -> Stream:
    return Stream(
        fields["name"],
        fields["owner"],
        fields["created_us"],
        fields["time_us"],
        fields["lsn"],
        TopicNames(fields["topics"]),
        {topic_id: array("q", offsets) for topic_id, offsets in fields["next"]},
        fields["holds"],
        fields["hold_dropped"],
    )


def _chunk(lsn: int, number: int, stream: Stream) -> SnapshotChunk:
    return LAYOUT.chunk(number, lsn, [_reported_map(stream)])
