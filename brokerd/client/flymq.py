# Tests: tests/client/test_flymq.py
"""A blocking FlyMQ client on a plain or TLS socket. Page: docs/protocols/flymq.rst.

::

    with FlymqClient("127.0.0.1:9092") as client:
        stored = client.produce("orders", b"hi", key=b"customer-7")
        fetched = client.fetch("orders", stored.partition, stored.offset)

One client belongs to one thread. It connects when first used, and again when the connection was
lost, after the pauses of ``delays``. It sends unanswered requests again if they are idempotent, or
with ``resend=True`` all of them: a record may then be stored twice.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Sequence
from typing import Self, TypeVar, cast

from brokerd.client.addresses import open_socket
from brokerd.client.checks import bytes_of, check_bytes, check_number, check_numbers, check_text
from brokerd.client.errors import AddressError, ConnectionLost, OutOfStep
from brokerd.client.exchange import Exchange
from brokerd.client.flymq_admin import FlymqAdmin, FlymqError
from brokerd.client.flymq_groups import FlymqGroups
from brokerd.client.flymq_later import FlymqLater, FlymqTransaction
from brokerd.client.flymq_schemas import FlymqSchemas
from brokerd.client.stream import TIMEOUT, Connect, Stream
from brokerd.codecs.answers import AnswerReader
from brokerd.codecs.flymq import (
    FETCHED_BYTES,
    MAX_LENGTH,
    RECORD_BYTES,
    Acl,
    Acls,
    Answer,
    AuditEvent,
    AuditEvents,
    Auth,
    CancelDelayed,
    ChangePassword,
    Cluster,
    ClusterMetadata,
    ClusterNode,
    ClusterNodes,
    Commit,
    CommitTransaction,
    Consume,
    Consumed,
    CreateTopic,
    CreateUser,
    DeadLetter,
    DeleteGroup,
    DeleteSchema,
    DeleteTopic,
    DeleteUser,
    Done,
    Failed,
    Fetch,
    Fetched,
    FetchedRecord,
    Frame,
    FrameReader,
    GetLag,
    GetOffset,
    Group,
    GroupOffset,
    Identity,
    Lag,
    ListTopics,
    LoggedIn,
    Metadata,
    OneAcl,
    Opcode,
    PartitionOffsets,
    PartitionPlace,
    Position,
    Produce,
    Produced,
    ProduceDelayed,
    ProduceInTransaction,
    ProduceWithSchema,
    ProduceWithTtl,
    QueryAudit,
    RegisterSchema,
    ReplayDlq,
    Request,
    ResetOffset,
    Role,
    SchemaInfo,
    SchemaText,
    Subscribe,
    TopicOffsets,
    TopicPlaces,
    Topics,
    User,
    Validity,
    decode_answer,
    encode_request,
)
from brokerd.errors import RecordTooLarge

__all__ = [
    "DELAYS",
    "Acl",
    "Acls",
    "AddressError",
    "AuditEvent",
    "AuditEvents",
    "Cluster",
    "ClusterNode",
    "ClusterNodes",
    "ConnectionLost",
    "Consumed",
    "DeadLetter",
    "Fetched",
    "FetchedRecord",
    "FlymqClient",
    "FlymqError",
    "FlymqTransaction",
    "Group",
    "GroupOffset",
    "Identity",
    "Lag",
    "LoggedIn",
    "OneAcl",
    "OutOfStep",
    "PartitionOffsets",
    "PartitionPlace",
    "Produced",
    "QueryAudit",
    "Role",
    "SchemaInfo",
    "SchemaText",
    "TopicOffsets",
    "TopicPlaces",
    "User",
    "Validity",
]

DELAYS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Seconds before each new attempt to connect: twice as long each time."""
RECORD_BYTES_MAX = MAX_LENGTH - FETCHED_BYTES - RECORD_BYTES
"""Largest key and value together: they must fit an answer to FETCH."""
_PARTITION_MAX = (1 << 31) - 1
_PRODUCES = (Produce, ProduceWithSchema, ProduceDelayed, ProduceWithTtl, ProduceInTransaction)
_NOT_TWICE = (
    *_PRODUCES,
    CancelDelayed,
    CommitTransaction,
    RegisterSchema,
    DeleteSchema,
    DeleteGroup,
    DeleteTopic,
    ReplayDlq,
    CreateUser,
    DeleteUser,
    ChangePassword,
)

Result = TypeVar("Result", bound=Answer)


