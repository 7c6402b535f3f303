# Tests: tests/protocols/test_flymq_filtered_fetch.py
"""A FETCH with a filter: reads on until enough records pass or the log ends.

There may be millions of records to look at, so a `Scan` works in slices of a few milliseconds, and
of all the scans of a listener one slice runs a turn of the reactor (`Turns`). It ends with its
connection, or with the permission to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from brokerd.broker import Clock, Fetched, Partition
from brokerd.errors import BrokerdError, without_frames
from brokerd.protocols.base.fetching import ReadingConnection
from brokerd.protocols.base.slices import SLICE_SECONDS, Turns
from brokerd.protocols.flymq.filter import Filter
from brokerd.security import READ
from brokerd.values import Record

SLICE_RECORDS = 500
SLICE_BYTES = 1 << 20
"""One fetch of a scan has no more records and bytes, the first record excepted."""
CONTENT_SLICES = 20
"""After so many fetches a scan answers that found something, although there might be more, and one
whose peer has left, or is about to."""


class Scan:
    """One fetch with a filter, under way; call it with what wants the records, as
    `Broker.reader.fetch`.

    ``most`` records at most, and keys and values of ``room`` bytes, but at least one record.
    A client that does not wait for the answer any more may have asked again: its scans must not
    pile up, so a scan listens whether the peer has left.
    """

    def __init__(
        self,
        connection: ReadingConnection,
        turns: Turns,
        partition: Partition,
        offset: int,
        most: int,
        room: int,
        chosen: Filter,
    ) -> None:
        self._connection = connection
        self._turns = turns
        self._clock: Clock = connection.factory.clock
        self._partition = partition
        self._offset = offset
        """One past the last record examined."""
        self._most = most
        self._room = room
        self._filter = chosen
        self._passed: list[Record] = []
        self._slices = 0
        self._is_full = False

    def __call__(self, done: Fetched) -> None:
        """Begin; ``done(records, next_offset, error)`` is called once, unless the peer leaves."""
        self._done = done
        self._fetch()

    def _fetch(self) -> None:
        self._connection.broker.reader.fetch(
            self._partition, self._offset, SLICE_RECORDS, SLICE_BYTES, self._fetched
        )

    def _fetched(
        self, records: Sequence[Record], next_offset: int, error: Exception | None
    ) -> None:
        """Look at the records of a slice; without any the scan is over."""
        self._slices += 1
        if records:
            self._go_on_later(self._look(records))
        elif error is not None and not self._passed:
            self._done([], next_offset, error)
        else:
            self._done(self._passed, self._offset if error else next_offset, None)

    def _go_on_later(self, steps: Iterator[None]) -> None:
        self._turns.take(partial(self._connection.guarded, self._go_on, steps))

    def _go_on(self, steps: Iterator[None]) -> None:
        """Look at records until the time is over or they are."""
        connection = self._connection
        if connection.gone:
            return
        try:
            connection.access.require(READ, self._partition.topic.name)
        except BrokerdError as refusal:
            self._done([], self._offset, without_frames(refusal))
            return
        clock = self._clock
        connection.listen()
        end_seconds = clock.seconds() + SLICE_SECONDS
        for _ in steps:
            if clock.seconds() > end_seconds:
                self._go_on_later(steps)
                return
        if self._is_full or (
            self._slices >= CONTENT_SLICES and (self._passed or connection.ending)
        ):
            self._done(self._passed, self._offset, None)
        else:
            self._fetch()

    def _look(self, records: Sequence[Record]) -> Iterator[None]:
        """Keep those that pass; yields after each step of the work."""
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
        """Take a record, or find that there is no room for it."""
        size = len(record.value) + len(record.key or b"")
        if self._passed and size > self._room:
            self._is_full = True
            return
        self._passed.append(record)
        self._room -= size
        if len(self._passed) == self._most:
            self._is_full = True
            self._offset = record.offset + 1
