# Tests: tests/protocols/test_flymq_filtered_fetch.py
"""A FETCH with a filter: reads on until enough records pass or the log ends.

A `FilteredFetch` may examine millions of records, so it works in slices (`SliceQueue`). It ends
when its connection closes or loses the permission to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from brokerd.broker import Clock, FetchCallback, Partition
from brokerd.broker.slices import SLICE_SECONDS, SliceQueue
from brokerd.errors import BrokerdError, without_traceback
from brokerd.protocols.base.fetching import FetchConnection
from brokerd.protocols.flymq.filter import Filter
from brokerd.security import READ
from brokerd.values import Record

READ_RECORDS = 500
READ_BYTES = 1 << 20
"""Limits of one read of the log. The first record may be larger."""
CONTENT_READS = 20
"""After so many reads it answers with what it found, or if its peer has closed the connection."""


class FilteredFetch:
    """One fetch with a filter. Calling it starts it, like `Broker.reader.fetch`.

    It returns at most ``most`` records, and keys and values of ``room`` bytes, but at least one
    record. A client that gave up may fetch again. So that its fetches do not pile up, each one
    watches whether the peer has closed the connection.
    """

    def __init__(
        self,
        connection: FetchConnection,
        slices: SliceQueue,
        partition: Partition,
        offset: int,
        most: int,
        room: int,
        chosen: Filter,
    ) -> None:
        self._connection = connection
        self._slices = slices
        self._clock: Clock = connection.factory.clock
        self._partition = partition
        self._offset = offset
        """One past the last record examined."""
        self._most = most
        self._room = room
        self._filter = chosen
        self._passed: list[Record] = []
        self._reads = 0
        self._is_full = False

    def __call__(self, done: FetchCallback) -> None:
        """Begin; ``done(records, next_offset, error)`` is called once, unless the peer leaves."""
        self._done = done
        self._fetch()

    def _fetch(self) -> None:
        self._connection.broker.reader.fetch(
            self._partition, self._offset, READ_RECORDS, READ_BYTES, self._fetched
        )

    def _fetched(
        self, records: Sequence[Record], next_offset: int, error: Exception | None
    ) -> None:
        """Examine the records of one read. An empty read ends the fetch."""
        self._reads += 1
        if records:
            self._go_on_later(self._look(records))
        elif error is not None and not self._passed:
            self._done([], next_offset, error)
        else:
            self._done(self._passed, self._offset if error else next_offset, None)

    def _go_on_later(self, steps: Iterator[None]) -> None:
        connection = self._connection
        self._slices.add(
            partial(connection.close_on_fault, self._go_on, steps), connection.slice_owner()
        )

    def _go_on(self, steps: Iterator[None]) -> None:
        """Examine records until the slice ends or none are left."""
        connection = self._connection
        if connection.gone:
            return
        try:
            connection.access.require(READ, self._partition.topic.name)
        except BrokerdError as refusal:
            self._done([], self._offset, without_traceback(refusal))
            return
        clock = self._clock
        connection.listen()
        end_seconds = clock.seconds() + SLICE_SECONDS
        for _ in steps:
            if clock.seconds() > end_seconds:
                self._go_on_later(steps)
                return
        if self._is_full or (self._reads >= CONTENT_READS and (self._passed or connection.ending)):
            self._done(self._passed, self._offset, None)
        else:
            self._fetch()

    def _look(self, records: Sequence[Record]) -> Iterator[None]:
        """Keep the records that pass the filter; yield after each step of the work."""
        for record in records:
            for passes in self._filter.steps(record):
                yield
                if passes:
                    self._keep(record)
                    break
            if self._is_full:
                return
            self._offset = record.offset + 1

    def _keep(self, record: Record) -> None:
        """Keep a record if it fits, and set ``_is_full`` when no more fit."""
        size = len(record.value) + len(record.key or b"")
        if self._passed and size > self._room:
            self._is_full = True
            return
        self._passed.append(record)
        self._room -= size
        if len(self._passed) == self._most:
            self._is_full = True
            self._offset = record.offset + 1
