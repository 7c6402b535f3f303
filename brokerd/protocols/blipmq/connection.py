# Tests: tests/protocols/test_blipmq.py, tests/protocols/test_blipmq_poll.py
"""BlipMQ on the wire: docs/protocols/blipmq.rst.

The codec parses frames. The base class keeps order and durability. This module turns each frame
into calls of the broker and their results into an answer, if the frame has one. `PollConnection`
handles POLL and ACK.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import ClassVar

from brokerd.broker import Broker, Clock, Congested
from brokerd.broker.records.size import values_frame_bytes
from brokerd.broker.subscriptions import StartOffsets
from brokerd.broker.topic_admin import check_topic_name
from brokerd.codecs.blipmq import (
    AUTH_TWICE,
    HELLO_MISSING,
    HELLO_TWICE,
    UNAUTHENTICATED,
    UNKNOWN_DELIVERY,
    VERSION,
    WRONG_KEY,
    WRONG_VERSION,
    ZERO_ID,
    Code,
    FrameType,
    InvalidFrame,
    Nack,
    Pong,
    UnknownFrameType,
    accepted,
    correlation_id_of,
    decode_ack,
    decode_auth,
    decode_hello,
    decode_poll,
    decode_publish,
    decode_subscribe,
    delivery_head,
    encode,
    frame_reader,
    poll_run,
    pongs,
    publish_run,
    type_of,
)
from brokerd.errors import (
    AuthenticationRequired,
    BrokerdError,
    Denied,
    InvalidName,
    LeaseLost,
    LoginFailed,
    LoginThrottled,
    UnknownTopic,
)
from brokerd.protocols.base.connection import Hold, Limits
from brokerd.protocols.base.factory import ConnectionFactory
from brokerd.protocols.base.framing import RUN_FRAMES_MIN, FrameOnHold
from brokerd.protocols.base.request_times import OPERATION
from brokerd.protocols.base.transport import acknowledge, peer_text
from brokerd.protocols.blipmq.poll import QOS_0, PollConnection, Polls, split_tag
from brokerd.security import ADMIN, READ, WRITE, Access
from brokerd.security.audit import topic_auto_created
from brokerd.security.quotas import Use
from brokerd.values import Encoding, Format


@dataclass(frozen=True)
class BlipmqSettings:
    """Section [blipmq] of etc/brokerd.toml."""

    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Keys that AUTH accepts. If there are none, it accepts any key."""
    max_deliveries: int = 3
    retry_base_us: int = 100_000
    grace_us: int = 3_600_000_000
    look_back_us: int = 0
    message_ttl_us: int = 0
    """0: the topic's own setting."""


_HANDSHAKE = frozenset((FrameType.HELLO, FrameType.AUTH))
_ANSWERED_BY_NACKS = frozenset((FrameType.PUBLISH, FrameType.ACK, FrameType.NACK, FrameType.PONG))
"""Frames without an answer, unless they fail: then it is a NACK."""
_USES: dict[int, int] = {
    FrameType.PUBLISH: Use.PRODUCE,
    FrameType.SUBSCRIBE: Use.READ,
    FrameType.POLL: Use.READ,
}
"""Frames that count against quotas."""
_RETRYABLE = frozenset((Code.FAILED, Code.UNAUTHORIZED))
"""Codes of messages that can be published later or by another client."""


_OPERATIONS: dict[int, str] = {one: one.name.lower() for one in FrameType}
"""Names of operations in the metrics."""


