# Tests: tests/simulator/test_format_clients.py
"""A random FlyMQ client, in the document's dialect or in that of the SDKs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, ClassVar

from brokerd.codecs import flymq
from simulator.clients.conversation import Ask, WrongAnswer
from simulator.clients.credentials import Credentials
from simulator.clients.fifo_wire import FifoWire, unfit
from simulator.clients.offset_requests import OffsetRequests
from simulator.clients.values import PATTERNS
from simulator.history.offsets import (
    Commit,
    Committed,
    CreateTopic,
    ListTopics,
    Position,
    Read,
    Reading,
    ResetOffset,
)
from simulator.history.operations import Cancel, DeleteTopic, Message, Operation, Place, Produce
from simulator.history.registry import WireLogIn
from simulator.history.transactions import Begin, RollBack, Stage, Transact
from simulator.payloads import payload_of, value_of
from simulator.plan import Action, ClientPlan

HEADER_BYTES = 8
GZIP = 0.1
"""The probability that a request is compressed."""
SCHEDULE_BITS = 40
"""Bits of a delayed record's number in a schedule id. The higher bits are the topic's id."""
LOGINS_MAX = 12
"""The most logins of a client, because the hash of a password is slow on purpose."""
NO_GROUP = "consumer group not found"
NO_MESSAGE = "message not found"
NO_RECORD = "out of range", "is removed", "holds no record any more"
"""Parts of the refusals of CONSUME at an offset without a record."""
Answer = tuple[int, bytes]
"""Opcode and payload."""


class FlyMQWire(FifoWire):
    """A `Wire` of FlyMQ; some requests are compressed."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self._chance = chance
        self._reader = flymq.FrameReader()

    def encoded(self, request: flymq.Request) -> bytes:
        """See `FifoWire`."""
        has_payload = not isinstance(request, flymq.ListTopics | flymq.BeginTransaction)
        return flymq.encode_request(request, has_payload and self._chance.random() < GZIP)

    def answers(self, data: bytes) -> Iterator[tuple[int, Answer]]:
        """See `FifoWire`."""
        for opcode, _, payload in self._reader.feed(data):
            yield HEADER_BYTES + len(payload), (opcode, payload)
        if self._reader.error is not None:
            raise WrongAnswer(f"was sent a broken frame: {self._reader.error}")

    def complete(self, ask: Ask, answer: Answer) -> None:
        """See `FifoWire`."""
        try:
            told = flymq.decode_answer(ask.request, *answer)
        except flymq.AnswerError as error:
            raise WrongAnswer(str(error)) from error
        if isinstance(told, flymq.Failed):
            refuse(ask.operation, told.text)
        else:
            fill(ask.operation, told)


def refuse(operation: Operation, text: str) -> None:
    """Store a refusal in its operation; some refusals are answers that report an empty result."""
    if isinstance(operation, Read) and operation.exact and _tells_nothing(text):
        operation.readings = ()
    elif isinstance(operation, Committed) and NO_GROUP in text:
        operation.offset, operation.lag, operation.latest = None, None, None
        operation.told_as_zero = False
    elif isinstance(operation, Cancel) and text.startswith(NO_MESSAGE):
        operation.cancelled = False
    else:
        operation.error = text or "no reason given"


def _tells_nothing(text: str) -> bool:
    return text.startswith("offset ") and any(each in text for each in NO_RECORD)


def fill(operation: Operation, told: flymq.Answer) -> None:
    """Store an answer in its operation. Raises WrongAnswer if it does not fit the request."""
    match operation, told:
        case Produce(), flymq.Produced() if _agrees(operation, told):
            (message,) = operation.messages
            if message.delay_us is None:
                operation.places = (Place(told.partition, told.offset),)
            else:
                operation.places = (None,)
                operation.schedules = (told.offset & ((1 << SCHEDULE_BITS) - 1),)
        case Stage(), flymq.Produced() if _is_staged(operation, told):
            pass
        case WireLogIn(), flymq.LoggedIn(user=user) if user == operation.name:
            pass
        case Begin(), flymq.TransactionAnswer(success=True):
            operation.transaction = told.transaction
        case Transact(), flymq.TransactionAnswer(success=True) if _is_of(operation, told):
            pass
        case RollBack(), flymq.TransactionAnswer() if _is_of(operation, told):
            pass
        case Cancel(), flymq.Done():
            operation.cancelled = True
        case Read(), flymq.Consumed():
            place = Place(operation.partition, operation.offset)
            operation.readings = (Reading(place, told.value, told.key, tells_key=True),)
        case Read(), flymq.Fetched():
            operation.readings = tuple(
                Reading(Place(operation.partition, each.offset), each.value, each.key, True)
                for each in told.records
            )
            operation.next = told.next_offset
        case Committed(lag=None), flymq.Position():
            operation.offset, operation.told_as_zero = told.offset, True
        case Committed(), flymq.Lag() if told.current == told.committed:
            operation.offset, operation.latest = told.committed, told.latest
            operation.lag = told.lag
        case Position(), flymq.Position():
            operation.offset = told.offset
        case ListTopics(), flymq.Topics():
            operation.topics = tuple((name, None) for name in told.names)
        case ((Commit() | ResetOffset() | CreateTopic() | DeleteTopic()), flymq.Done()):
            pass
        case _:
            raise unfit(told)


