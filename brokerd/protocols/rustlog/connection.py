# Tests: tests/protocols/test_rustlog.py
"""RustLog on the wire, both dialects: docs/protocols/rustlog.rst.

The codec parses frames of both dialects. The base class keeps order and durability. This module
turns each request into calls of the broker and their results into an answer in the request's
dialect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from brokerd.broker import Broker, Clock, Congested, Partition
from brokerd.codecs.rustlog import (
    CODECS,
    MAX_PAYLOAD,
    Answer,
    CreateTopic,
    DescribePartition,
    DescribeTopic,
    Dialect,
    Fetch,
    Fetched,
    FrameLengthError,
    FrameReader,
    ListTopics,
    LongProduce,
    Metrics,
    MetricsFetch,
    OffsetCommit,
    OffsetCommitted,
    OffsetFetch,
    OffsetFetched,
    PartitionDescription,
    Ping,
    Pong,
    Produce,
    Produced,
    RequestError,
    TopicCreated,
    TopicDescription,
    dialect_of,
)
from brokerd.errors import AuthenticationRequired, BrokerdError, Denied, without_traceback
from brokerd.protocols.base.connection import Hold, Limits
from brokerd.protocols.base.factory import ConnectionFactory
from brokerd.protocols.base.fetching import FetchConnection
from brokerd.protocols.base.framing import FrameConnection
from brokerd.protocols.base.request_times import OPERATION, operation_names
from brokerd.protocols.base.steps import Steps, StepsRun
from brokerd.protocols.rustlog.fetch import JSON_BYTES_MAX, LIMITS, check_sizes, fetch_answer
from brokerd.protocols.rustlog.metrics import metrics_text
from brokerd.protocols.rustlog.offset_commits import OffsetCommits
from brokerd.protocols.rustlog.refusals import (
    BAD_COUNT,
    COMMIT_FAILED,
    CREATE_FAILED,
    PRODUCE_FAILED,
    Refusal,
    no_partition,
    no_place,
    no_topic,
    not_allowed,
    not_understood,
    out_of_range,
    topic_exists,
    wrong_frame,
)
from brokerd.protocols.rustlog.topic_list import list_topics
from brokerd.security import ADMIN, MONITOR, READ, WRITE
from brokerd.security.audit import EventType
from brokerd.security.quotas import Use
from brokerd.values import Format, Record

PARTITIONS_MAX = 1_000
"""Largest number of partitions in CreateTopic."""


@dataclass(frozen=True)
class RustlogSettings:
    """Options of a RustLog listener."""

    group_rules: Literal["seed", "reference"] = "seed"
    """Rules for groups in the binary dialect (page, "The reference's group rules")."""


class RustlogConnection(FrameConnection[bytes, FrameLengthError], FetchConnection):
    """One client's connection."""

    factory: RustlogFactory

    def __init__(self, broker: Broker, frame_bytes: int, reference_groups: bool) -> None:
        super().__init__(broker, FrameReader(min(frame_bytes, MAX_PAYLOAD)))
        self._dialect = Dialect.JSON
        """Dialect of the current or last request."""
        self._request_type: type = object
        """Type of the current or last request."""
        self._reference_groups = reference_groups

    # -- frames -------------------------------------------------------------------------------

    def handle(self, frame: bytes) -> None:
        """Carry out a request, or answer with its refusal."""
        dialect = self._dialect = dialect_of(frame)
        try:
            request = CODECS[dialect].decode_request(frame)
            self._request_type = type(request)
            self._DISPATCH[type(request)](self, request)
        except _REFUSED as problem:
            self.count_refusal(problem)
            self.answers.append(_refused(problem, dialect))

    def quota_use(self, frame: bytes) -> tuple[int, int]:
        """Return how a request counts against quotas, by its first bytes."""
        if dialect_of(frame) is Dialect.BINARY:
            use = _BINARY_USES.get(frame[0], Use.READ)
        else:
            found = _JSON_NAME.match(frame)
            use = _JSON_USES.get(found[1], Use.PRODUCE) if found else Use.PRODUCE
        return use, len(frame)

    def operation_of(self, frame: bytes) -> str:
        """Return the name of the last decoded request."""
        return _OPERATIONS.get(self._request_type, OPERATION)

    def handle_stream_error(self, error: FrameLengthError) -> None:
        """Answer a wrong length in the dialect of the request before it."""
        self._answer(wrong_frame(error).answer(self._dialect))
        self.close_after_answers()

    def _run_steps(self, steps: Steps[bytes]) -> None:
        """Run steps that make an answer, or raise its refusal. Later requests wait."""
        self.hold(Hold.IN_PROGRESS)
        place = self.pending()

        def done(answer: bytes | None, _: Exception | None) -> None:
            assert answer is not None, "refusals are answers"
            self.resolve(place, answer)
            self.unhold(Hold.IN_PROGRESS)

        answer = _with_refusals(steps, self._dialect, self.count_refusal)
        StepsRun(self, answer, done).start()

    def _answer(self, answer: Answer) -> None:
        self.answers.append(CODECS[self._dialect].encode_answer(answer))

    # -- producing ----------------------------------------------------------------------------

    def _produce(self, request: Produce) -> None:
        self._answer(self._append(*request))

    def _append(self, topic_name: str, partition_index: int, records: Sequence[bytes]) -> Produced:
        """Append all records or none.

        Raises `Refusal`, `Congested`, `Denied` and `AuthenticationRequired`.
        """
        self.access.require(WRITE, topic_name)
        partition = self._existing(topic_name, partition_index)
        if not records:
            return Produced(0, 0)
        if sum(map(len, records)) > JSON_BYTES_MAX:
            check_sizes(self._dialect, partition.next_offset, records)
        try:
            base_offset = self.broker.appender.produce_values(partition, records, Format.RUSTLOG)
        except Congested:
            raise
        except BrokerdError as refusal:
            raise PRODUCE_FAILED.because(refusal) from None
        self.wrote()
        return Produced(base_offset, len(records))

    def _produce_long(self, request: LongProduce) -> None:
        self.access.require(WRITE, request.topic)
        self._run_steps(self._parse_and_append(request))

    def _parse_and_append(self, request: LongProduce) -> Steps[bytes]:
        """Parse the records, a slice in each step, then append them."""
        topic_name, partition_index, parser = request
        while not parser.step():
            yield None
        while True:
            try:
                produced = self._append(topic_name, partition_index, parser.records)
            except Congested:
                yield self.group_commit.when_uncongested
            else:
                return CODECS[Dialect.JSON].encode_answer(produced)

    # -- reading ------------------------------------------------------------------------------

    def _fetch(self, request: Fetch) -> None:
        topic_name, partition_index, offset, max_bytes, group_name = request
        self.access.require(READ, topic_name)
        dialect = self._dialect
        if group_name is not None:
            by_reference = self._by_reference()
            committed = self.factory.commits.committed(
                topic_name, partition_index, group_name, by_reference
            )
            if by_reference:
                if committed is None:
                    self._answer(Fetched((), (), 0))
                    return
                offset = committed
            elif committed is not None:
                offset = max(offset, committed)
            self.wrote()  # another connection may have committed the offset just now
        partition = self._existing(topic_name, partition_index)
        if offset > partition.next_offset:
            self._answer(Fetched((), (), partition.next_offset))
        elif offset < partition.start_offset and dialect is Dialect.JSON:
            raise out_of_range(topic_name, partition_index, offset, partition.start_offset)
        else:
            records_max, bytes_max = LIMITS[dialect]
            answer = partial(self._fetch_answer, dialect, offset)
            self.fetch(partition, offset, records_max, min(max_bytes, bytes_max), answer)

    def _fetch_answer(
        self,
        dialect: Dialect,
        offset: int,
        records: Sequence[Record],
        next_offset: int,
        error: Exception | None,
    ) -> bytes:
        """Return the answer to a Fetch with the records that were read."""
        try:
            answer = fetch_answer(dialect, offset, records, next_offset, error)
        except _REFUSED as problem:
            self.count_refusal(problem)
            return _refused(problem, dialect)
        self.factory.count_fetched(answer)
        return CODECS[dialect].encode_answer(answer)

    # -- committed offsets --------------------------------------------------------------------

    def _by_reference(self) -> bool:
        """Return whether the reference's group rules hold for the current request."""
        return self._reference_groups and self._dialect is Dialect.BINARY

    def _offset_commit(self, request: OffsetCommit) -> None:
        self.access.require(READ, request.topic)
        try:
            success = self.factory.commits.commit(*request, self._by_reference())
        except Congested:
            raise
        except BrokerdError as refusal:
            raise COMMIT_FAILED.because(refusal) from None
        self.wrote()
        self._answer(OffsetCommitted(success))

    def _offset_fetch(self, request: OffsetFetch) -> None:
        self.access.require(READ, request.topic)
        by_reference = self._by_reference()
        self._answer(OffsetFetched(self.factory.commits.committed(*request, by_reference)))

    # -- topics -------------------------------------------------------------------------------

    def _existing(self, topic_name: str, partition_index: int) -> Partition:
        """Return the partition of a Produce or Fetch. Raises `Refusal`."""
        partition = self.factory.commits.find_partition(topic_name, partition_index)
        if partition is None:
            raise no_place(topic_name, partition_index)
        return partition

    def _create_topic(self, request: CreateTopic) -> None:
        topic_name, count = request
        self.access.require(ADMIN, topic_name)
        if count == 0:
            raise BAD_COUNT.because(count)
        if count > PARTITIONS_MAX:
            raise BAD_COUNT.because(f"{count} (1 to {PARTITIONS_MAX})")
        if not topic_name:
            raise CREATE_FAILED.because("the topic has no name; give it one")
        if self.broker.topics.find(topic_name) is not None:
            raise topic_exists(topic_name)
        try:
            self.broker.audit.carry_out(
                self.access.actor,
                EventType.TOPIC_CREATED,
                topic_name,
                lambda: self.broker.topics.create(topic_name, count),
                {"partitions": str(count)},
            )
        except Congested:
            raise
        except BrokerdError as refusal:
            raise CREATE_FAILED.because(refusal) from None
        self.wrote()
        self._answer(TopicCreated())

    def _list_topics(self, request: ListTopics) -> None:
        self.await_memory()
        self._run_steps(list_topics(self.broker, CODECS[self._dialect], self.access))

    def _describe_topic(self, request: DescribeTopic) -> None:
        self.access.require_any(request.topic)
        topic = self.broker.topics.find(request.topic) if request.topic else None
        if topic is None:
            raise no_topic(request.topic)
        next_offsets = tuple(partition.next_offset for partition in topic.partitions)
        self._answer(TopicDescription(topic.name, next_offsets))

    def _describe_partition(self, request: DescribePartition) -> None:
        self.access.require_any(request.topic)
        partition = self.factory.commits.find_partition(*request)
        if partition is None:
            raise no_partition(*request)
        self._answer(PartitionDescription(*request, partition.next_offset))

    # -- others -------------------------------------------------------------------------------

    def _metrics(self, request: MetricsFetch) -> None:
        self.access.require_server(MONITOR)
        self._answer(Metrics(self.factory.metrics()))

    def _ping(self, request: Ping) -> None:
        self.answer_at_once(CODECS[self._dialect].encode_answer(Pong()))

    _DISPATCH: ClassVar[dict[type, Callable[[RustlogConnection, Any], None]]] = {
        Produce: _produce,
        LongProduce: _produce_long,
        Fetch: _fetch,
        OffsetCommit: _offset_commit,
        OffsetFetch: _offset_fetch,
        CreateTopic: _create_topic,
        ListTopics: _list_topics,
        DescribeTopic: _describe_topic,
        DescribePartition: _describe_partition,
        MetricsFetch: _metrics,
        Ping: _ping,
    }