class BlipmqConnection(PollConnection):
    """One client's connection."""

    factory: BlipmqFactory

    def __init__(
        self, broker: Broker, polls: Polls, frame_bytes: int, settings: BlipmqSettings
    ) -> None:
        super().__init__(broker, frame_reader(frame_bytes), polls)
        self._settings = settings
        self._said_hello = False
        self._authenticated = False
        self._unreported = 0
        """Dropped NACKs with a `_RETRYABLE` code, to be reported before the next PONG."""
        self._is_silent = False
        """Whether the frames received last had no answer so far."""
        self._start_offsets: StartOffsets | None = None
        """Start offsets of the current SUBSCRIBE."""

    # -- frames -------------------------------------------------------------------------------

    def dataReceived(self, data: bytes) -> None:
        """Handle bytes, and have the kernel acknowledge frames without an answer at once.

        Otherwise a peer with Nagle's algorithm delays its next frame by 40 ms.
        """
        self._is_silent = True
        super().dataReceived(data)
        if self._is_silent:
            acknowledge(self.transport)

    def handle_requests(self) -> None:
        """Handle the received frames until one has to wait."""
        super().handle_requests()
        if self.answers:
            self._is_silent = False

    def handle(self, frame: bytes) -> None:
        """Carry out a frame."""
        frame_type = type_of(frame)
        if self.peer_is_not_reading and frame_type not in _ANSWERED_BY_NACKS:
            self.hold(Hold.SLOW_READER)
            raise FrameOnHold
        if self._authenticated or frame_type in _HANDSHAKE:
            self._DISPATCH[frame_type](self, frame)
        else:
            self._nack(frame, Code.UNAUTHORIZED, UNAUTHENTICATED)

    def handle_run(self, frames: list[bytes]) -> int:
        """Carry out a run of PUBLISH, or of POLL and ACK, in one step; answer PINGs between."""
        if not self._authenticated or self._unreported:
            return 0
        if frames[0][0] == FrameType.PUBLISH:
            return self._publish_run(frames)
        return self._lease_run(frames)

    def _publish_run(self, frames: list[bytes]) -> int:
        """Append the messages of PUBLISH frames for one topic in one step; answer PINGs between."""
        if self._settings.message_ttl_us:
            return 0
        topic_name, messages, pings = publish_run(frames)
        broker, count = self.broker, len(messages) + len(pings)
        topic = broker.topics.find(topic_name) if count >= RUN_FRAMES_MIN else None
        if (
            topic is None
            or len(topic.partitions) != 1
            or (pings and self.peer_is_not_reading)
            or not self.access.may(WRITE, topic_name)
            or not broker.group_commit.has_room(values_frame_bytes(messages))
        ):
            return 0
        broker.appender.append_values(topic.partitions[0], messages, Format.BLIPMQ)
        self.wrote()
        if pings:
            self.answer_run(pongs(pings), len(pings))
        return count

    def _lease_run(self, frames: list[bytes]) -> int:
        """Answer POLLs and settle the messages of ACKs, for one subscription in one step."""
        subscription_id, requests = poll_run(frames)
        if len(requests) < RUN_FRAMES_MIN or self.peer_is_not_reading:
            return 0
        with suppress(BrokerdError):  # the first request raises the error again
            count, deliveries, settled = self.lease_run(subscription_id, requests)
            delivered = iter(deliveries)
            answers: list[bytes] = []
            answered = 0
            for kind, number in requests[:count]:
                if kind == FrameType.POLL:
                    delivery = next(delivered, None)
                    if delivery is None:
                        continue
                    tag, topic, message = delivery
                    answers += delivery_head(tag, 1, topic, len(message)), message
                elif kind == FrameType.PING:
                    answers.append(encode(Pong(number)))
                elif settled:
                    settled -= 1
                    continue
                else:
                    nack = self._settle_in_run(subscription_id, number)
                    if nack is None:
                        continue
                    answers.append(encode(nack))
                answered += 1
            if answered:
                self.answer_run(b"".join(answers), answered)
            return count
        return 0

    def _settle_in_run(self, subscription_id: int, tag: int) -> Nack | None:
        """Settle a message that the run could not settle; return the NACK if that fails, too.

        The large group of the run's leases has another table now, or the log has only room for
        events, which a run does not use.
        """
        try:
            self.settle(subscription_id, *split_tag(tag))
        except LeaseLost:
            return Nack(tag, Code.UNKNOWN, UNKNOWN_DELIVERY)
        except BrokerdError as refusal:
            self.count_refusal(refusal)
            return Nack(tag, Code.FAILED, f"acknowledge failed: {refusal}")
        return None

    def quota_use(self, frame: bytes) -> tuple[int, int]:
        """Return how a frame counts against quotas. Only PUBLISH, SUBSCRIBE and POLL count."""
        return _USES.get(frame[0], Use.FREE), len(frame)

    def refuse(self, frame: bytes, refusal: BrokerdError) -> None:
        """Answer NACK, or close if the frame type is unknown."""
        if isinstance(refusal, InvalidFrame):
            self._nack(frame, Code.INVALID, str(refusal))
        elif isinstance(refusal, Denied | AuthenticationRequired):
            self._nack(frame, Code.UNAUTHORIZED, str(refusal))
        elif isinstance(refusal, UnknownFrameType):
            self.close_here()
        else:
            super().refuse(frame, refusal)

    def operation_of(self, frame: bytes) -> str:
        """Return the name of the frame type."""
        return _OPERATIONS.get(frame[0], OPERATION)

    # -- answers ------------------------------------------------------------------------------

    def _answer(self, answer: bytes) -> None:
        """Send an answer without broker data after this connection's earlier writes are durable."""
        if self.written_ticket > self.group_commit.durable_ticket:
            self.answers.append(answer)
        else:
            self.answer_at_once(answer)

    def _nack(self, frame: bytes, code: int, text: str) -> None:
        if self.peer_is_not_reading:
            self.factory.nacks_dropped += 1
            self._unreported += code in _RETRYABLE and type_of(frame) == FrameType.PUBLISH
        else:
            self._answer(encode(Nack(correlation_id_of(frame), code, text)))

    def pauseProducing(self) -> None:
        """Drop NACKs and let frames with other answers wait: the peer does not read.

        The socket is still read, since some publishers never read.
        """
        self.peer_is_not_reading = True

    # -- HELLO and AUTH -----------------------------------------------------------------------

    def _hello(self, frame: bytes) -> None:
        if self._said_hello:
            raise InvalidFrame(HELLO_TWICE)
        hello = decode_hello(frame)
        if hello.version != VERSION:
            self._nack(frame, Code.VERSION, WRONG_VERSION)
            return
        self._said_hello = True
        self._answer(accepted(hello.correlation_id))

    def _auth(self, frame: bytes) -> None:
        if not self._said_hello:
            raise InvalidFrame(HELLO_MISSING)
        if self._authenticated:
            raise InvalidFrame(AUTH_TWICE)
        auth = decode_auth(frame)
        try:
            self.logged_in(self.factory.log_in(self.access, peer_text(self.transport), auth.key))
        except LoginFailed as refusal:
            self.count_refusal(refusal)
            self._nack(frame, Code.UNAUTHORIZED, WRONG_KEY)
            return
        except LoginThrottled as refusal:
            self.count_refusal(refusal)
            self._nack(frame, Code.UNAUTHORIZED, str(refusal))
            return
        self._authenticated = True
        self._answer(accepted(auth.correlation_id))

    # -- publishing ---------------------------------------------------------------------------

    def _publish(self, frame: bytes) -> None:
        _, qos, topic_name, message = decode_publish(frame)
        self.access.require(WRITE, topic_name)
        try:
            self._append(topic_name, message, None if qos else QOS_0)
        except Congested:
            raise
        except InvalidName as refusal:
            raise InvalidFrame(str(refusal)) from None
        except BrokerdError as refusal:
            self.count_refusal(refusal)
            if qos:
                self._nack(frame, Code.FAILED, f"durable publish failed: {refusal}")
            else:
                self.factory.publishes_dropped += 1

    def _append(self, topic_name: str, message: bytes, metadata: bytes | None) -> None:
        broker = self.broker
        ttl_us = self._settings.message_ttl_us
        broker.topic_writer.produce(
            self.access,
            topic_name,
            None,
            message,
            Encoding.BYTES,
            None,
            metadata,
            Format.BLIPMQ,
            broker.appender.expiry_us(ttl_us) if ttl_us else None,
        )
        self.wrote()

    # -- subscribing --------------------------------------------------------------------------

    def _subscribe(self, frame: bytes) -> None:
        correlation_id, topic_name, qos = decode_subscribe(frame)
        start_offsets, self._start_offsets = self._start_offsets, None
        self.access.require(READ, topic_name)
        settings = self._settings
        if settings.look_back_us and start_offsets is None:
            self._look_back(frame, topic_name)
        try:
            is_new = self._makes(topic_name)
            try:
                subscription_id = self.broker.subscriptions.subscribe(
                    topic_name,
                    qos,
                    settings.max_deliveries,
                    settings.retry_base_us,
                    settings.grace_us,
                    start_offsets,
                )
            finally:  # a refused one may have created the topic, too
                if is_new and self.broker.topics.find(topic_name) is not None:
                    self.broker.audit.record(topic_auto_created(self.access.actor, topic_name))
        except Congested:
            self._start_offsets = start_offsets
            raise
        except InvalidName as refusal:
            raise InvalidFrame(str(refusal)) from None
        except BrokerdError as refusal:
            self.count_refusal(refusal)
            self._nack(frame, Code.FAILED, f"subscribe failed: {refusal}")
        else:
            self.wrote()
            self.answers.append(accepted(correlation_id, subscription_id))

    def _makes(self, topic_name: str) -> bool:
        """Return whether the topic must be created. Raises `UnknownTopic` without permission."""
        if self.broker.topics.find(topic_name) is not None:
            return False
        check_topic_name(topic_name)
        if not self.access.may(WRITE | ADMIN, topic_name):
            raise UnknownTopic(
                "the topic does not exist, and you may not create it; try again later"
            )
        return True

    def _look_back(self, frame: bytes, topic_name: str) -> None:
        """Find the start offsets of the subscription; raises `FrameOnHold`."""
        broker = self.broker
        self.hold(Hold.IN_PROGRESS)

        def found(start_offsets: StartOffsets | None, error: Exception | None) -> None:
            self.close_on_fault(self._looked_back, frame, start_offsets, error)

        broker.subscriptions.start_offsets_at(
            topic_name, broker.time.time_us() - self._settings.look_back_us, found
        )
        raise FrameOnHold

    def _looked_back(
        self, frame: bytes, start_offsets: StartOffsets | None, error: Exception | None
    ) -> None:
        if self.gone:
            return
        if error is not None:
            self.frames.pop(0)
            self.used_quota()
            self._nack(frame, Code.FAILED, f"subscribe failed: {error}")
        self._start_offsets = start_offsets
        self.unhold(Hold.IN_PROGRESS)

    # -- deliveries ---------------------------------------------------------------------------

    def _poll(self, frame: bytes) -> None:
        correlation_id, subscription_id = decode_poll(frame)
        if not subscription_id:
            raise InvalidFrame(ZERO_ID)
        try:
            self.deliver(correlation_id, subscription_id)
        except Congested:
            raise
        except BrokerdError:
            pass  # no room for a lease: the message stays, and a POLL is never refused

    def _ack(self, frame: bytes) -> None:
        tag, subscription_id = decode_ack(frame)
        if not subscription_id:
            raise InvalidFrame(ZERO_ID)
        try:
            self.settle(subscription_id, *split_tag(tag))
        except Congested:
            raise
        except LeaseLost:
            self._unknown(frame)
        except BrokerdError as refusal:
            self.count_refusal(refusal)
            self._nack(frame, Code.FAILED, f"acknowledge failed: {refusal}")

    def _unknown(self, frame: bytes) -> None:
        """Answer NACK 404, which may show a change that is not durable yet."""
        if self.peer_is_not_reading:
            self.factory.nacks_dropped += 1
        else:
            nack = Nack(correlation_id_of(frame), Code.UNKNOWN, UNKNOWN_DELIVERY)
            self.answers.append(encode(nack))

    # -- others -------------------------------------------------------------------------------

    def _ping(self, frame: bytes) -> None:
        """Answer PONG when every message published before is durable or refused.

        A NACK before it reports refusals whose own NACKs were dropped.
        """
        if self._unreported:
            text = f"durable publish failed: {self._unreported} refusals were not sent because you "
            self._nack(
                frame, Code.FAILED, f"{text}did not read; publish all since the last PONG again"
            )
            self._unreported = 0
        self._answer(encode(Pong(correlation_id_of(frame))))

    def _pass_over(self, frame: bytes) -> None:
        """Ignore a PONG or NACK from a client."""

    _DISPATCH: ClassVar[dict[int, Callable[[BlipmqConnection, bytes], None]]] = {
        FrameType.HELLO: _hello,
        FrameType.AUTH: _auth,
        FrameType.PUBLISH: _publish,
        FrameType.SUBSCRIBE: _subscribe,
        FrameType.ACK: _ack,
        FrameType.NACK: _pass_over,
        FrameType.PING: _ping,
        FrameType.PONG: _pass_over,
        FrameType.POLL: _poll,
    }


