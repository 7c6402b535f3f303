# Tests: tests/simulator/test_format_clients.py
"""A random BlipMQ client: publishes, subscribes, polls and acknowledges.

Only SUBSCRIBE has an answer on success. So a PING follows each request, except a PUBLISH before
another PUBLISH. Its PONG proves that the broker carried out all requests before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from random import Random
from typing import Any, ClassVar, NamedTuple

from brokerd.codecs import blipmq
from brokerd.codecs.mamamia.packing import pack
from simulator.clients.conversation import (
    AnswerPart,
    Ask,
    EncodedRequest,
    RefusedGreeting,
    WrongAnswer,
)
from simulator.clients.credentials import Credentials
from simulator.clients.values import ValueMaker
from simulator.history.operations import History, Message, Operation, Place, Produce
from simulator.history.registry import WireLogIn
from simulator.history.subscriptions import Acknowledge, Handed, Poll, Subscribe
from simulator.payloads import payload_of
from simulator.plan import Action, ClientPlan, Topic

KEY = "dev-key"
"""The key of clients without an account of their own."""
LENGTH_BYTES = 4
FIRST_ID = 1 << 40
"""The first correlation id. Delivery tags are lower."""
QOS_0 = pack({"qos": 0})
"""The metadata of a message of QoS 0. Messages of QoS 1 have none."""
PARTITION_OFFSETS = 1 << 48
"""A delivery tag is the partition times this number, plus the offset, plus 1."""
TRIES = 4
REMEMBERED = 50
THROTTLED = ("too many failed logins", "too many logins at once")
"""The begin of the only refusal that the login of a greeting may get."""
SUBSCRIPTIONS_MAX = 8
"""The most subscriptions of a client. It polls as many of the newest ones."""
UNNUMBERED = -1


class _Expected(NamedTuple):
    """A pending request that may have an answer."""

    operation: Operation
    correlation_id: int
    """The correlation id of the answer, except for a delivery of QoS 1."""


class _Probe(NamedTuple):
    """A PING. Its PONG completes all requests before it."""

    correlation_id: int


class BlipMQWire:
    """A `Wire` of BlipMQ. Without a ``key``, the first request logs in."""

    def __init__(self, key: str | None = KEY) -> None:
        self._ids = count(FIRST_ID)
        self._reader = blipmq.frame_reader()
        self._expected: deque[_Expected | _Probe] = deque()
        hello = blipmq.Hello(next(self._ids))
        self._greeted = deque([hello.correlation_id])
        self.greeting = blipmq.encode(hello)
        if key is not None:
            auth = blipmq.Auth(next(self._ids), key)
            self._greeted.append(auth.correlation_id)
            self.greeting += blipmq.encode(auth)

    def encode(self, asks: Sequence[Ask]) -> list[EncodedRequest]:
        """See `Wire.encode`."""
        last = len(asks) - 1
        return [self._sent(ask, index == last) for index, ask in enumerate(asks)]

    def _sent(self, ask: Ask, is_last: bool) -> EncodedRequest:
        message: Any = ask.request
        if not isinstance(message, blipmq.Ack):
            message = message._replace(correlation_id=next(self._ids))
        self._expected.append(_Expected(ask.operation, message.correlation_id))
        if isinstance(message, blipmq.Auth):
            return EncodedRequest(blipmq.encode(message))
        if isinstance(message, blipmq.Publish) and not is_last:
            return EncodedRequest(blipmq.encode(message))
        probe = _Probe(next(self._ids))
        self._expected.append(probe)
        return EncodedRequest(
            blipmq.encode(message), blipmq.encode(blipmq.Ping(probe.correlation_id))
        )

    def feed(self, data: bytes) -> Iterator[AnswerPart]:
        """See `Wire.feed`."""
        for frame in self._reader.feed(data):
            try:
                message = blipmq.decode(frame)
            except (blipmq.InvalidFrame, blipmq.UnknownFrameType) as error:
                raise WrongAnswer(f"was sent a broken frame: {error}") from error
            yield AnswerPart(LENGTH_BYTES + len(frame), self._take(message))
        if self._reader.error is not None:
            raise WrongAnswer(f"was sent a broken frame: {self._reader.error}")

    def _take(self, message: blipmq.Message) -> int:
        """Handle a frame; return the number of requests that it completes."""
        match message:
            case blipmq.Ack() if self._greeted:
                if message != (self._greeted.popleft(), 0):
                    raise WrongAnswer(f"was greeted with {message}")
                return 0
            case blipmq.Nack() if self._refuses_greeting(message):
                raise RefusedGreeting(message.text)
            case blipmq.Pong():
                return self._over(message)
            case blipmq.Nack() | blipmq.Ack() if self._is_of_login(message):
                return self._logged_in(message)
            case blipmq.Nack():
                self._refused(message)
                return 0
            case blipmq.Ack():
                self._subscribed(message)
                return 0
            case blipmq.Publish():
                self._delivered(message)
                return 0
        raise WrongAnswer(f"was sent {message!r:.200}")

    def _refuses_greeting(self, message: blipmq.Nack) -> bool:
        """Return whether the login of the greeting has to wait. The HELLO before it never does."""
        is_login = list(self._greeted) == [message.correlation_id]
        return is_login and message.text.startswith(THROTTLED)

    def _is_of_login(self, message: blipmq.Nack | blipmq.Ack) -> bool:
        """Return whether an answer is that to the login, which nothing precedes."""
        first = self._expected[0] if self._expected else None
        return (
            isinstance(first, _Expected)
            and isinstance(first.operation, WireLogIn)
            and first.correlation_id == message.correlation_id
        )

    def _logged_in(self, message: blipmq.Nack | blipmq.Ack) -> int:
        """Complete the login."""
        expected = self._expected.popleft()
        if isinstance(message, blipmq.Nack) and isinstance(expected, _Expected):
            expected.operation.error = message.text or "no reason given"
        return 1

    def _over(self, message: blipmq.Pong) -> int:
        """Complete the requests before a PING; return their number."""
        done = 0
        while self._expected:
            expected = self._expected.popleft()
            if isinstance(expected, _Probe):
                if message.correlation_id != expected.correlation_id:
                    break
                return done
            operation = expected.operation
            if isinstance(operation, Subscribe) and not (operation.subscription or operation.error):
                raise WrongAnswer(f"#{operation.number} was not answered, and the PING behind it")
            done += 1
        raise WrongAnswer(f"was sent {message}, which answers nothing")

    def _refused(self, message: blipmq.Nack) -> None:
        if self._is_of_probe(message):
            return
        operation = self._asked_as(message).operation
        if operation.error:
            raise WrongAnswer(f"#{operation.number} was refused twice: {message!r:.200}")
        operation.error = message.text or "no reason given"

    def _is_of_probe(self, message: blipmq.Nack) -> bool:
        """Return whether a NACK refuses a PING, and mark the requests before it as unsure.

        The broker refuses so if it has not sent single refusals to a client that reads slowly.
        """
        doubtful: list[Operation] = []
        for expected in self._expected:
            if isinstance(expected, _Probe):
                if expected.correlation_id != message.correlation_id:
                    return False
                for operation in doubtful:
                    if isinstance(operation, Produce):
                        operation.is_promised = False
                return True
            doubtful.append(expected.operation)
        return False

    def _subscribed(self, message: blipmq.Ack) -> None:
        operation = self._asked_as(message).operation
        if not isinstance(operation, Subscribe) or operation.subscription or operation.error:
            raise WrongAnswer(f"#{operation.number} was answered with {message}")
        operation.subscription = message.subscription_id

    def _asked_as(self, message: blipmq.Nack | blipmq.Ack) -> _Expected:
        """Return the oldest request with an answer's id, up to the first PING in the queue."""
        for expected in self._expected:
            if isinstance(expected, _Probe):
                break
            if expected.correlation_id == message.correlation_id:
                return expected
        raise WrongAnswer(f"was sent {message!r:.200}, which answers nothing")

    def _delivered(self, message: blipmq.Publish) -> None:
        """Complete the POLL before the next PING."""
        for expected in self._expected:
            if isinstance(expected, _Probe):
                break
            if isinstance(expected.operation, Poll):
                self._hand(expected, expected.operation, message)
                return
        raise WrongAnswer(f"was sent a message that it did not poll for: {message!r:.200}")

    @staticmethod
    def _hand(expected: _Expected, poll: Poll, message: blipmq.Publish) -> None:
        number = message.correlation_id
        if poll.handed is not None or message.topic != poll.topic:
            raise WrongAnswer(f"#{poll.number} was answered with {message!r:.200}")
        if message.qos:
            poll.handed = Handed(message.message, 1, Place(*divmod(number - 1, PARTITION_OFFSETS)))
        elif number != expected.correlation_id:
            raise WrongAnswer(f"#{poll.number} was answered under another id: {message!r:.200}")
        else:
            poll.handed = Handed(message.message, 0)


