# Tests: tests/client/test_mamamia.py
"""The Mamamia commands with Python objects, for the blocking and the asynchronous client.

Each function makes a `Call`: one request, and a function from its answer to the result. Arguments
of a wrong type or size raise TypeError, ValueError and RecordTooLarge (`brokerd.client.checks`,
``packing``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from brokerd.client.checks import check_numbers, check_optional, check_seconds, check_text
from brokerd.client.errors import MamamiaError
from brokerd.client.packing import (
    check_size,
    checked_items,
    packed_key,
    packed_metadata,
    packed_payload,
)
from brokerd.codecs.answers import AnswerReader, NotAnAnswer
from brokerd.codecs.mamamia import (
    COMMANDS,
    Acquire,
    AcquireBatch,
    Acquired,
    AcquiredBatch,
    Answer,
    BatchMessage,
    BatchSettle,
    BodyError,
    Cancel,
    Cancelled,
    Extend,
    Extended,
    Failed,
    Frame,
    FrameReader,
    GroupInfo,
    GroupState,
    LeasedMessage,
    Message,
    Produce,
    ProduceBatch,
    Produced,
    ProducedBatch,
    Release,
    Released,
    Request,
    Scheduled,
    Settle,
    SettleBatch,
    Settled,
    SettledBatch,
    decode_response,
)

Result = TypeVar("Result")
Metadata = dict[str, Any]


class Call(NamedTuple, Generic[Result]):
    """A request and the conversion of its answer."""

    request: Request
    result: Callable[[Any], Result]


def answer_reader() -> AnswerReader[Request, Frame, Answer]:
    """Return a reader of the answers of one connection."""
    return AnswerReader(FrameReader(), _answer)


def _answer(request: Request, frame: Frame) -> Answer:
    command, body = frame
    expected = COMMANDS[type(request)]
    if command != expected:
        raise NotAnAnswer(f"command {command} was answered where {int(expected)} was asked")
    try:
        return decode_response(command, body)
    except BodyError as error:
        raise NotAnAnswer(f"the answer cannot be read: {error}") from error


def result_of(answer: Answer, call: Call[Result]) -> Result:
    """Return the call's result.

    :raises MamamiaError: the broker refused the request.
    """
    if isinstance(answer, Failed):
        raise MamamiaError(answer.text)
    return call.result(answer)


def produce(
    log_id: str,
    payload: object,
    metadata: Metadata | None = None,
    key: bytes | str | None = None,
    partition: int | None = None,
    ttl: float | None = None,
    delay: float | None = None,
) -> Call[int]:
    """Append a message. Result: its id, or its schedule id if it has a `delay`."""
    check_text(log_id=log_id)
    request = Produce(log_id, *_message(payload, metadata, key, partition, ttl, delay))
    check_size(request)
    return Call(request, _message_id)


def acquire(
    log_id: str,
    group_id: str,
    client_id: str,
    duration: float | None = None,
    wait: float = 0.0,
) -> Call[Message | None]:
    """Lease the next message for `duration` seconds. Result: a Message, or None."""
    check_text(log_id=log_id, group_id=group_id, client_id=client_id)
    check_seconds(duration=duration, wait=wait)
    return Call(Acquire(log_id, group_id, client_id, duration, wait), _acquired_message)


def settle(
    log_id: str,
    group_id: str,
    message_id: int,
    client_id: str,
    success: bool = True,
    delay: float | None = None,
    reason: str | None = None,
    dead: bool = False,
) -> Call[None]:
    """End a lease. `delay` is seconds until a failed message may be leased again."""
    check_text(log_id=log_id, group_id=group_id, client_id=client_id)
    check_optional({"reason": reason})
    check_numbers(message_id=message_id)
    check_seconds(delay=delay)
    settle = Settle(
        log_id, group_id, message_id, client_id, bool(success), delay, reason or "", bool(dead)
    )
    return Call(settle, _nothing)


def extend(
    log_id: str,
    group_id: str,
    client_id: str,
    message_id: int,
    duration: float | None = None,
) -> Call[float]:
    """Give a live lease a new duration from now. Result: seconds left."""
    check_text(log_id=log_id, group_id=group_id, client_id=client_id)
    check_numbers(message_id=message_id)
    check_seconds(duration=duration)
    return Call(Extend(log_id, group_id, client_id, message_id, duration), _remaining)


def batch_message(
    payload: object,
    metadata: Metadata | None = None,
    key: bytes | str | None = None,
    partition: int | None = None,
    ttl: float | None = None,
    delay: float | None = None,
) -> BatchMessage:
    """One message for `produce_batch`; `ttl` and `delay` in seconds, a `ttl` of 0 for never."""
    return BatchMessage(*_message(payload, metadata, key, partition, ttl, delay))


def produce_batch(
    log_id: str,
    messages: Iterable[BatchMessage],
    producer_id: str | None = None,
    sequence: int | None = None,
) -> Call[tuple[int, ...]]:
    """Append 1 to 10,000 messages, all or none.

    Result: their ids, in order; for those with a delay their schedule ids.
    """
    check_text(log_id=log_id)
    check_optional({"producer_id": producer_id}, {"sequence": sequence})
    if (producer_id is None) != (sequence is None):
        missing = "producer_id" if producer_id is None else "sequence"
        raise ValueError(f"{missing} is missing: producer_id and sequence go together")
    items = checked_items("messages", messages, BatchMessage, "batch_message")
    request = ProduceBatch(log_id, tuple(items), producer_id, sequence)
    check_size(request)
    return Call(request, _message_ids)


def acquire_batch(
    log_id: str,
    group_id: str,
    client_id: str,
    max_messages: int,
    duration: float | None = None,
    wait: float = 0.0,
) -> Call[tuple[LeasedMessage, ...]]:
    """Lease up to `max_messages`. Result: LeasedMessages, maybe none."""
    check_text(log_id=log_id, group_id=group_id, client_id=client_id)
    check_numbers(max_messages=max_messages)
    check_seconds(duration=duration, wait=wait)
    request = AcquireBatch(log_id, group_id, client_id, max_messages, duration, wait)
    return Call(request, _leased_messages)


def settle_batch(
    log_id: str, group_id: str, client_id: str, settles: Iterable[BatchSettle]
) -> Call[tuple[str, ...]]:
    """End 1 to 10,000 leases. Result: for each "settled" or the broker's error text."""
    check_text(log_id=log_id, group_id=group_id, client_id=client_id)
    items = checked_items("settles", settles, BatchSettle, "BatchSettle")
    for index, (message_id, _, token, delay, reason, _) in enumerate(items):
        check_numbers(**{f"settles[{index}].message_id": message_id})
        check_optional(numbers={f"settles[{index}].token": token})
        check_seconds(**{f"settles[{index}].delay": delay})
        check_text(**{f"settles[{index}].reason": reason})
    return Call(SettleBatch(log_id, group_id, client_id, tuple(items)), _results)