class BlipmqFactory(ConnectionFactory):
    """Connections of one BlipMQ listener."""

    def __init__(
        self, broker: Broker, clock: Clock, limits: Limits, settings: BlipmqSettings
    ) -> None:
        super().__init__("blipmq", broker, clock, limits)
        self.polls = Polls(broker)
        self.publishes_dropped = 0
        """Messages of QoS 0 that the broker had no room for."""
        self.nacks_dropped = 0
        """NACKs that were dropped because the peer did not read."""
        self._settings = settings
        self.accept_keys(settings.api_keys)

    def accept_keys(self, keys: Iterable[str]) -> None:
        """Accept these keys from now on, while security is off; clients stay logged in."""
        self._digests = [_digest(key) for key in keys]

    def log_in(self, access: Access, peer: str, key: str) -> Access:
        """Return the access of a client that sent this key; ``access`` is its access before.

        An empty key keeps the access of its certificate. Raises `LoginFailed`, `LoginThrottled`.
        """
        if not self.guard.auth:
            if not self._accepts(key):
                raise LoginFailed(WRONG_KEY)
            return access
        if not key and access.is_known:
            return access
        return self.guard.log_in_with_key(self.name, peer, key)

    def _accepts(self, key: str) -> bool:
        """Return whether AUTH accepts a key while security is off, in constant time."""
        given = _digest(key)
        matches = [compare_digest(given, digest) for digest in self._digests]
        return any(matches) or not matches

    def counters(self) -> dict[str, int]:
        """Return the counts of dropped messages and NACKs."""
        return {
            "publishes_dropped": self.publishes_dropped,
            "nacks_dropped": self.nacks_dropped,
            "deliveries_skipped": self.polls.skipped,
        }

    def new_connection(self) -> BlipmqConnection:
        return BlipmqConnection(self.broker, self.polls, self.limits.frame_bytes, self._settings)


def _digest(key: str) -> bytes:
    return sha256(key.encode()).digest()
