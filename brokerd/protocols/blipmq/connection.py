# Tests: tests/protocols/test_blipmq.py, tests/protocols/test_blipmq_poll.py
"""BlipMQ on the wire: docs/protocols/blipmq.rst.

Frames are the codec's work, order and durability the connection's; here each frame becomes calls of
the broker, and what it says becomes an answer, or none.
POLL and ACK are those of `PollConnection`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import ClassVar

from brokerd.broker import Broker, Clock, Congested
from brokerd.broker.model.topic_admin import check_topic_name
from brokerd.broker.subscriptions import Floors
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
    encode,
    frame_reader,
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
from brokerd.protocols.base.framing import FrameOnHold
from brokerd.protocols.base.transport import acknowledge, peer_text
from brokerd.protocols.blipmq.poll import QOS_0, PollConnection, Polls, split_tag
from brokerd.security import ADMIN, READ, WRITE, Access
from brokerd.security.audit import topic_auto_created
from brokerd.values import Encoding, Format


@dataclass(frozen=True)
class BlipmqSettings:
    """What is BlipMQ's alone; section [blipmq] of etc/brokerd.toml."""

    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Keys that AUTH accepts; none: any."""
    max_deliveries: int = 3
    retry_base_us: int = 100_000
    grace_us: int = 3_600_000_000
    look_back_us: int = 0
    message_ttl_us: int = 0
    """0: as the topic says."""


_HANDSHAKE = frozenset((FrameType.HELLO, FrameType.AUTH))
_ANSWERED_BY_NACKS = frozenset((FrameType.PUBLISH, FrameType.ACK, FrameType.NACK, FrameType.PONG))
"""Frames that have no answer when all is well."""
_NOT_FOR_GOOD = frozenset((Code.FAILED, Code.UNAUTHORIZED))
"""What is said of messages that may be published, if not now or not by this client."""


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
        self._is_unread = False
        """Whether the peer does not read what it is sent."""
        self._untold = 0
        """Messages that were refused for now, among the NACKs that were dropped."""
        self._is_silent = False
        """Whether what was read last had no answer so far."""
        self._floors: Floors | None = None
        """Where the SUBSCRIBE in hand is to begin."""

    # -- frames -------------------------------------------------------------------------------

    def dataReceived(self, data: bytes) -> None:
        """Take bytes in; what has no answer to carry the acknowledgement is acknowledged at once.

        Otherwise a peer with Nagle's algorithm on waits 40 ms with its next frame.
        """
        self._is_silent = True
        super().dataReceived(data)
        if self._is_silent:
            acknowledge(self.transport)

    def run(self) -> None:
        """Handle the frames taken in, until one has to wait."""
        super().run()
        if self.answers:
            self._is_silent = False

    def handle(self, frame: bytes) -> None:
        """Carry a frame out."""
        frame_type = type_of(frame)
        if self._is_unread and frame_type not in _ANSWERED_BY_NACKS:
            self.hold(Hold.READER)
            raise FrameOnHold
        if self._authenticated or frame_type in _HANDSHAKE:
            self._DISPATCH[frame_type](self, frame)
        else:
            self._nack(frame, Code.UNAUTHORIZED, UNAUTHENTICATED)

    def refuse(self, frame: bytes, refusal: BrokerdError) -> None:
        """Answer NACK, or close on a type that this version cannot know how to answer."""
        if isinstance(refusal, InvalidFrame):
            self._nack(frame, Code.INVALID, str(refusal))
        elif isinstance(refusal, Denied | AuthenticationRequired):
            self._nack(frame, Code.UNAUTHORIZED, str(refusal))
        elif isinstance(refusal, UnknownFrameType):
            self.close_here()
        else:
            super().refuse(frame, refusal)

    # -- answers ------------------------------------------------------------------------------

    def _answer(self, answer: bytes) -> None:
        """Answer with what shows nothing of the broker's, behind what this connection wrote."""
        if self.written_ticket > self.journal.durable_ticket:
            self.answers.append(answer)
        else:
            self.answer_read(answer)

    def _nack(self, frame: bytes, code: int, text: str) -> None:
        if self._is_unread:
            self.factory.nacks_dropped += 1
            self._untold += code in _NOT_FOR_GOOD and type_of(frame) == FrameType.PUBLISH
        else:
            self._answer(encode(Nack(correlation_id_of(frame), code, text)))

    def pauseProducing(self) -> None:
        """The peer does not read: it may be a publisher that never does, so go on reading.

        From now on NACKs are dropped, and a frame that has another answer waits.
        """
        self._is_unread = True

    def resumeProducing(self) -> None:
        """The peer has read everything."""
        self._is_unread = False
        self.release(Hold.READER)

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
            self.access = self.factory.log_in(self.access, peer_text(self.transport), auth.key)
        except LoginFailed:
            self._nack(frame, Code.UNAUTHORIZED, WRONG_KEY)
            return
        except LoginThrottled as refusal:
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
            if qos:
                self._nack(frame, Code.FAILED, f"durable publish failed: {refusal}")
            else:
                self.factory.publishes_dropped += 1

    def _append(self, topic_name: str, message: bytes, metadata: bytes | None) -> None:
        broker = self.broker
        ttl_us = self._settings.message_ttl_us
        if broker.topics.find(topic_name) is None:
            check_topic_name(topic_name)  # refuse a bad name even when the log has no room
        broker.writer.produce(
            self.access.actor,
            topic_name,
            None,
            message,
            Encoding.BYTES,
            None,
            metadata,
            Format.BLIPMQ,
            broker.records.expiry_us(ttl_us) if ttl_us else None,
        )
        self.wrote()

    # -- subscribing --------------------------------------------------------------------------

    def _subscribe(self, frame: bytes) -> None:
        correlation_id, topic_name, qos = decode_subscribe(frame)
        floors, self._floors = self._floors, None
        self.access.require(READ, topic_name)
        settings = self._settings
        if settings.look_back_us and floors is None:
            self._look_back(frame, topic_name)
        try:
            is_new = self._makes(topic_name)
            subscription_id = self.broker.subscriptions.subscribe(
                topic_name,
                qos,
                settings.max_deliveries,
                settings.retry_base_us,
                settings.grace_us,
                floors,
            )
        except Congested:
            self._floors = floors
            raise
        except InvalidName as refusal:
            raise InvalidFrame(str(refusal)) from None
        except BrokerdError as refusal:
            self._nack(frame, Code.FAILED, f"subscribe failed: {refusal}")
        else:
            if is_new:
                self.broker.audit.record(topic_auto_created(self.access.actor, topic_name))
            self.wrote()
            self.answers.append(accepted(correlation_id, subscription_id))

    def _makes(self, topic_name: str) -> bool:
        """Whether there is no such topic. Raises `UnknownTopic` if this client may not make it."""
        if self.broker.topics.find(topic_name) is not None:
            return False
        check_topic_name(topic_name)
        if not self.access.may(WRITE | ADMIN, topic_name):
            raise UnknownTopic("the topic does not exist, and you may not make it; try again later")
        return True

    def _look_back(self, frame: bytes, topic_name: str) -> None:
        """Find where the subscription is to begin; raises `FrameOnHold`."""
        broker = self.broker
        self.hold(Hold.READING)

        def found(floors: Floors | None, error: Exception | None) -> None:
            self.guarded(self._looked_back, frame, floors, error)

        broker.subscriptions.floors_at(
            topic_name, broker.time.time_us() - self._settings.look_back_us, found
        )
        raise FrameOnHold

    def _looked_back(self, frame: bytes, floors: Floors | None, error: Exception | None) -> None:
        if self.gone:
            return
        if error is not None:
            self.frames.pop(0)
            self._nack(frame, Code.FAILED, f"subscribe failed: {error}")
        self._floors = floors
        self.release(Hold.READING)

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
            pass  # no room for a lease: the message stays where it is, and a POLL is not refused

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
            self._nack(frame, Code.FAILED, f"acknowledge failed: {refusal}")

    def _unknown(self, frame: bytes) -> None:
        """The 404 tells of what may not be durable yet: an ACK before, or the end of a lease."""
        if self._is_unread:
            self.factory.nacks_dropped += 1
        else:
            nack = Nack(correlation_id_of(frame), Code.UNKNOWN, UNKNOWN_DELIVERY)
            self.answers.append(encode(nack))

    # -- others -------------------------------------------------------------------------------

    def _ping(self, frame: bytes) -> None:
        """PONG leaves when all that this connection published is durable, or was refused.

        Refusals that were not told one by one are told here, before it.
        """
        if self._untold:
            text = f"durable publish failed: {self._untold} refusals were not sent, for want of a "
            self._nack(frame, Code.FAILED, f"{text}reader; publish all since the last PONG again")
            self._untold = 0
        self._answer(encode(Pong(correlation_id_of(frame))))

    def _pass_over(self, frame: bytes) -> None:
        """A PONG or NACK means nothing to a broker."""

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
        """NACKs to peers that did not read."""
        self._settings = settings
        self._digests = [_digest(key) for key in settings.api_keys]

    def log_in(self, access: Access, peer: str, key: str) -> Access:
        """Who a client is that sent this key; ``access`` is who it was before.

        Without a key it stays who its certificate says. Raises `LoginFailed`, `LoginThrottled`.
        """
        if not self.guard.auth:
            if not self._accepts(key):
                raise LoginFailed(WRONG_KEY)
            return access
        if not key and access.is_known:
            return access
        return self.guard.log_in_with_key(self.name, peer, key)

    def _accepts(self, key: str) -> bool:
        """Whether a key lets its client in while security is off; takes as long for any."""
        given = _digest(key)
        matches = [compare_digest(given, digest) for digest in self._digests]
        return any(matches) or not matches

    def counters(self) -> dict[str, int]:
        """What clients are not told of."""
        return {
            "publishes_dropped": self.publishes_dropped,
            "nacks_dropped": self.nacks_dropped,
            "deliveries_skipped": self.polls.skipped,
        }

    def new_connection(self) -> BlipmqConnection:
        return BlipmqConnection(self.broker, self.polls, self.limits.frame_bytes, self._settings)


def _digest(key: str) -> bytes:
    return sha256(key.encode()).digest()