class BlipMQRequests:
    """The requests of a BlipMQ client; see `simulator.clients.wire_client.Requests`."""

    def __init__(
        self,
        history: History,
        plan: ClientPlan,
        chance: Random,
        credentials: Credentials | None = None,
    ) -> None:
        self._history = history
        self._credentials = credentials or Credentials()
        self._logins = Random(f"{plan.seed}/logins")
        self._looked = 0
        """Number of operations of the history that were searched for subscriptions."""
        self._plan = plan
        self._chance = chance
        self._values = ValueMaker(plan, chance)
        self._topics = [topic for topic in plan.topics if topic.name]
        self._subscriptions: list[Subscribe] = []
        self._subscribed = 0
        self._held: list[Acknowledge] = []
        """Deliveries to acknowledge."""
        self._acknowledged: deque[Acknowledge] = deque(maxlen=REMEMBERED)

    def log_in(self) -> Ask | None:
        """Return the login of a new connection, by the newest key, the configured or a wrong one.

        None: the wire has logged in by the key of the configuration.
        """
        account = self._plan.login
        if not account:
            return None
        if self._logins.random() < 0.1:
            operation = WireLogIn(
                number=UNNUMBERED,
                client=self._plan.name,
                name=self._history.principal,
                is_configured=True,
            )
            return Ask(blipmq.Auth(0, KEY), operation)
        is_wrong = self._logins.randrange(1_000) < self._plan.wrong_permille
        label, secret = self._credentials.key(account, self._logins, is_wrong)
        operation = WireLogIn(number=UNNUMBERED, client=self._plan.name, name=account, key=label)
        return Ask(blipmq.Auth(0, secret), operation)

    def make(self, now_us: int) -> Ask | None:
        """Return the next request; None if no drawn action is possible now."""
        mix = self._plan.mix
        for _ in range(TRIES if mix and self._topics else 0):
            (action,) = self._chance.choices(list(mix), list(mix.values()))
            ask = self._ACTIONS[action](self)
            if ask is not None:
                return ask
        return None

    def learn(self, operation: Operation) -> None:
        """Remember a delivery, to acknowledge it later."""
        if isinstance(operation, Poll) and operation.handed and operation.handed.place:
            self._held.append(acknowledgement(self._plan.name, operation, operation.handed.place))

    def unanswered(self, operations: Iterable[Operation]) -> None:
        """Acknowledge again after a lost connection, as real clients do."""
        for operation in operations:
            if isinstance(operation, Acknowledge) and self._chance.random() < 0.7:
                self._held.append(operation)

    # -- actions ---------------------------------------------------------------------------------

    def _topic(self) -> Topic:
        return self._chance.choice(self._topics)

    def _publish(self) -> Ask:
        topic, value = self._topic(), self._values.make()
        return publish_ask(
            self._plan.name,
            topic.name,
            value,
            qos=0 if self._values.often(self._plan.qos_0_permille) else 1,
            ttl_us=self._history.subscriptions.ttl_us,
        )

    def _subscribe(self) -> Ask | None:
        if self._subscribed == SUBSCRIPTIONS_MAX:
            return None
        self._subscribed += 1
        topic = self._topic()
        qos = 0 if self._values.often(self._plan.qos_0_permille) else 1
        operation = Subscribe(number=UNNUMBERED, client=self._plan.name, topic=topic.name, qos=qos)
        return Ask(blipmq.Subscribe(0, topic.name, qos), operation)

    def _poll(self) -> Ask | None:
        """Poll a subscription of any client, most often one of the newest."""
        for operation in self._history.operations[self._looked :]:
            if isinstance(operation, Subscribe):
                self._subscriptions.append(operation)
        self._looked = len(self._history.operations)
        known = [each for each in self._subscriptions if each.succeeded][-SUBSCRIPTIONS_MAX:]
        if not known:
            return None
        return poll_ask(self._plan.name, self._chance.choice(known))

    def _acknowledge(self) -> Ask | None:
        if not self._held:
            return None
        held = self._held.pop(self._chance.randrange(len(self._held)))
        self._acknowledged.append(held)
        return acknowledge_ask(held)

    def _acknowledge_again(self) -> Ask | None:
        if not self._acknowledged:
            return None
        return acknowledge_ask(self._chance.choice(self._acknowledged))

    def _forget(self) -> None:
        """Drop a delivery, like a subscriber that dies. It makes no request."""
        if self._held:
            self._held.pop(self._chance.randrange(len(self._held)))

    _ACTIONS: ClassVar[dict[Action, Callable[[BlipMQRequests], Ask | None]]] = {
        "produce": _publish,
        "subscribe": _subscribe,
        "poll": _poll,
        "acknowledge": _acknowledge,
        "acknowledge_again": _acknowledge_again,
        "forget": _forget,
    }


