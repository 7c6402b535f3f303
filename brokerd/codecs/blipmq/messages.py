# Tests: tests/codecs/test_blipmq.py
"""Decodes and encodes frames of the BlipMQ format.

A frame here is a result of `LengthPrefixedReader`: type, correlation id, payload. `encode` adds the
length. Checks are in the order of the page (section Bad input).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from operator import itemgetter
from struct import Struct
from typing import Any

from brokerd.codecs.blipmq.values import (
    EMPTY_TOPIC,
    MAX_LENGTH,
    MIN_LENGTH,
    WRONG_QOS,
    Ack,
    Auth,
    FrameType,
    Hello,
    InvalidFrame,
    Message,
    Nack,
    Ping,
    Poll,
    Pong,
    Publish,
    Subscribe,
    UnknownFrameType,
)
from brokerd.codecs.length_prefixed import LengthPrefixedReader

_HEAD = Struct(">BQ")
_HEAD_U16 = Struct(">BQH")
_HEAD_U64 = Struct(">BQQ")
_HEAD_QOS_TOPIC = Struct(">BQBH")
_HEAD_CODE_TEXT = Struct(">BQHH")
_LENGTH_HEAD = Struct(">IBQ")
_LENGTH_TYPE = Struct(">IB")
_LENGTH_HEAD_QOS_TOPIC = Struct(">IBQBH")
_LENGTH_HEAD_U64 = Struct(">IBQQ")
_U16 = Struct(">H")

_ACK = int(FrameType.ACK)
_PUBLISH = int(FrameType.PUBLISH)
_PING = int(FrameType.PING)
_PONG = int(FrameType.PONG)
_POLL = int(FrameType.POLL)
_TYPES = frozenset(FrameType)
_RUN_TYPES = bytes((_PUBLISH, _PING))
_IS_PUBLISH = bytes(kind == _PUBLISH for kind in range(256))
_IS_PING = bytes(kind == _PING for kind in range(256))
"""Tables that select frames by their types."""


def frame_reader(max_length: int = MAX_LENGTH) -> LengthPrefixedReader:
    """Return a reader of frames up to this length, or the format's limit if lower."""
    return LengthPrefixedReader(MIN_LENGTH, min(max_length, MAX_LENGTH))


def type_of(frame: bytes) -> int:
    """Return the type of a frame. Raises `UnknownFrameType`."""
    if frame[0] not in _TYPES:
        raise UnknownFrameType(f"frame type {frame[0]:#04x} is unknown; it is 0x01 to 0x09")
    return frame[0]


def correlation_id_of(frame: bytes) -> int:
    """Return the correlation id of a frame."""
    return int.from_bytes(frame[1:9], "big")


def decode(frame: bytes) -> Message:
    """Return the message of a frame. Raises `InvalidFrame` and `UnknownFrameType`."""
    return _DECODERS[type_of(frame)](frame)


def encode(message: Message) -> bytes:
    """Return the complete frame of a message, with its length.

    Raises ValueError if it would be longer than the format allows.
    """
    frame_type, payload = _ENCODERS[type(message)](message)
    length = MIN_LENGTH + len(payload)
    if length > MAX_LENGTH:
        raise ValueError(f"a frame of {length} bytes is over the limit of {MAX_LENGTH}")
    return _LENGTH_HEAD.pack(length, frame_type, message[0]) + payload


def pongs(pings: Sequence[bytes]) -> bytes:
    """Return the PONG frames that answer these PING frames."""
    head = _LENGTH_TYPE.pack(MIN_LENGTH, _PONG)
    return head + head.join([ping[1:] for ping in pings]) if pings else b""


# -- decoding --------------------------------------------------------------------------------------


def decode_hello(frame: bytes) -> Hello:
    if len(frame) != _HEAD_U16.size:
        raise InvalidFrame("invalid HELLO payload")
    _, correlation_id, version = _HEAD_U16.unpack(frame)
    return Hello(correlation_id, version)


