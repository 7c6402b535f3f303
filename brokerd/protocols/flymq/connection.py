# Tests: tests/protocols/test_flymq.py, tests/protocols/test_flymq_sockets.py
"""FlyMQ on the wire: docs/protocols/flymq.rst.

The codec parses frames and fields. The base class keeps order and durability. This module
dispatches each request to a module of its subject, which calls the broker and makes the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from brokerd.broker import Broker, Clock, Congested
from brokerd.codecs import flymq
from brokerd.codecs.flymq import (
    COMPRESSION_MASK,
    MAX_LENGTH,
    Auth,
    BeginTransaction,
    CancelDelayed,
    ClusterMetadata,
    Commit,
    CommitTransaction,
    CompressedRequest,
    Consume,
    CreateTopic,
    DeleteTopic,
    ExportAudit,
    Fetch,
    Frame,
    FrameError,
    FrameReader,
    GetLag,
    GetOffset,
    ListTopics,
    Metadata,
    Opcode,
    ProduceInTransaction,
    QueryAudit,
    RegisterSchema,
    Request,
    RequestError,
    ResetOffset,
    RollBackTransaction,
    SeekToTimestamp,
    Subscribe,
    decode_request,
)
from brokerd.errors import BrokerdError
from brokerd.protocols.base.connection import Hold, Limits
from brokerd.protocols.base.factory import ConnectionFactory
from brokerd.protocols.base.framing import STRANGER_BYTES_MAX, FrameOnHold
from brokerd.protocols.base.request_times import OPERATION
from brokerd.protocols.flymq import (
    accounts,
    audit,
    cluster,
    dead_letters,
    delayed,
    fetch,
    group_admin,
    groups,
    schemas,
)
from brokerd.protocols.flymq import topics as flymq_topics
from brokerd.protocols.flymq.decompression import DecompressionQueue
from brokerd.protocols.flymq.members import Memberships, address_text
from brokerd.protocols.flymq.produce import CONTENT_BYTES_MAX as CONTENT_BYTES_MAX
from brokerd.protocols.flymq.produce import PRODUCE, ProduceConnection
from brokerd.protocols.flymq.produce import FlymqSettings as FlymqSettings
from brokerd.protocols.flymq.topic_list import TopicListQueue, answer_topics
from brokerd.protocols.flymq.transactions import ConnectionTransactions
from brokerd.security import ADMIN, ANY, READ, WRITE
from brokerd.security.quotas import Use

_PRODUCES = frozenset(
    (
        *(Opcode.PRODUCE, Opcode.PRODUCE_WITH_SCHEMA, Opcode.PRODUCE_DELAYED),
        *(Opcode.PRODUCE_WITH_TTL, Opcode.TXN_PRODUCE),
    )
)
_FREE = frozenset(
    (
        *(Opcode.COMMIT, Opcode.RESET_OFFSET, Opcode.SEEK_TO_TIMESTAMP, Opcode.CANCEL_DELAYED),
        *(Opcode.DELETE_TOPIC, Opcode.DELETE_GROUP, Opcode.DELETE_SCHEMA, Opcode.PURGE_DLQ),
        *(Opcode.TXN_COMMIT, Opcode.TXN_ROLLBACK, Opcode.AUTH, Opcode.USER_DELETE),
        *(Opcode.USER_UPDATE, Opcode.ACL_SET, Opcode.ACL_DELETE, Opcode.PASSWORD_CHANGE),
    )
)
"""Requests that no quota holds back."""

_OPERATIONS: dict[int, str] = {one: one.name.lower() for one in Opcode}
"""Names of operations in the metrics."""


class FlymqConnection(ProduceConnection):
    """One client's connection."""

    factory: FlymqFactory

    def __init__(self, broker: Broker, frame_bytes: int, settings: FlymqSettings) -> None:
        self._max_length = min(frame_bytes, MAX_LENGTH)
        super().__init__(broker, FrameReader(self._max_length), settings)
        self._in_front = False
        """Whether this connection is first in the `DecompressionQueue`, so that others wait."""
        self._sdk = settings.error_layout == "sdk"
        self._memberships = Memberships()
        self._transactions = ConnectionTransactions(broker, settings.partitions)

    # -- frames -------------------------------------------------------------------------------

    def feed(self, data: bytes) -> bool:
        """Store frames, and notice if the peer closes while a request is in progress."""
        completed = super().feed(data)
        if self.holds:
            self.listen()
        return completed

    def handle_requests(self) -> None:
        """Handle the received frames until one has to wait."""
        super().handle_requests()
        self.queue_receipts()
        if self.pending_request is None or self.holds & Hold.MEMORY:
            self._leave_front()

    def handle(self, frame: Frame) -> None:
        """Decode a request, unless it was decoded before, and carry it out."""
        opcode, flags, payload = frame
        if self.pending_request is not None:
            request = self._take_request()
        elif flags & COMPRESSION_MASK:
            request = self._decompress(opcode, flags, payload)
        else:
            request = decode_request(opcode, flags, payload, self._max_length)
        try:
            if opcode == PRODUCE:
                self.produce(request)
            else:
                self.queue_receipts()
                permission, carry_out = self._DISPATCH[opcode]
                if permission:
                    self.access.require(permission, request.topic)
                carry_out(self, request)
        except Congested:
            self.pending_request = request
            raise

    def quota_use(self, frame: Frame) -> tuple[int, int]:
        """Return how a request counts against quotas. A compressed one counts compressed."""
        opcode, _, payload = frame
        if opcode in _PRODUCES:
            return Use.PRODUCE, len(payload)
        return (Use.FREE if opcode in _FREE else Use.READ), len(payload)

    def frame_to_retry(self, frame: Frame) -> Frame:
        """Return the frame without its payload: the decoded request is kept."""
        opcode, flags, _ = frame
        return opcode, flags, b""

    def refuse(self, frame: Frame, refusal: BrokerdError) -> None:
        """Answer ERROR."""
        self.queue_receipts()
        self.answers.append(self._error(str(refusal)))

    def operation_of(self, frame: Frame) -> str:
        """Return the name of the opcode."""
        return _OPERATIONS.get(frame[0], OPERATION)

    def handle_stream_error(self, error: FrameError) -> None:
        """Answer ERROR if the error has a text for the peer, and close."""
        if error.answer:
            self.queue_receipts()
            self.answers.append(self._error(str(error)))
        self.close_after_answers()

    def forget(self) -> None:
        """Drop the frames, the request in progress, memberships and transactions."""
        super().forget()
        self._memberships.leave()
        self._fits = None
        self._transactions.end()
        self.factory.decompression.leave(self)

    def _error(self, text: str) -> bytes:
        return flymq.error(text, self._sdk)

    def _shows(self, sdk: bool) -> None:
        """Note the layout of a request, which selects the layout of ERROR frames."""
        if sdk and self.settings.error_layout == "auto":
            self._sdk = True

    # -- requests that are read before they are carried out ------------------------------------

    def _take_request(self) -> Any:
        """Return the decoded request of the first frame. Raises `RequestError` if it is refused."""
        request, self.pending_request = self.pending_request, None
        if isinstance(request, RequestError):
            raise request
        return request

    def _decompress(self, opcode: int, flags: int, payload: bytes) -> Any:
        """Return the request of a compressed payload. Raises `FrameOnHold` for a large one."""
        most = self._max_length
        if self.access.is_stranger:
            most = min(most, STRANGER_BYTES_MAX)
        request = CompressedRequest(opcode, flags, payload, most)
        queue = self.factory.decompression
        if queue.at_once(request):
            return request.decoded()
        self._leave_front()
        self.hold(Hold.IN_PROGRESS)
        queue.add(self, request, self._on_decompressed)
        raise FrameOnHold

    def _on_decompressed(self, outcome: Request | RequestError) -> None:
        """Continue with a request that was decompressed in slices. It may wait again."""
        self.pending_request = outcome
        self._in_front = True
        self.unhold(Hold.IN_PROGRESS)
        if not self.holds & Hold.CONGESTED:
            self._leave_front()

    def _leave_front(self) -> None:
        """Let the next connection of the `DecompressionQueue` go on."""
        if self._in_front:
            self._in_front = False
            self.factory.decompression.leave(self)

    def pauseProducing(self) -> None:
        """Hold the connection, which does not read, and leave the `DecompressionQueue`."""
        super().pauseProducing()
        self._leave_front()

    # -- records that wait ----------------------------------------------------------------------

    def _cancel_delayed(self, request: CancelDelayed) -> None:
        self.answers.append(delayed.cancel_delayed(self.broker, self.access, request))

    def _begin(self, request: BeginTransaction) -> None:
        self.access.require_known()
        self.answers.append(self._transactions.begin())

    def _produce_in_transaction(self, request: ProduceInTransaction) -> None:
        self.answers.append(self._transactions.produce(request))

    def _commit_transaction(self, request: CommitTransaction) -> None:
        self.access.require_known()
        self.answers.append(self._transactions.commit(self.access, request))
        self.wrote()

    def _roll_back(self, request: RollBackTransaction) -> None:
        self.access.require_known()
        self.answers.append(self._transactions.roll_back(request))

    # -- everything else ----------------------------------------------------------------------

    def _consume(self, request: Consume) -> None:
        fetch.consume(self, request, self._error)

    def _fetch(self, request: Fetch) -> None:
        self._shows(request.sdk)
        fetch.fetch(self, request, self._error, self.factory.slices)

    def _create_topic(self, request: CreateTopic) -> None:
        self.answers.append(flymq_topics.create_topic(self.broker, self.access, request))

    def _delete_topic(self, request: DeleteTopic) -> None:
        self.answers.append(flymq_topics.delete_topic(self.broker, self.access, request))

    def _list_topics(self, request: ListTopics) -> None:
        encode = partial(flymq_topics.list_topics, self.broker)
        self.answer(answer_topics(self, self.factory.topic_lists, request, ANY, encode))

    def _metadata(self, request: Metadata) -> None:
        self.answers.append(flymq_topics.metadata(self.broker, request))

    def _cluster_metadata(self, request: ClusterMetadata) -> None:
        name, address = self.settings.cluster_id, self._address()
        if request.topic:
            self.access.require(READ, request.topic)
            topics = [flymq_topics.existing_topic(self.broker, request.topic)]
            self.answers.append(flymq_topics.cluster_metadata(topics, name, address))
        else:
            encode = partial(flymq_topics.all_metadata, self.broker, name, address)
            self.answer(answer_topics(self, self.factory.topic_lists, request, READ, encode))

    def _subscribe(self, request: Subscribe) -> None:
        self._shows(request.sdk)
        peer = address_text(self.transport.getPeer())
        self.answers.append(groups.subscribe(self.broker, self._memberships, peer, request))

    def _commit(self, request: Commit) -> None:
        self.answers.append(groups.commit(self.broker, request))

    def _reset_offset(self, request: ResetOffset) -> None:
        self._shows(request.sdk)
        self.answers.append(groups.reset_offset(self.broker, self.access, request))

    def _get_offset(self, request: GetOffset) -> None:
        self.answers.append(groups.get_offset(self.broker, request))

    def _get_lag(self, request: GetLag) -> None:
        self.answers.append(groups.get_lag(self.broker, request))

    def _seek(self, request: SeekToTimestamp) -> None:
        self.answers.append(groups.seek_to_timestamp(self, request))

    def _cluster(self, request: Any) -> None:
        name = self.settings.cluster_id
        self.answers.append(cluster.answer(self.access, request, name, self._address()))

    def _address(self) -> str:
        """Return the address at which clients reach this broker."""
        return self.settings.advertised or address_text(self.transport.getHost())

    # -- schemas ------------------------------------------------------------------------------

    def _schemas(self, request: Any) -> None:
        if isinstance(request, RegisterSchema):
            self._shows(request.sdk)
        self.answer(schemas.ANSWERS[type(request)](self, request))

    # -- accounts and the audit trail -----------------------------------------------------------

    def _auth(self, request: Auth) -> None:
        layout = self.settings.auth_success_layout
        self.answers.append(accounts.auth(self, request, layout))

    def _administer(self, request: Any) -> None:
        self.answers.append(_ANSWERS[type(request)](self, request))

    def _query_audit(self, request: QueryAudit) -> None:
        self.answers.append(audit.query(self, request, self.settings.cluster_id))

    def _export_audit(self, request: ExportAudit) -> None:
        self.answers.append(audit.export(self, request, self.settings.cluster_id))

    _DISPATCH: ClassVar[dict[int, tuple[int, Callable[[FlymqConnection, Any], None]]]] = {
        Opcode.CONSUME: (READ, _consume),
        Opcode.CREATE_TOPIC: (ADMIN, _create_topic),
        Opcode.METADATA: (READ, _metadata),
        Opcode.SUBSCRIBE: (READ, _subscribe),
        Opcode.COMMIT: (READ, _commit),
        Opcode.FETCH: (READ, _fetch),
        Opcode.LIST_TOPICS: (0, _list_topics),
        Opcode.DELETE_TOPIC: (ADMIN, _delete_topic),
        Opcode.CONSUME_ZERO_COPY: (READ, _consume),
        Opcode.FETCH_BINARY: (READ, _fetch),
        **dict.fromkeys(range(Opcode.REGISTER_SCHEMA, Opcode.DELETE_SCHEMA + 1), (0, _schemas)),
        Opcode.PRODUCE_WITH_SCHEMA: (0, ProduceConnection.produce_with_schema),
        Opcode.FETCH_DLQ: (READ, _administer),
        Opcode.REPLAY_DLQ: (WRITE, _administer),
        Opcode.PURGE_DLQ: (ADMIN, _administer),
        Opcode.PRODUCE_DELAYED: (WRITE, ProduceConnection.produce_delayed),
        Opcode.CANCEL_DELAYED: (0, _cancel_delayed),
        Opcode.PRODUCE_WITH_TTL: (WRITE, ProduceConnection.produce_with_ttl),
        Opcode.TXN_BEGIN: (0, _begin),
        Opcode.TXN_COMMIT: (0, _commit_transaction),
        Opcode.TXN_ROLLBACK: (0, _roll_back),
        Opcode.TXN_PRODUCE: (WRITE, _produce_in_transaction),
        Opcode.CLUSTER_JOIN: (0, _cluster),
        Opcode.CLUSTER_LEAVE: (0, _cluster),
        Opcode.CLUSTER_STATUS: (0, _cluster),
        Opcode.CLUSTER_METADATA: (0, _cluster_metadata),
        Opcode.GET_OFFSET: (READ, _get_offset),
        Opcode.RESET_OFFSET: (ADMIN, _reset_offset),
        Opcode.LIST_GROUPS: (0, _administer),
        Opcode.DESCRIBE_GROUP: (0, _administer),
        Opcode.GET_LAG: (READ, _get_lag),
        Opcode.DELETE_GROUP: (0, _administer),
        Opcode.SEEK_TO_TIMESTAMP: (READ, _seek),
        Opcode.AUTH: (0, _auth),
        **dict.fromkeys(range(Opcode.WHOAMI, Opcode.ROLE_LIST + 1), (0, _administer)),
        Opcode.AUDIT_QUERY: (0, _query_audit),
        Opcode.AUDIT_EXPORT: (0, _export_audit),
        Opcode.AUDIT_QUERY_JAVA: (0, _query_audit),
        Opcode.AUDIT_EXPORT_JAVA: (0, _export_audit),
    }
    """The permission on the topic that a request needs, and its method. 0: the method checks."""


_ANSWERS: dict[type[Any], Callable[[Any, Any], bytes]] = {
    **accounts.ANSWERS,
    **dead_letters.ANSWERS,
    **group_admin.ANSWERS,
}


class FlymqFactory(ConnectionFactory):
    """Connections of one FlyMQ listener."""

    def __init__(
        self, broker: Broker, clock: Clock, limits: Limits, settings: FlymqSettings
    ) -> None:
        super().__init__("flymq", broker, clock, limits)
        self.settings = settings
        self.decompression = DecompressionQueue(clock, self.slices)
        self.topic_lists = TopicListQueue(self.slices)

    def new_connection(self) -> FlymqConnection:
        return FlymqConnection(self.broker, self.limits.frame_bytes, self.settings)