_BINARY_USES = {1: Use.PRODUCE, 3: Use.FREE}
_JSON_NAME = re.compile(rb'\s*\{?\s*"(\w+)"')
_JSON_USES = {
    b"OffsetCommit": Use.FREE,
    **dict.fromkeys(
        (
            *(b"Fetch", b"OffsetFetch", b"CreateTopic", b"DescribeTopic", b"DescribePartition"),
            *(b"ListTopics", b"MetricsFetch", b"Ping"),
        ),
        Use.READ,
    ),
}
"""Requests by their names. Any other text counts as a Produce, whose name may have escapes."""
_REFUSED = (RequestError, Refusal, Denied, AuthenticationRequired)
"""Exceptions whose text is answered in the words of each dialect."""


def _with_refusals(
    steps: Steps[bytes], dialect: Dialect, count: Callable[[Exception], None]
) -> Steps[bytes]:
    """Return the answer that ``steps`` make, or the refusal that they raise."""
    try:
        return (yield from steps)
    except _REFUSED as problem:
        count(problem)
        return _refused(problem, dialect)


def _refused(problem: Exception, dialect: Dialect) -> bytes:
    if isinstance(problem, RequestError):
        refusal = not_understood(problem)
    elif isinstance(problem, Refusal):
        refusal = problem
    else:
        refusal = not_allowed(problem)
    without_traceback(problem)
    return CODECS[dialect].encode_answer(refusal.answer(dialect))


_OPERATIONS = operation_names(RustlogConnection._DISPATCH)
"""Names of operations in the metrics."""


class RustlogFactory(ConnectionFactory):
    """Connections of one RustLog listener."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        limits: Limits,
        settings: RustlogSettings = RustlogSettings(),
    ) -> None:
        super().__init__("rustlog", broker, clock, limits)
        self.settings = settings
        self.commits = OffsetCommits(broker)
        self.fetched_records = 0
        self.fetched_bytes = 0

    def new_connection(self) -> RustlogConnection:
        reference = self.settings.group_rules == "reference"
        return RustlogConnection(self.broker, self.limits.frame_bytes, reference)

    def count_fetched(self, answer: Fetched) -> None:
        """Count the records of an answer to a Fetch, for the metrics."""
        self.fetched_records += len(answer.records)
        self.fetched_bytes += sum(map(len, answer.records))

    def metrics(self) -> str:
        """Return the text of the answer to MetricsFetch."""
        return metrics_text(
            self.broker.status(),
            self.fetched_records,
            self.fetched_bytes,
            len(self.connections),
            self.commits.lag,
        )