def decode_auth(frame: bytes) -> Auth:
    if len(frame) < _HEAD_U16.size:
        raise InvalidFrame("invalid AUTH payload")
    _, correlation_id, length = _HEAD_U16.unpack_from(frame)
    if len(frame) != _HEAD_U16.size + length:
        raise InvalidFrame("invalid AUTH payload")
    return Auth(correlation_id, _text(frame[_HEAD_U16.size :], "AUTH"))


def decode_publish(frame: bytes) -> Publish:
    """Read a PUBLISH. Raises `InvalidFrame`."""
    start = _HEAD_QOS_TOPIC.size
    if len(frame) < start:
        raise InvalidFrame("invalid PUBLISH payload")
    _, correlation_id, qos, length = _HEAD_QOS_TOPIC.unpack_from(frame)
    end = start + length
    if end > len(frame):
        raise InvalidFrame("invalid PUBLISH payload")
    topic = _text(frame[start:end], "PUBLISH")
    _check(topic, qos)
    return Publish(correlation_id, qos, topic, frame[end:])


def publish_run(frames: Sequence[bytes]) -> tuple[str, list[bytes], list[bytes]]:
    """Return the topic and the messages of a run, and its PING frames.

    The run is the first frames up to one that is neither a PING nor a PUBLISH of QoS 1 for the
    topic of the first one. It is empty if the first one is not such a PUBLISH.
    """
    first = frames[0]
    messages: list[bytes] = []
    pings: list[bytes] = []
    if first[0] != _PUBLISH:
        return "", messages, pings
    try:
        _, qos, topic, message = decode_publish(first)
    except InvalidFrame:
        return "", messages, pings
    if qos != 1:
        return "", messages, pings
    start, end = _HEAD.size, len(first) - len(message)
    head = first[start:end]
    # A frame with the QoS and topic of a valid one is valid.
    types = bytes(map(itemgetter(0), frames))
    if not types.strip(_RUN_TYPES):
        publishes = list(compress(frames, types.translate(_IS_PUBLISH)))
        pings = list(compress(frames, types.translate(_IS_PING)))
        heads = [frame[start:end] for frame in publishes]
        if heads.count(head) == len(heads) and list(map(len, pings)).count(start) == len(pings):
            return topic, [frame[end:] for frame in publishes], pings
        pings = []
    for frame in frames:
        if frame[0] == _PUBLISH and frame[start:end] == head:
            messages.append(frame[end:])
        elif frame[0] == _PING and len(frame) == start:
            pings.append(frame)
        else:
            break
    return topic, messages, pings


def poll_run(frames: Sequence[bytes]) -> tuple[int, list[tuple[int, int]]]:
    """Return a run of POLL, ACK and PING: the subscription, and (type, correlation id) of each.

    The run is the first frames up to one of another type or subscription. The subscription is 0 in
    a run of PINGs alone, which is also the result for a first frame that begins no run.
    """
    subscription, end = b"", _HEAD.size
    requests: list[tuple[int, int]] = []
    for frame in frames:
        kind = frame[0]
        if kind == _PING:
            if len(frame) != end:
                break
        elif kind not in (_POLL, _ACK) or len(frame) != _HEAD_U64.size:
            break
        elif frame[end:] != subscription:
            if subscription:
                break
            subscription = frame[end:]
        requests.append((kind, int.from_bytes(frame[1:end], "big")))
    return int.from_bytes(subscription, "big"), requests


def decode_subscribe(frame: bytes) -> Subscribe:
    start = _HEAD_U16.size
    if len(frame) < start:
        raise InvalidFrame("invalid SUBSCRIBE payload")
    _, correlation_id, length = _HEAD_U16.unpack_from(frame)
    end = start + length
    if end >= len(frame):
        raise InvalidFrame("invalid SUBSCRIBE payload")
    topic, qos = _text(frame[start:end], "SUBSCRIBE"), frame[end]
    _check(topic, qos)
    return Subscribe(correlation_id, topic, qos)