def publish_ask(name: str, topic: str, value: bytes, qos: int, ttl_us: int = 0) -> Ask:
    """Return a PUBLISH. The broker gives the message the time to live; 0: none of its own."""
    message = Message(payload_of(value), None if qos else QOS_0, ttl_us=ttl_us or None)
    operation = Produce(
        number=UNNUMBERED,
        client=name,
        topic=topic,
        messages=(message,),
        places=(None,),
        is_silent=True,
        is_promised=bool(qos),
    )
    return Ask(blipmq.Publish(0, qos, topic, value), operation)


def poll_ask(name: str, subscribed: Subscribe) -> Ask:
    """Return a POLL of a subscription."""
    topic, subscription = subscribed.topic, subscribed.subscription
    operation = Poll(number=UNNUMBERED, client=name, topic=topic, subscription=subscription)
    return Ask(blipmq.Poll(0, subscription), operation)


def acknowledgement(name: str, polled: Poll, place: Place) -> Acknowledge:
    """Return the acknowledgement of a delivery."""
    return Acknowledge(
        number=UNNUMBERED,
        client=name,
        topic=polled.topic,
        subscription=polled.subscription,
        place=place,
    )


def acknowledge_ask(held: Acknowledge) -> Ask:
    """Return an ACK with a new operation that is a copy of ``held``."""
    tag = held.place.partition * PARTITION_OFFSETS + held.place.offset + 1
    operation = Acknowledge(
        number=UNNUMBERED,
        client=held.client,
        topic=held.topic,
        subscription=held.subscription,
        place=held.place,
    )
    return Ask(blipmq.Ack(tag, held.subscription), operation)