class FlymqClient(FlymqAdmin, FlymqGroups, FlymqLater, FlymqSchemas):
    """One connection to a broker.

    :param address: ``host:port``, ``[v6]:port`` or ``unix:PATH``.
    :param user: the account to log in with on each new connection; empty: no login.
    :param timeout: seconds to connect, and seconds without a byte before giving up.
    :param ssl_context: speak TLS, checked against `server_hostname` (the host if None).
    :param sdk: use the SDKs' layout of requests; False: the protocol document's, without filters.
    :param gzip: compress the payloads of PRODUCE.
    :param resend: send any request again after a lost connection.
    :param delays: seconds before each new attempt, for one call; then its error is raised.
    :param sleep: waits so many seconds.
    :param connect: opens the socket; for tests and unusual networks.
    :raises AddressError: the address cannot be read.

    Methods raise FlymqError (the broker refused), ConnectionLost (of which OutOfStep is one) and
    other OSErrors (among them TimeoutError). After any but the first the next call connects anew. A
    wrong argument is a TypeError, ValueError or RecordTooLarge, before anything is sent.
    """

    def __init__(
        self,
        address: str,
        *,
        user: str = "",
        password: str = "",
        timeout: float = TIMEOUT,
        ssl_context: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        sdk: bool = True,
        gzip: bool = False,
        resend: bool = False,
        delays: Sequence[float] = DELAYS,
        sleep: Callable[[float], None] = time.sleep,
        connect: Connect = open_socket,
    ) -> None:
        check_text(user=user, password=password)
        self._login = Auth(user, password) if user else None
        stream = Stream(
            address,
            timeout=timeout,
            ssl_context=ssl_context,
            server_hostname=server_hostname,
            connect=connect,
        )
        self.address = stream.address
        self._sdk = sdk
        self._exchange: Exchange[Request, Answer] = Exchange(
            stream,
            lambda: AnswerReader(FrameReader(), _answer),
            lambda request: encode_request(request, gzip and isinstance(request, Produce)),
            _is_harmless_twice,
            resend=resend,
            delays=delays,
            sleep=sleep,
            greeting=lambda: self._login,
            greeted=_check_login,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one."""
        self._exchange.close()

    def login(self, user: str, password: str) -> LoggedIn:
        """Log in, on later connections too. A failed login changes nothing.

        A new connection logs in as this account at once, and not first as the one before.
        The names in the result are empty if the broker answers in a layout without names.
        """
        check_text(user=user, password=password)
        request = Auth(user, password)
        before = self._login
        if before is not None:
            self._login = request
        try:
            answer = self._call(request, LoggedIn)
        except BaseException:
            self._login = before
            raise
        self._login = request
        return answer

    def change_password(self, user: str, password: str, old_password: str = "") -> None:
        """Change a password; the client's own needs the old one. Later logins use the new one."""
        super().change_password(user, password, old_password)
        if self._login is not None and self._login.user == user:
            self._login = Auth(user, password)

    # -- records ------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        value: bytes,
        key: bytes | str | None = None,
        partition: int | None = None,
    ) -> Produced:
        """Store a record durably. Without a `partition` the broker chooses, by `key` if any."""
        check_text(topic=topic)
        if partition is not None:
            _check_partition(partition)
        check_bytes(value=value)
        keyed = None if key is None else bytes_of("key", key)
        return self._call(
            Produce(topic, keyed or None, value, -1 if partition is None else partition), Produced
        )

    def consume(
        self, topic: str, partition: int, offset: int, *, zero_copy: bool = False
    ) -> Consumed:
        """The record at `offset`; with `zero_copy` by the opcode of that name."""
        _check(topic, partition, offset=offset)
        opcode = Opcode.CONSUME_ZERO_COPY if zero_copy else Opcode.CONSUME
        return self._call(Consume(topic, partition, offset, opcode), Consumed)

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_messages: int = 10,
        filter: str = "",
        *,
        binary: bool = False,
    ) -> Fetched:
        """Up to `max_messages` records from `offset` on that pass the `filter`; maybe none.

        With `binary` by the opcode FETCH_BINARY.
        """
        _check(topic, partition, offset=offset, max_messages=max_messages)
        check_text(filter=filter)
        if filter and not self._sdk:
            raise ValueError("filter needs the SDKs' layout: make the client with sdk=True")
        opcode = Opcode.FETCH_BINARY if binary else Opcode.FETCH
        most = min(max_messages, _PARTITION_MAX)
        request = Fetch(topic, partition, offset, most, filter, self._sdk, opcode)
        return self._call(request, Fetched)

    # -- topics -------------------------------------------------------------------------------

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Create a topic; an existing one is not changed."""
        check_text(topic=topic)
        check_number("partitions", partitions, 0, _PARTITION_MAX)
        self._call(CreateTopic(topic, partitions), Done)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, its groups and its records; an unknown one is no error."""
        check_text(topic=topic)
        self._call(DeleteTopic(topic), Done)

    def list_topics(self) -> tuple[str, ...]:
        """The names of all topics but internal ones."""
        return self._call(ListTopics(), Topics).names

    def metadata(self, topic: str) -> TopicOffsets:
        """A topic's partitions, with the oldest offset and the next one of each."""
        check_text(topic=topic)
        return self._call(Metadata(topic), TopicOffsets)

    def cluster_metadata(self, topic: str = "") -> Cluster:
        """Return the addresses of the partitions of a topic, or of all topics."""
        check_text(topic=topic)
        return self._call(ClusterMetadata(topic), Cluster)

    # -- groups -------------------------------------------------------------------------------

    def subscribe(self, topic: str, group: str, partition: int = 0, mode: str = "commit") -> int:
        """Join a group; the offset to begin with by ``earliest``, ``latest`` or ``commit``."""
        _check(topic, partition)
        check_text(group=group, mode=mode)
        return self._call(Subscribe(topic, group, partition, mode, self._sdk), Position).offset

    def commit(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Store the next offset to read, durably."""
        _check(topic, partition, offset=offset)
        check_text(group=group)
        self._call(Commit(topic, group, partition, offset), Done)

    def get_offset(self, topic: str, group: str, partition: int = 0) -> int:
        """The committed offset, 0 without one."""
        _check(topic, partition)
        check_text(group=group)
        return self._call(GetOffset(topic, group, partition), Position).offset

    def reset_offset(
        self, topic: str, group: str, partition: int, mode: str, offset: int | None = None
    ) -> None:
        """Commit by mode: ``earliest``, ``latest``, or ``offset`` with an `offset`."""
        _check(topic, partition)
        check_text(group=group, mode=mode)
        if (mode == "offset") != (offset is not None):
            raise ValueError("offset goes with the mode 'offset', and with no other")
        if offset is not None:
            check_numbers(offset=offset)
        self._call(ResetOffset(topic, group, partition, mode, offset, self._sdk), Done)

    def get_lag(self, topic: str, group: str, partition: int = 0) -> Lag:
        """Return the number of records after a group's commit."""
        _check(topic, partition)
        check_text(group=group)
        return self._call(GetLag(topic, group, partition), Lag)

    # -- on the wire --------------------------------------------------------------------------

    def _call(self, request: Request, kind: type[Result]) -> Result:
        (answer,) = self.send_many([request])
        if isinstance(answer, Failed):
            raise FlymqError(answer.text)
        return cast(Result, answer)

    def send_many(self, requests: Sequence[Request]) -> list[Answer]:
        """Send requests without waiting for each answer; return the answers in order.

        The answer to a refused request is a `Failed`; the others are carried out.

        :raises ConnectionLost: with the answers received so far.
        """
        for request in requests:
            _check_size(request)
        return self._exchange.send_many(requests)


def _check_login(answer: Answer) -> None:
    if isinstance(answer, Failed):
        raise FlymqError(answer.text)


def _is_harmless_twice(request: Request) -> bool:
    """Return whether a request is idempotent."""
    return not isinstance(request, _NOT_TWICE)


def _answer(request: Request, frame: Frame) -> Answer:
    opcode, _, payload = frame
    return decode_answer(request, opcode, payload)


def _check(topic: str, partition: int, **numbers: int) -> None:
    check_text(topic=topic)
    _check_partition(partition)
    check_numbers(**numbers)


def _check_partition(partition: int) -> None:
    """A partition, or a number of partitions."""
    check_number("partition", partition, 0, _PARTITION_MAX)


def _check_size(request: Request) -> None:
    """Refuse a record that does not fit an answer to FETCH."""
    if isinstance(request, _PRODUCES):
        key = request.key if isinstance(request, Produce) else None
        size = len(key or b"") + len(request.value)
        if size > RECORD_BYTES_MAX:
            raise RecordTooLarge(
                f"key and value take {size} bytes, and they may have {RECORD_BYTES_MAX}: send less"
            )