def decode_ack(frame: bytes) -> Ack:
    if len(frame) != _HEAD_U64.size:
        raise InvalidFrame("invalid ACK payload")
    _, correlation_id, subscription_id = _HEAD_U64.unpack(frame)
    return Ack(correlation_id, subscription_id)


def decode_nack(frame: bytes) -> Nack:
    start = _HEAD_CODE_TEXT.size
    if len(frame) < start:
        raise InvalidFrame("invalid NACK payload")
    _, correlation_id, code, length = _HEAD_CODE_TEXT.unpack_from(frame)
    if len(frame) != start + length:
        raise InvalidFrame("invalid NACK payload")
    return Nack(correlation_id, code, _text(frame[start:], "NACK"))


def decode_poll(frame: bytes) -> Poll:
    if len(frame) != _HEAD_U64.size:
        raise InvalidFrame("invalid POLL payload")
    _, correlation_id, subscription_id = _HEAD_U64.unpack(frame)
    return Poll(correlation_id, subscription_id)


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidFrame(f"invalid {what} payload") from None


def _check(topic: str, qos: int) -> None:
    if not topic:
        raise InvalidFrame(EMPTY_TOPIC)
    if qos > 1:
        raise InvalidFrame(WRONG_QOS)


_DECODERS: dict[int, Callable[[bytes], Message]] = {
    FrameType.HELLO: decode_hello,
    FrameType.AUTH: decode_auth,
    FrameType.PUBLISH: decode_publish,
    FrameType.SUBSCRIBE: decode_subscribe,
    FrameType.ACK: decode_ack,
    FrameType.NACK: decode_nack,
    FrameType.PING: lambda frame: Ping(correlation_id_of(frame)),
    FrameType.PONG: lambda frame: Pong(correlation_id_of(frame)),
    FrameType.POLL: decode_poll,
}


# -- encoding --------------------------------------------------------------------------------------


def delivery_head(correlation_id: int, qos: int, topic: bytes, message_bytes: int) -> bytes:
    """Return the beginning of a delivery's frame, before the message; the topic is UTF-8.

    The caller checks the size of the frame.
    """
    length = _HEAD_QOS_TOPIC.size + len(topic) + message_bytes
    return _LENGTH_HEAD_QOS_TOPIC.pack(length, _PUBLISH, correlation_id, qos, len(topic)) + topic


def accepted(correlation_id: int, subscription_id: int = 0) -> bytes:
    """Return the complete frame of the broker's ACK."""
    return _LENGTH_HEAD_U64.pack(_HEAD_U64.size, _ACK, correlation_id, subscription_id)


def _sized(text: str) -> bytes:
    data = text.encode()
    if len(data) > 0xFFFF:
        raise ValueError(
            f"a text of {len(data)} bytes is over the limit of 65535: {text[:32]!r}..."
        )
    return _U16.pack(len(data)) + data


_ENCODERS: dict[type, Callable[[Any], tuple[int, bytes]]] = {
    Hello: lambda m: (FrameType.HELLO, _U16.pack(m.version)),
    Auth: lambda m: (FrameType.AUTH, _sized(m.key)),
    Publish: lambda m: (FrameType.PUBLISH, bytes([m.qos]) + _sized(m.topic) + m.message),
    Subscribe: lambda m: (FrameType.SUBSCRIBE, _sized(m.topic) + bytes([m.qos])),
    Ack: lambda m: (FrameType.ACK, m.subscription_id.to_bytes(8, "big")),
    Nack: lambda m: (FrameType.NACK, _U16.pack(m.code) + _sized(m.text)),
    Ping: lambda m: (FrameType.PING, b""),
    Pong: lambda m: (FrameType.PONG, b""),
    Poll: lambda m: (FrameType.POLL, m.subscription_id.to_bytes(8, "big")),
}