def group_info(log_id: str, group_id: str) -> Call[GroupState]:
    """Result: the group's GroupState."""
    check_text(log_id=log_id, group_id=group_id)
    return Call(GroupInfo(log_id, group_id), _state)


def release(
    log_id: str, group_id: str, client_id: str, message_ids: Iterable[int] | None = None
) -> Call[int]:
    """Give leased messages back, or all of this client's. Result: how many leases ended."""
    check_text(log_id=log_id, group_id=group_id, client_id=client_id)
    ids = None if message_ids is None else tuple(message_ids)
    for index, message_id in enumerate(ids or ()):
        check_numbers(**{f"message_ids[{index}]": message_id})
    return Call(Release(log_id, group_id, client_id, ids), _released)


def cancel(log_id: str, schedule_id: int) -> Call[bool]:
    """Cancel a delayed message. Result: False if it has appeared or is unknown."""
    check_text(log_id=log_id)
    check_numbers(schedule_id=schedule_id)
    return Call(Cancel(log_id, schedule_id), _cancelled)


def _message(
    payload: object,
    metadata: Metadata | None,
    key: bytes | str | None,
    partition: int | None,
    ttl: float | None,
    delay: float | None,
) -> tuple[bytes, int, bytes | None, bytes | None, int | None, float | None, float | None]:
    check_optional(numbers={"partition": partition})
    check_seconds(ttl=ttl, delay=delay)
    value, encoding = packed_payload(payload)
    return value, encoding, packed_metadata(metadata), packed_key(key), partition, ttl, delay


def _message_id(answer: Produced | Scheduled) -> int:
    return answer.schedule_id if isinstance(answer, Scheduled) else answer.message_id


def _acquired_message(answer: Acquired) -> Message | None:
    return answer.message


def _nothing(answer: Settled) -> None:
    return None


def _remaining(answer: Extended) -> float:
    return answer.remaining


def _message_ids(answer: ProducedBatch) -> tuple[int, ...]:
    schedule_ids = answer.schedule_ids or (None,) * len(answer.message_ids)
    ids = zip(answer.message_ids, schedule_ids, strict=True)
    return tuple(one for pair in ids for one in pair if one is not None)


def _leased_messages(answer: AcquiredBatch) -> tuple[LeasedMessage, ...]:
    return answer.messages


def _results(answer: SettledBatch) -> tuple[str, ...]:
    return answer.results


def _released(answer: Released) -> int:
    return answer.released


def _cancelled(answer: Cancelled) -> bool:
    return answer.cancelled


def _state(answer: GroupState) -> GroupState:
    return answer