def _agrees(operation: Produce, told: flymq.Produced) -> bool:
    """Return whether an answer fits the produced messages."""
    (message,) = operation.messages
    return (
        told.topic == operation.topic
        and message.partition in (None, told.partition)
        and told.key_size == (-1 if message.key is None else len(message.key))
        and told.value_size == len(value_of(message.payload))
    )


def _is_staged(operation: Stage, told: flymq.Produced) -> bool:
    """Return whether an answer fits the staged message and gives no place yet."""
    size = len(value_of(operation.message.payload))
    return told._replace(timestamp_ms=0) == (operation.topic, 0, 0, 0, -1, size)


def _is_of(operation: Transact | RollBack, told: flymq.TransactionAnswer) -> bool:
    return told.transaction == operation.transaction


class FlyMQRequests(OffsetRequests):
    """The requests of a FlyMQ client."""

    def __init__(
        self, plan: ClientPlan, chance: Random, credentials: Credentials | None = None
    ) -> None:
        super().__init__(plan, chance)
        self._credentials = credentials or Credentials()
        self._logins = Random(f"{plan.seed}/logins")
        self._logins_left = LOGINS_MAX
        self._open: dict[str, list[tuple[str, Message]]] = {}
        """Messages of each transaction. If its connection is lost, none of them may be stored."""
        self._delayed: list[tuple[str, int]] = []
        """Topic and schedule id of each delayed record."""

    def log_in(self) -> Ask | None:
        """Return the login of a new connection, by the newest password or a wrong one."""
        account = self._plan.login
        if not account or not self._logins_left:
            return None
        self._logins_left -= 1
        is_wrong = self._logins.randrange(1_000) < self._plan.wrong_permille
        password = self._credentials.password(account, self._logins, is_wrong)
        operation = WireLogIn(**self._asked(name=account, password=password))
        return Ask(flymq.Auth(account, password), operation)

    def learn(self, operation: Operation) -> None:
        """Remember transactions and schedule ids of an answer."""
        super().learn(operation)
        match operation:
            case Begin(error=""):
                self._open[operation.transaction] = []
            case Stage() if operation.error:
                self._open.pop(operation.transaction, None)
            case Produce(schedules=(int(schedule_id),)):
                self._delayed.append((operation.topic, schedule_id))

    # -- produce and cancel
    # --------------------------------------------------------------------------

    def _produce(self) -> Operation:
        """Produce a record, sometimes with a delay or a time to live."""
        operation = super()._produce()
        assert isinstance(operation, Produce), "it produces"
        (message,) = operation.messages
        delay_us = self._span_us(self._plan.delayed_permille, self._plan.schedule_us_max)
        ttl_us = self._span_us(self._plan.ttl_permille, self._plan.ttl_us_max)
        if delay_us is not None:
            operation.messages = (Message(message.payload, delay_us=delay_us),)
        elif ttl_us is not None:
            operation.messages = (Message(message.payload, ttl_us=ttl_us),)
        return operation

    def _span_us(self, permille: int, longest_us: int) -> int | None:
        """Draw a duration in whole milliseconds, at least one; None most of the time."""
        if not self._values.often(permille):
            return None
        return self._chance.randint(1, max(1, longest_us // 1_000)) * 1_000

    def _cancel(self) -> Operation | None:
        """Cancel a delayed record, or a random schedule id."""
        if not self._delayed:
            return None
        topic, schedule_id = self._chance.choice(self._delayed)
        if self._chance.random() < 0.1:
            schedule_id += 1
        return Cancel(**self._asked(topic=topic, schedule_id=schedule_id))

    # -- transactions ----------------------------------------------------------------------------

    def _begin(self) -> Operation:
        return Begin(**self._asked())

    def _stage(self) -> Operation | None:
        """Add a distinct message to an open transaction."""
        value = self._values.make()
        if not self._open or not value:
            return None
        name, topic = self._chance.choice(list(self._open)), self._topic().name
        message = Message(payload_of(value))
        self._open[name].append((topic, message))
        return Stage(**self._asked(transaction=name, topic=topic, message=message))

    def _commit_transaction(self) -> Operation | None:
        if not self._open:
            return None
        name = self._chance.choice(list(self._open))
        messages = tuple(self._open.pop(name))
        return Transact(**self._asked(transaction=name, messages=messages))

    def _roll_back(self) -> Operation | None:
        if not self._open:
            return None
        name = self._chance.choice(list(self._open))
        del self._open[name]
        return RollBack(**self._asked(transaction=name))

    # -- on the wire -----------------------------------------------------------------------------

    def request(self, operation: Operation) -> Any:
        is_sdk = self._chance.random() < 0.5
        match operation:
            case Begin():
                return flymq.BeginTransaction()
            case Stage():
                value = value_of(operation.message.payload)
                return flymq.ProduceInTransaction(operation.transaction, operation.topic, value)
            case Transact():
                return flymq.CommitTransaction(operation.transaction)
            case RollBack():
                return flymq.RollBackTransaction(operation.transaction)
            case Cancel():
                return flymq.CancelDelayed(operation.schedule_id, operation.topic)
            case Produce(messages=(Message(delay_us=int(us), payload=payload),)):
                return flymq.ProduceDelayed(operation.topic, value_of(payload), us // 1_000)
            case Produce(messages=(Message(ttl_us=int(us), payload=payload),)):
                return flymq.ProduceWithTtl(operation.topic, value_of(payload), us // 1_000)
            case Produce():
                (message,) = operation.messages
                partition = -1 if message.partition is None else message.partition
                value = value_of(message.payload)
                return flymq.Produce(operation.topic, message.key, value, partition)
            case Read(exact=True):
                opcode = self._chance.choice((flymq.Opcode.CONSUME, flymq.Opcode.CONSUME_ZERO_COPY))
                return flymq.Consume(operation.topic, operation.partition, operation.offset, opcode)
            case Read():
                return self._fetch(operation, is_sdk)
            case Commit():
                return flymq.Commit(*_group_partition(operation), operation.offset)
            case ResetOffset():
                return flymq.ResetOffset(*_group_partition(operation), operation.to, None, is_sdk)
            case Committed(lag=None):
                return flymq.GetOffset(*_group_partition(operation))
            case Committed():
                return flymq.GetLag(*_group_partition(operation))
            case Position():
                return flymq.Subscribe(*_group_partition(operation), operation.mode, is_sdk)
            case CreateTopic():
                return flymq.CreateTopic(operation.topic, operation.partitions)
            case DeleteTopic():
                return flymq.DeleteTopic(operation.topic)
            case ListTopics():
                return flymq.ListTopics()
        raise TypeError(f"FlyMQ has no {operation!r}")

    _ACTIONS: ClassVar[dict[Action, Callable[[Any], Operation | None]]] = {
        **OffsetRequests._ACTIONS,
        "produce": _produce,
        "cancel": _cancel,
        "begin": _begin,
        "stage": _stage,
        "commit_transaction": _commit_transaction,
        "roll_back": _roll_back,
    }

    def _fetch(self, operation: Read, is_sdk: bool) -> flymq.Fetch:
        """Return a fetch in one of its layouts. Only the layout of the SDKs has a filter."""
        opcode = self._chance.choice((flymq.Opcode.FETCH, flymq.Opcode.FETCH_BINARY))
        if is_sdk and self._values.often(self._plan.filter_permille):
            operation.pattern = self._chance.choice(PATTERNS)
        asked = operation.topic, operation.partition, operation.offset, operation.limit
        return flymq.Fetch(*asked, operation.pattern, is_sdk, opcode)


def _group_partition(
    operation: Commit | ResetOffset | Committed | Position,
) -> tuple[str, str, int]:
    return operation.topic, operation.group, operation.partition
