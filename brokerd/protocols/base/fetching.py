# Tests: tests/protocols/test_fetching.py
"""A connection of a format whose clients fetch records by offset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from brokerd.broker import FetchCallback, Partition, Topic
from brokerd.errors import AuthenticationRequired, BrokerdError, Denied, without_traceback
from brokerd.protocols.base.connection import Connection, Hold, QueuedAnswers
from brokerd.protocols.base.memory import FURTHER_ANSWERS
from brokerd.security import READ
from brokerd.values import Record

EXPECTED_BYTES = 256 << 10
"""The least memory that a read from disk claims: a chunk of records."""

MakeAnswer = Callable[[Sequence[Record], int, Exception | None], bytes | tuple[bytes, ...]]
"""Makes the answer to a fetch of ``(records, next_offset, error)``; see `Broker.reader.fetch`.

The error is `Denied` or `AuthenticationRequired` if the permission was revoked during the read.
Large answers are returned in parts: see `Connection.answer`.
"""


class FetchConnection(Connection):
    """Adds `fetch`, which `handle_requests` calls to answer with records read by offset."""

    def fetch(
        self,
        partition: Partition,
        offset: int,
        max_records: int,
        max_bytes: int,
        answer: MakeAnswer,
    ) -> None:
        """Answer with durable records from ``offset`` on; arguments as of `Broker.reader.fetch`.

        Earlier writes of this connection are among them. ``answer`` is called once, now or later,
        and returns the bytes of the answer. Until then a hold is set and later requests wait: a
        connection reads for one answer at a time.

        Raises `InvalidRequest`, which ``answer`` must not raise, and `AwaitMemory`.
        """
        read = partial(self.broker.reader.fetch, partition, offset, max_records, max_bytes)
        self.read(partition.topic, read, answer, max(max_bytes, EXPECTED_BYTES))

    def read(
        self,
        topic: Topic,
        read: Callable[[FetchCallback], None],
        answer: MakeAnswer,
        expected_bytes: int,
    ) -> None:
        """Like `fetch`; ``read`` finds the records and passes them to its argument.

        A read from disk claims ``expected_bytes`` of memory until its answer is made.
        """
        self.await_memory()
        reading = _PendingFetch(self, topic.name, answer, expected_bytes)
        reading.begin(max(self.written_ticket, topic.ticket), read)

    def records_in_memory(self, partition: Partition, offsets: Iterable[int]) -> list[Record]:
        """Return the records at the first of these offsets if their answers need not wait.

        As many as memory holds and the bytes in flight allow. The caller looks at the permission
        first, and answers at once.
        """
        ticket = max(self.written_ticket, partition.topic.ticket)
        is_full = self.factory.memory.full[FURTHER_ANSWERS]
        if is_full or ticket > self.group_commit.durable_ticket:
            return []
        reader = self.broker.reader
        return reader.records_in_memory(partition, offsets, self.in_flight_room)

    def answer_existence(self, topic: Topic, answer: bytes) -> None:
        """Send an answer that shows only that a topic exists, when that is durable."""
        if topic.ticket > self.group_commit.durable_ticket:
            self.answers.append(answer)
        else:
            self.answer_at_once(answer)

    def listen(self) -> None:
        """Read the socket while only an `IN_PROGRESS` hold is set, to notice a peer that closes.

        Requests that arrive wait. Their bytes count against ``in_flight_bytes``.
        """
        if self.holds != Hold.IN_PROGRESS or self.ending:
            return
        if self._taken_bytes < self.factory.limits.in_flight_bytes:
            self.transport.resumeProducing()
        else:
            self.transport.pauseProducing()


class _PendingFetch:
    """One fetch of a connection in progress. It holds no reference to its reader."""

    __slots__ = (
        "_answer",
        "_connection",
        "_expected_bytes",
        "_is_done",
        "_place",
        "_topic_name",
    )

    def __init__(
        self,
        connection: Connection,
        topic_name: str,
        answer: MakeAnswer,
        expected_bytes: int,
    ) -> None:
        self._connection = connection
        self._topic_name = topic_name
        self._answer = answer
        self._expected_bytes = expected_bytes
        self._place: QueuedAnswers | None = None
        self._is_done = False

    def begin(self, ticket: int, read: Callable[[FetchCallback], None]) -> None:
        """Read now. If ``ticket`` is not durable, wait for everything that is applied so far."""
        connection = self._connection
        if ticket > connection.group_commit.durable_ticket:
            self._wait()
            connection.group_commit.when_all_durable(
                partial(connection.close_on_fault, self._read, read)
            )
            return
        self._read(read)

    def _read(self, read: Callable[[FetchCallback], None]) -> None:
        read(self._done)
        if not self._is_done:
            if self._place is None:
                self._wait()
            self._connection.expect_answer(self._expected_bytes)

    def _wait(self) -> None:
        self._connection.hold(Hold.IN_PROGRESS)
        self._place = self._connection.pending()

    def _done(self, records: Sequence[Record], next_offset: int, error: Exception | None) -> None:
        self._is_done = True
        connection = self._connection
        if self._place is None:
            connection.answer_at_once(*self._parts(records, next_offset, error))
        elif not connection.gone:
            connection.close_on_fault(self._late, self._place, records, next_offset, error)

    def _late(
        self,
        place: QueuedAnswers,
        records: Sequence[Record],
        next_offset: int,
        error: Exception | None,
    ) -> None:
        connection = self._connection
        if not isinstance(error, Denied | AuthenticationRequired):
            try:
                connection.access.require(READ, self._topic_name)
            except BrokerdError as refusal:
                records, error = (), without_traceback(refusal)
        connection.expect_answer(0)
        connection.resolve(place, *self._parts(records, next_offset, error), at_once=True)
        connection.unhold(Hold.IN_PROGRESS)

    def _parts(
        self, records: Sequence[Record], next_offset: int, error: Exception | None
    ) -> tuple[bytes, ...]:
        answer = self._answer(records, next_offset, error)
        return (answer,) if isinstance(answer, bytes) else answer
