# Tests: tests/broker/test_tracing.py
"""Spans of records that carry a trace context, made from the frames of the journal.

`FrameTracer` observes each frame before it is encoded and when it is durable. It makes a span for
each produce, lease and settle of a record whose metadata has a sampled ``traceparent``
(docs/tracing.rst). It reads memory only, never the disk. Clocks, ids and the sink are arguments.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgpack

from brokerd.broker.model.topics import GroupPartition, Partition
from brokerd.walformat import Entry, EntryKind, EventKind, GroupEvent

METADATA_BYTES_MAX = 8_192
"""Metadata above this size is not searched for a trace context, because that would take long."""
STATE_BYTES_MAX = 512
"""A longer ``tracestate`` is left out. W3C asks for at least 512 bytes."""

_TRACEPARENT = b"traceparent"
_CONTEXT = re.compile(
    rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL
)
_SAMPLED = 1
_END_OF_OFFSETS = 1 << 63

_LEASED = int(EventKind.LEASED)
_SETTLED = int(EventKind.SETTLED)
_FAILED = int(EventKind.FAILED)
_DEAD = int(EventKind.DEAD)
_SETTLED_RANGE = int(EventKind.SETTLED_RANGE)
_SEEK = int(EventKind.SEEK)
_CONFIGURED = int(EventKind.CONFIGURED)
_DELETED = int(EventKind.DELETED)
_OUTCOMES = {
    _SETTLED: "settled",
    _FAILED: "failed",
    _DEAD: "dead_letter",
    int(EventKind.RELEASED): "released",
    int(EventKind.EXPIRED): "expired",
}
"""Kinds of events that end the lease of one record -> outcome."""
_ERRORS = {"failed", "dead_letter", "expired"}
"""Outcomes that are errors. They are also the values of ``error.type``."""

Attributes = dict[str, str | int]
SpanKind = Literal["server", "internal"]


class TraceContext(NamedTuple):
    """The context that a record carries: the parent of its spans."""

    trace_id: int
    span_id: int
    is_sampled: bool
    state: str
    """The value of ``tracestate``, or ""."""


class Span(NamedTuple):
    """One span that has ended."""

    name: str
    kind: SpanKind
    parent: TraceContext
    span_id: int
    start_ns: int
    end_ns: int
    """0 until its frame is durable, for spans that end then."""
    attributes: Attributes
    error: str = ""
    """The value of ``error.type``; "" for a span without an error."""
    linked_id: int = 0
    """Id of the lease that a settle ends, a span of the same trace; 0: unknown."""


class SpanSink(Protocol):
    """Takes spans that have ended."""

    def offer(self, span: Span) -> bool:
        """Take a span and return True, or return False at once for lack of space."""


class Moment(NamedTuple):
    """One moment on both clocks. Durations do not depend on steps of the wall clock."""

    wall_ns: int
    monotonic_us: int

    def at(self, later: Moment) -> int:
        """Return the wall time of a later moment, in ns, as if the wall clock had no step."""
        return self.wall_ns + (later.monotonic_us - self.monotonic_us) * 1000


class _OpenLease(NamedTuple):
    parent: TraceContext
    span_id: int
    begin: Moment
    token: int
    attributes: Attributes


_Place = tuple[int, int, str]
"""Topic id, partition and group of open leases."""


def trace_context(metadata: bytes) -> TraceContext | None:
    """Return the trace context in a record's metadata, None if it has no ``traceparent``.

    Raises ValueError for a context that W3C's rules call invalid, and for large metadata.
    """
    if _TRACEPARENT not in metadata:
        return None
    if len(metadata) > METADATA_BYTES_MAX:
        raise ValueError(f"metadata of {len(metadata)} bytes is not searched")
    try:
        fields = msgpack.unpackb(metadata, raw=True, strict_map_key=False)
    except TypeError as error:  # a map or a list is a key
        raise ValueError(f"metadata has an odd key: {error}") from None
    if not isinstance(fields, dict) or _TRACEPARENT not in fields:
        return None
    return _parse(fields[_TRACEPARENT], fields.get(b"tracestate"))


def _parse(traceparent: Any, tracestate: Any) -> TraceContext:
    found = _CONTEXT.fullmatch(traceparent) if isinstance(traceparent, bytes) else None
    if found is None:
        raise ValueError("traceparent is not of the form VERSION-TRACE-SPAN-FLAGS")
    version, trace_id, span_id, flags, more = found.groups()
    if version == b"ff" or (version == b"00" and more is not None):
        raise ValueError("traceparent has an invalid version")
    if not int(trace_id, 16) or not int(span_id, 16):
        raise ValueError("traceparent has an id of zeros")
    state = ""
    if isinstance(tracestate, bytes) and len(tracestate) <= STATE_BYTES_MAX:
        state = tracestate.decode() if tracestate.isascii() else ""
    is_sampled = bool(int(flags, 16) & _SAMPLED)
    return TraceContext(int(trace_id, 16), int(span_id, 16), is_sampled, state)


class FrameTracer:
    """Makes spans of frames; a `FrameObserver` of the group commit.

    :param new_id: returns a random id of 64 bits.
    :param wall_ns: returns nanoseconds since 1970.
    :param leases_max: the most leases of traced records that are remembered until they end.
    :param waiting_max: the most spans that wait for their frames to be durable.
    """

    def __init__(
        self,
        sink: SpanSink,
        new_id: Callable[[], int],
        wall_ns: Callable[[], int],
        monotonic_us: Callable[[], int],
        leases_max: int,
        waiting_max: int,
    ) -> None:
        self._sink = sink
        self._new_id = new_id
        self._wall_ns = wall_ns
        self._monotonic_us = monotonic_us
        self._leases_max = leases_max
        self._waiting_max = waiting_max
        self._leases: dict[_Place, dict[int, _OpenLease]] = {}
        """Open leases of traced records, by offset."""
        self._open = 0
        self._waiting: deque[tuple[int, Moment, list[Span]]] = deque()
        """Ticket, moment and spans of frames that are not durable."""
        self._waiting_spans = 0
        self._now = Moment(0, 0)
        self._spans: list[Span] = []
        """Spans of the frame that is being built."""
        self.made = dict.fromkeys(("produce", "lease", "settle"), 0)
        """Spans that the sink took, by operation."""
        self.dropped = dict.fromkeys(("queue", "leases"), 0)
        """Spans that found no space, by the space that was full."""
        self.invalid = 0
        """Trace contexts that were not read."""
        self.unseen = 0
        """Leases and settles of records that were not in memory."""

    def status(self) -> dict[str, Any]:
        """Return the counters, in values that JSON can hold."""
        return {
            "spans": dict(self.made),
            "dropped": dict(self.dropped),
            "invalid": self.invalid,
            "unseen": self.unseen,
            "open_leases": self._open,
        }

    # -- frames -------------------------------------------------------------------------------

    def frame_built(
        self,
        ticket: int,
        entries: Sequence[Entry],
        partitions: Sequence[Partition],
        group_partitions: Collection[GroupPartition],
    ) -> None:
        """Observe the changes of a frame before they are encoded."""
        self._now = Moment(self._wall_ns(), self._monotonic_us())
        spans: list[Span] = []
        self._spans = spans
        for entry in entries:
            if entry.kind == EntryKind.TOPIC and self._leases:
                self._topic_changed(entry)
        for partition in partitions:
            if not partition.topic.internal_of:
                self._records_gathered(partition)
        for group_partition in group_partitions:
            if not group_partition.partition.topic.internal_of:
                self._events_gathered(group_partition)
        if spans:
            self._waiting.append((ticket, self._now, spans))
            self._waiting_spans += len(spans)

    def frame_durable(self, ticket: int) -> None:
        """End the spans of all frames up to this ticket."""
        waiting = self._waiting
        if not waiting or waiting[0][0] > ticket:
            return
        now = Moment(0, self._monotonic_us())
        while waiting and waiting[0][0] <= ticket:
            _, begin, spans = waiting.popleft()
            self._waiting_spans -= len(spans)
            end_ns = begin.at(now)
            for span in spans:
                ended = span if span.end_ns else span._replace(end_ns=end_ns)
                if self._sink.offer(ended):
                    self.made[span.name.partition(" ")[0]] += 1
                else:
                    self.dropped["queue"] += 1

    def _add(self, span: Span) -> None:
        if self._waiting_spans + len(self._spans) < self._waiting_max:
            self._spans.append(span)
        else:
            self.dropped["queue"] += 1

    # -- records ------------------------------------------------------------------------------

    def _records_gathered(self, partition: Partition) -> None:
        chunk = partition.chunks.open
        if chunk is None:
            return
        first = partition.framed_end - chunk.base
        column = chunk.metadata[first:] if first else chunk.metadata
        if column.count(None) == len(column):
            return
        for offset, metadata in enumerate(column, partition.framed_end):
            parent = self._context(metadata)
            if parent is not None:
                attributes = _attributes("produce", "send", partition, offset)
                self._begin("produce", parent, partition, attributes)

    def _begin(
        self,
        operation: str,
        parent: TraceContext,
        partition: Partition,
        attributes: Attributes,
        error: str = "",
        linked_id: int = 0,
    ) -> None:
        """Add a span from this frame until it is durable."""
        name = f"{operation} {partition.topic.name}"
        begin_ns = self._now.wall_ns
        span_id = self._new_id()
        span = Span(name, "server", parent, span_id, begin_ns, 0, attributes, error, linked_id)
        self._add(span)

    def _context(self, metadata: bytes | None) -> TraceContext | None:
        """Return the context of a record to trace, else None."""
        if metadata is None:
            return None
        try:
            context = trace_context(metadata)
        except ValueError:
            self.invalid += 1
            return None
        return context if context is not None and context.is_sampled else None

    def _context_at(self, partition: Partition, offset: int) -> TraceContext | None:
        """Return the context of the record at an offset, if it is in memory."""
        chunk = partition.find(offset)
        if chunk is None:
            self.unseen += 1
            return None
        return self._context(chunk.metadata[offset - chunk.base])

    # -- groups -------------------------------------------------------------------------------

    def _events_gathered(self, group_partition: GroupPartition) -> None:
        place = _place(group_partition)
        is_configured = False
        for event in group_partition.waiting_events:
            kind = event[0]
            if kind == _LEASED:
                self._leased(place, group_partition, event)
            elif kind in _OUTCOMES:
                self._ended(place, group_partition, event)
            elif kind == _SETTLED_RANGE:
                self._end_range(place, event[1], event[2], "removed")
            elif kind == _SEEK:
                self._end_range(place, 0, _END_OF_OFFSETS, "reset")
            elif kind == _DELETED:
                self._end_range(place, 0, _END_OF_OFFSETS, "deleted")
            elif kind == _CONFIGURED:
                is_configured = True
        if is_configured:
            self._end_missing(place, group_partition)

    def _leased(self, place: _Place, group_partition: GroupPartition, event: GroupEvent) -> None:
        _, offset, duration_us, token, grants, owner, _ = event
        self._end_lease(place, offset, "reset")
        partition = group_partition.partition
        parent = self._context_at(partition, offset)
        if parent is None:
            return
        if self._open >= self._leases_max:
            self.dropped["leases"] += 1
            return
        attributes = _attributes("lease", "receive", partition, offset, place[2])
        if owner:
            attributes["messaging.client.id"] = owner
        attributes["messaging.brokerd.lease.attempt"] = grants
        attributes["messaging.brokerd.lease.duration_ms"] = duration_us // 1000
        lease = _OpenLease(parent, self._new_id(), self._now, token, attributes)
        self._leases.setdefault(place, {})[offset] = lease
        self._open += 1

    def _ended(self, place: _Place, group_partition: GroupPartition, event: GroupEvent) -> None:
        """End the lease of a record, and add the span of a settle."""
        kind, offset, amount, _, _, _, reason = event
        outcome = _OUTCOMES[kind]
        lease = self._end_lease(place, offset, outcome, reason)
        # A lapse makes a dead letter some time after the last attempt ended.
        if kind not in (_SETTLED, _FAILED) and not (kind == _DEAD and amount == 0):
            return
        partition = group_partition.partition
        parent = self._context_at(partition, offset) if lease is None else lease.parent
        if parent is None:
            return
        attributes = _attributes("settle", "settle", partition, offset, place[2])
        if lease is not None and "messaging.client.id" in lease.attributes:
            attributes["messaging.client.id"] = lease.attributes["messaging.client.id"]
        _add_outcome(attributes, outcome, reason)
        linked_id = 0 if lease is None else lease.span_id
        self._begin("settle", parent, partition, attributes, _error(outcome), linked_id)

    def _end_lease(
        self, place: _Place, offset: int, outcome: str, reason: str = ""
    ) -> _OpenLease | None:
        """Add the span of an open lease; return the lease, None if it is not known."""
        leases = self._leases.get(place)
        lease = None if leases is None else leases.pop(offset, None)
        if leases is None or lease is None:
            return None
        if not leases:
            del self._leases[place]
        self._open -= 1
        attributes = lease.attributes
        _add_outcome(attributes, outcome, reason)
        name = f"lease {attributes['messaging.destination.name']}"
        begin_ns, end_ns = lease.begin.wall_ns, lease.begin.at(self._now)
        error = _error(outcome)
        span_id = lease.span_id
        self._add(
            Span(name, "internal", lease.parent, span_id, begin_ns, end_ns, attributes, error)
        )
        return lease

    def _end_range(self, place: _Place, first: int, end: int, outcome: str) -> None:
        leases = self._leases.get(place, {})
        if end - first < len(leases):
            ending = [offset for offset in range(first, end) if offset in leases]
        else:
            ending = [offset for offset in leases if first <= offset < end]
        for offset in ending:
            self._end_lease(place, offset, outcome)

    def _end_missing(self, place: _Place, group_partition: GroupPartition) -> None:
        """End the leases that the store has no longer: new settings may end all leases."""
        for offset, lease in list(self._leases.get(place, {}).items()):
            if lease.token not in _tokens(group_partition, offset):
                self._end_lease(place, offset, "reset")

    def _topic_changed(self, entry: Entry) -> None:
        """End the leases of removed records and deleted topics, which have no events."""
        fields = msgpack.unpackb(entry.body)
        for place in [place for place in self._leases if place[0] == entry.topic_id]:
            if fields.get("op") == "deleted":
                self._end_range(place, 0, _END_OF_OFFSETS, "deleted")
            elif fields.get("op") == "start" and place[1] == entry.partition:
                self._end_range(place, 0, fields["offset"], "removed")


def _place(group_partition: GroupPartition) -> _Place:
    partition = group_partition.partition
    return partition.topic.topic_id, partition.index, group_partition.group.name


def _tokens(group_partition: GroupPartition, offset: int) -> Iterator[int]:
    """Yield the token of the live lease of a record."""
    if group_partition.is_open:  # a packed store with new settings has no leases
        for lease in group_partition.store.leases(offset, offset + 1):
            yield lease.token


def _attributes(
    operation: str, kind: str, partition: Partition, offset: int, group: str | None = None
) -> Attributes:
    found: Attributes = {
        "messaging.system": "brokerd",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": partition.topic.name,
        "messaging.destination.partition.id": str(partition.index),
        "messaging.message.id": str(offset),
    }
    if group is not None:
        found["messaging.consumer.group.name"] = group
    return found


def _add_outcome(attributes: Attributes, outcome: str, reason: str) -> None:
    attributes["messaging.brokerd.lease.outcome"] = outcome
    if reason:
        attributes["messaging.brokerd.reason"] = reason


def _error(outcome: str) -> str:
    return outcome if outcome in _ERRORS else ""
