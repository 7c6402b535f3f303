# Tests: tests/simulator/test_clients.py
"""The wire of Mamamia: requests by the codec, answers in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from brokerd.codecs import mamamia as mm
from brokerd.codecs.mamamia.packing import pack
from simulator.clients.conversation import Ask, WrongAnswer
from simulator.clients.fifo_wire import FifoWire, unfit
from simulator.history.operations import (
    Acquire,
    Cancel,
    Delivery,
    Extend,
    GroupView,
    Look,
    Operation,
    Place,
    Produce,
    Release,
    Settle,
)

HEADER_BYTES = 6


class MamamiaWire(FifoWire):
    """A `Wire` of Mamamia."""

    def __init__(self) -> None:
        super().__init__()
        self._reader = mm.FrameReader()

    def encoded(self, request: mm.Request) -> bytes:
        """See `FifoWire`."""
        return mm.encode_request(request)

    def answers(self, data: bytes) -> Iterator[tuple[int, tuple[int, bytes]]]:
        """See `FifoWire`. An answer is its command and its body."""
        for command, body in self._reader.feed(data):
            yield HEADER_BYTES + len(body), (command, body)
        if self._reader.error is not None:
            raise WrongAnswer(f"was sent a broken frame: {self._reader.error}")

    def complete(self, ask: Ask, answer: tuple[int, bytes]) -> None:
        """See `FifoWire`."""
        command, body = answer
        if command != mm.COMMANDS[type(ask.request)]:
            raise WrongAnswer(f"was answered with command {command}")
        try:
            complete(ask.operation, mm.decode_response(command, body))
        except mm.BodyError as error:
            raise WrongAnswer(str(error)) from error


def place_of(message_id: int) -> Place:
    return Place(*mm.split_message_id(message_id))


def microseconds(seconds: float) -> int:
    """Convert seconds to microseconds as the broker does."""
    return int(seconds * 1_000_000)


def packed(metadata: Mapping[str | bytes, Any] | None) -> bytes | None:
    """Encode metadata as requests and the history have it."""
    return None if metadata is None else pack(metadata)


def complete(operation: Operation, answer: mm.Answer) -> None:
    """Store an answer in its operation.

    Raises WrongAnswer if it does not answer the request.
    """
    match operation, answer:
        case _, mm.Failed(text=text):
            operation.error = text or "no reason given"
        case Produce(messages=[_]), mm.Produced(message_id=message_id):
            operation.places = (place_of(message_id),)
        case Produce(messages=[_]), mm.Scheduled(schedule_id=schedule_id):
            operation.places, operation.schedules = (None,), (schedule_id,)
        case Produce(), mm.ProducedBatch() if len(answer.message_ids) == len(operation.messages):
            _produced(operation, answer)
        case Acquire(), mm.Acquired(message=None):
            operation.deliveries = ()
        case Acquire(), mm.Acquired(message=mm.Message() as message):
            if message.log_id != operation.topic:
                raise WrongAnswer(f"a message of {message.log_id!r} came from {operation.topic!r}")
            operation.deliveries = (_delivery(message),)
        case Acquire(), mm.AcquiredBatch(messages=messages) if len(messages) <= operation.limit:
            operation.deliveries = tuple(map(_batch_delivery, messages))
        case Settle(), mm.Settled():
            operation.results = ("",)
        case Settle(), mm.SettledBatch(results=results) if len(results) == len(
            operation.settlements
        ):
            operation.results = tuple("" if text == mm.SETTLED else text for text in results)
        case Release(), mm.Released(released=released):
            operation.released = released
        case Cancel(), mm.Cancelled(cancelled=cancelled):
            operation.cancelled = cancelled
        case Extend(), mm.Extended(remaining=remaining):
            operation.remaining_us = round(remaining * 1_000_000)
        case Look(), mm.GroupState():
            operation.view = GroupView(*(getattr(answer, name) for name in GroupView._fields))
        case _:
            raise unfit(answer)


def _produced(operation: Produce, answer: mm.ProducedBatch) -> None:
    """Store the position of each message of a batch, or its schedule id."""
    ids = answer.message_ids
    operation.places = tuple(None if each is None else place_of(each) for each in ids)
    operation.schedules = answer.schedule_ids or ()
    waits = [each is not None for each in operation.schedules or [None] * len(ids)]
    if waits != [place is None for place in operation.places]:
        raise unfit(answer)


def _delivery(message: mm.Message) -> Delivery:
    return Delivery(place_of(message.id), pack(message.payload), packed(message.metadata))


def _batch_delivery(message: mm.LeasedMessage) -> Delivery:
    remaining = message.remaining
    return Delivery(
        place_of(message.id),
        pack(message.payload),
        packed(message.metadata),
        message.key,
        message.token,
        message.grants,
        None if remaining is None else round(remaining * 1_000_000),
    )
