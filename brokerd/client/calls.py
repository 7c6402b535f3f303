# Tests: tests/client/test_mamamia.py
"""The Mamamia commands with Python objects, apart from how they are carried.

Each function makes a `Call`: one request, and what of its answer is the result. The blocking and
the asynchronous client carry it, each in its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from brokerd.client.errors import MamamiaError
from brokerd.codecs.mamamia import (
    DEFAULT_DURATION,
    Acquire,
    AcquireBatch,
    Acquired,
    AcquiredBatch,
    Answer,
    BatchMessage,
    BatchSettle,
    Extend,
    Extended,
    Failed,
    GroupInfo,
    GroupState,
    LeasedMessage,
    Message,
    Produce,
    ProduceBatch,
    Produced,
    ProducedBatch,
    Request,
    Settle,
    SettleBatch,
    Settled,
    SettledBatch,
    pack_metadata,
    pack_payload,
)

Result = TypeVar("Result")
Metadata = dict[str, Any]


class Call(NamedTuple, Generic[Result]):
    """A request and what to make of its answer."""

    request: Request
    result: Callable[[Any], Result]


def result_of(answer: Answer, call: Call[Result]) -> Result:
    """The call's result.

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
) -> Call[int]:
    """Append a message. Result: its id."""
    fields = _message(payload, metadata, key, partition)
    return Call(Produce(log_id, *fields), _message_id)


def acquire(
    log_id: str,
    group_id: str,
    client_id: str,
    duration: float = DEFAULT_DURATION,
    wait: float = 0.0,
) -> Call[Message | None]:
    """Lease the next message for `duration` seconds. Result: a Message, or None."""
    return Call(Acquire(log_id, group_id, client_id, duration, wait), _acquired_message)


def settle(
    log_id: str,
    group_id: str,
    message_id: int,
    client_id: str,
    success: bool = True,
    delay: float | None = None,
) -> Call[None]:
    """End a lease. `delay` is seconds until a failed message may be leased again."""
    return Call(Settle(log_id, group_id, message_id, client_id, success, delay), _nothing)


def extend(
    log_id: str,
    group_id: str,
    client_id: str,
    message_id: int,
    duration: float = DEFAULT_DURATION,
) -> Call[float]:
    """Give a live lease a new duration from now. Result: seconds left."""
    return Call(Extend(log_id, group_id, client_id, message_id, duration), _remaining)


def batch_message(
    payload: object,
    metadata: Metadata | None = None,
    key: bytes | str | None = None,
    partition: int | None = None,
) -> BatchMessage:
    """One message for `produce_batch`."""
    return BatchMessage(*_message(payload, metadata, key, partition))


def produce_batch(log_id: str, messages: Iterable[BatchMessage]) -> Call[tuple[int, ...]]:
    """Append 1 to 10,000 messages, all or none. Result: their ids, in order."""
    return Call(ProduceBatch(log_id, tuple(messages)), _message_ids)


def acquire_batch(
    log_id: str,
    group_id: str,
    client_id: str,
    max_messages: int,
    duration: float = DEFAULT_DURATION,
    wait: float = 0.0,
) -> Call[tuple[LeasedMessage, ...]]:
    """Lease up to `max_messages`. Result: LeasedMessages, maybe none."""
    request = AcquireBatch(log_id, group_id, client_id, max_messages, duration, wait)
    return Call(request, _leased_messages)


def settle_batch(
    log_id: str, group_id: str, client_id: str, settles: Iterable[BatchSettle]
) -> Call[tuple[str, ...]]:
    """End 1 to 10,000 leases. Result: for each "settled" or the broker's error text."""
    return Call(SettleBatch(log_id, group_id, client_id, tuple(settles)), _results)


def group_info(log_id: str, group_id: str) -> Call[GroupState]:
    """Result: the group's GroupState."""
    return Call(GroupInfo(log_id, group_id), _state)


def _message(
    payload: object, metadata: Metadata | None, key: bytes | str | None, partition: int | None
) -> tuple[bytes, int, bytes | None, bytes | None, int | None]:
    value, encoding = pack_payload(payload)
    packed_key = key.encode() if isinstance(key, str) else key
    return value, encoding, pack_metadata(metadata), packed_key, partition


def _message_id(answer: Produced) -> int:
    return answer.message_id


def _acquired_message(answer: Acquired) -> Message | None:
    return answer.message


def _nothing(answer: Settled) -> None:
    return None


def _remaining(answer: Extended) -> float:
    return answer.remaining


def _message_ids(answer: ProducedBatch) -> tuple[int, ...]:
    return answer.message_ids


def _leased_messages(answer: AcquiredBatch) -> tuple[LeasedMessage, ...]:
    return answer.messages


def _results(answer: SettledBatch) -> tuple[str, ...]:
    return answer.results


def _state(answer: GroupState) -> GroupState:
    return answer
