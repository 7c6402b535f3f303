# Tests: tests/codecs/test_mamamia_peer.py
"""The client's side: encodes requests and decodes answers.

The server's decoder returns the value that `encode_request` encoded, and vice versa for answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgpack import unpackb

from brokerd.codecs.mamamia.frames import frame
from brokerd.codecs.mamamia.packing import (
    UNDECODABLE,
    pack,
    pack_array_header,
    pack_bin,
    pack_str,
    pack_value,
)
from brokerd.codecs.mamamia.values import (
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
    Command,
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
    Release,
    Released,
    Request,
    Scheduled,
    Settle,
    SettleBatch,
    Settled,
    SettledBatch,
)
from brokerd.values import Encoding

COMMANDS: dict[type[Request], Command] = {
    Produce: Command.PRODUCE,
    Acquire: Command.ACQUIRE_NEXT,
    Settle: Command.SETTLE,
    Extend: Command.EXTEND,
    ProduceBatch: Command.PRODUCE_BATCH,
    AcquireBatch: Command.ACQUIRE_BATCH,
    SettleBatch: Command.SETTLE_BATCH,
    GroupInfo: Command.GROUP_INFO,
    Release: Command.RELEASE,
    Cancel: Command.CANCEL,
}
"""The command byte of each request."""


def pack_payload(payload: object) -> tuple[bytes, int]:
    """Return a Python object as `(value, encoding)` of a `Produce`.

    :raises TypeError, OverflowError, ValueError: MessagePack cannot encode it.
    """
    if isinstance(payload, bytes):
        return payload, Encoding.BYTES
    if isinstance(payload, str):
        return payload.encode(), Encoding.TEXT
    return pack(payload), Encoding.MSGPACK


def pack_metadata(metadata: dict[str, Any] | None) -> bytes | None:
    """Return metadata as a `Produce` holds it."""
    return None if metadata is None else pack(metadata)


def encode_request(request: Request) -> bytes:
    """Return the frame of a request. Keys are in the original client's order, extensions last."""
    if isinstance(request, Produce):
        pairs = _produce_pairs(request, pack_str(request.log_id.encode()))
        return frame(Command.PRODUCE, pairs)
    if isinstance(request, ProduceBatch):
        named = request.producer_id is not None
        return frame(
            Command.PRODUCE_BATCH,
            b"".join(
                (
                    b"\x84\xa6log_id" if named else b"\x82\xa6log_id",
                    pack_str(request.log_id.encode()),
                    b"\xa8messages",
                    pack_array_header(len(request.messages)),
                    *(_produce_pairs(message, None) for message in request.messages),
                    b"\xabproducer_id" + pack(request.producer_id) if named else b"",
                    b"\xa8sequence" + pack(request.sequence) if named else b"",
                )
            ),
        )
    return frame(COMMANDS[type(request)], pack(_body(request)))


def _produce_pairs(message: Produce | BatchMessage, log_id: bytes | None) -> bytes:
    parts = [] if log_id is None else [b"\xa6log_id", log_id]
    parts += (
        b"\xa7payload",
        pack_value(message.value, message.encoding),
        b"\xa8metadata",
        message.metadata or b"\xc0",
    )
    if message.key is not None:
        parts += b"\xa3key", pack_bin(message.key)
    if message.partition is not None:
        parts += b"\xa9partition", pack(message.partition)
    if message.ttl is not None:
        parts += b"\xa3ttl", pack(message.ttl)
    if message.delay is not None:
        parts += b"\xa5delay", pack(message.delay)
    return bytes([0x80 | len(parts) // 2]) + b"".join(parts)


def _body(request: Request) -> dict[str, Any]:
    body: dict[str, Any] = request._asdict()
    if isinstance(request, AcquireBatch):
        body["max"] = body.pop("max_messages")
    if isinstance(request, Acquire | AcquireBatch) and not request.wait:
        del body["wait"]
    for optional in ("delay", "duration", "message_ids"):
        if optional in body and body[optional] is None:
            del body[optional]
    if isinstance(request, SettleBatch):
        body["settles"] = [_settle(item) for item in request.settles]
    return _settle(request) if isinstance(request, Settle) else body


def _settle(item: Settle | BatchSettle) -> dict[str, Any]:
    body = {key: value for key, value in item._asdict().items() if value is not None}
    for optional in ("reason", "dead"):
        if not body[optional]:
            del body[optional]
    return body


def decode_response(command: int, body: bytes) -> Answer:
    """Return the answer of one frame; `Failed` holds the broker's text.

    :raises BodyError: it is not an answer to `command`: close the connection.
    """
    try:
        answer = unpackb(body)
    except UNDECODABLE as error:
        raise BodyError(f"the answer is not MessagePack: {error}") from error
    if type(answer) is not dict:
        raise BodyError("the answer is not a map")
    if "error" in answer:
        return Failed(str(answer["error"]))
    try:
        return _ANSWERS[command](answer)
    except (KeyError, TypeError, ValueError) as error:
        raise BodyError(
            f"the answer to command {command} is not of its shape: {error!r}"
        ) from error


def _produced(answer: dict[str, Any]) -> Produced | Scheduled:
    if "schedule_id" in answer:
        return Scheduled(_int(answer["schedule_id"]))
    return Produced(_int(answer["message_id"]))


def _produced_batch(answer: dict[str, Any]) -> ProducedBatch:
    if "schedule_ids" not in answer:
        return ProducedBatch(tuple(map(_int, answer["message_ids"])))
    return ProducedBatch(
        tuple(map(_int_or_nil, answer["message_ids"])),
        tuple(map(_int_or_nil, answer["schedule_ids"])),
    )


def _acquired(answer: dict[str, Any]) -> Acquired:
    message = answer["message"]
    if message is None:
        return Acquired(None)
    return Acquired(
        Message(_int(message["id"]), message["log_id"], message["payload"], message["metadata"])
    )


def _settled(answer: dict[str, Any]) -> Settled:
    if answer["status"] != "settled":
        raise ValueError(answer["status"])
    return Settled()


def _leased(item: dict[str, Any]) -> LeasedMessage:
    return LeasedMessage(
        _int(item["id"]),
        item["payload"],
        item["metadata"],
        item.get("key"),
        item.get("token"),
        item.get("grants"),
        item.get("remaining"),
    )


def _int(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not an int")
    return value


def _int_or_nil(value: object) -> int | None:
    return None if value is None else _int(value)


def _bool(value: object) -> bool:
    if type(value) is not bool:
        raise TypeError(f"{value!r} is not a bool")
    return value


_ANSWERS: dict[int, Callable[[dict[str, Any]], Answer]] = {
    Command.PRODUCE: _produced,
    Command.ACQUIRE_NEXT: _acquired,
    Command.SETTLE: _settled,
    Command.EXTEND: lambda answer: Extended(float(answer["remaining"])),
    Command.PRODUCE_BATCH: _produced_batch,
    Command.ACQUIRE_BATCH: lambda answer: AcquiredBatch(
        tuple(_leased(item) for item in answer["messages"])
    ),
    Command.SETTLE_BATCH: lambda answer: SettledBatch(
        tuple(str(text) for text in answer["results"])
    ),
    Command.GROUP_INFO: lambda answer: GroupState(*(answer[key] for key in GroupState._fields)),
    Command.RELEASE: lambda answer: Released(_int(answer["released"])),
    Command.CANCEL: lambda answer: Cancelled(_bool(answer["cancelled"])),
}
