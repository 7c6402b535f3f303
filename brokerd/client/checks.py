# Tests: tests/client/test_checks.py
"""What is passed to a client, looked at before anything is sent: errors name the argument.

Raises the built-in `TypeError` and `ValueError`, and `RecordTooLarge`. What names may hold and what
numbers mean is the broker's to say; here is what MessagePack or a frame could not carry.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any, TypeVar

from brokerd.codecs.mamamia import (
    MAX_LENGTH,
    BatchMessage,
    BatchSettle,
    Produce,
    ProduceBatch,
    answer_length,
    encode_request,
    pack_metadata,
    pack_payload,
)
from brokerd.errors import RecordTooLarge

NUMBER_MAX = (1 << 63) - 1

Item = TypeVar("Item", BatchMessage, BatchSettle)


def check_text(**given: str) -> None:
    """Each is a str that UTF-8 can say."""
    for name, value in given.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a str, not {_kind(value)}")
        _utf8(name, value)


def check_numbers(**given: int) -> None:
    """Each is an int from 0 to 2^63 - 1."""
    for name, value in given.items():
        if type(value) is not int:
            raise TypeError(f"{name} must be an int, not {_kind(value)}")
        if not 0 <= value <= NUMBER_MAX:
            raise ValueError(f"{name} must be from 0 to 2^63 - 1, not {value}")


def check_optional(
    text: dict[str, str | None] | None = None, numbers: dict[str, int | None] | None = None
) -> None:
    """As `check_text` and `check_numbers`; None is one that was not given."""
    check_text(**{name: one for name, one in (text or {}).items() if one is not None})
    check_numbers(**{name: one for name, one in (numbers or {}).items() if one is not None})


def check_seconds(**given: float | None) -> None:
    """Each is a finite number; None is one that was not given."""
    for name, value in given.items():
        if value is None:
            continue
        if type(value) is not float and type(value) is not int:
            raise TypeError(f"{name} must be a number of seconds, not {_kind(value)}")
        if not isfinite(value) or abs(value) > NUMBER_MAX:
            raise ValueError(f"{name} must be a number of seconds, not {value}")


def packed_payload(payload: object) -> tuple[bytes, int]:
    """(value, encoding) of a payload."""
    try:
        return pack_payload(payload)
    except (TypeError, ValueError, OverflowError) as error:
        kind = ValueError if isinstance(error, ValueError | OverflowError) else TypeError
        raise kind(f"payload cannot be said in MessagePack: {error}") from None


def packed_metadata(metadata: dict[str, Any] | None) -> bytes | None:
    """Metadata as it is sent."""
    if metadata is not None and not isinstance(metadata, dict):
        raise TypeError(f"metadata must be a dict, not {_kind(metadata)}")
    try:
        return pack_metadata(metadata)
    except (TypeError, ValueError, OverflowError) as error:
        kind = ValueError if isinstance(error, ValueError | OverflowError) else TypeError
        raise kind(f"metadata cannot be said in MessagePack: {error}") from None


def packed_key(key: bytes | str | None) -> bytes | None:
    """A key as it is sent."""
    if isinstance(key, str):
        return _utf8("key", key)
    if key is not None and not isinstance(key, bytes):
        raise TypeError(f"key must be bytes or str, not {_kind(key)}")
    return key


def checked_items(name: str, items: Iterable[Item], kind: type[Item], made_by: str) -> list[Item]:
    """The items of a batch, each of the kind that ``made_by`` makes."""
    found = list(items)
    for index, item in enumerate(found):
        if not isinstance(item, kind):
            raise TypeError(f"{name}[{index}] must be made by {made_by}, and is {_kind(item)}")
    return found


def check_size(request: Produce | ProduceBatch) -> None:
    """Refuse what is larger than a frame, or could not be delivered in one."""
    messages = [request] if isinstance(request, Produce) else request.messages
    sizes = [len(one.value) + len(one.metadata or b"") + len(one.key or b"") for one in messages]
    if sum(sizes) <= MAX_LENGTH // 2:
        return
    length = len(encode_request(request)) - 4
    if length <= MAX_LENGTH:
        length = max(
            answer_length(request.log_id, one.value, one.encoding, one.metadata) for one in messages
        )
    if length > MAX_LENGTH:
        advice = "send less" if len(sizes) == 1 else "send fewer messages at once"
        raise RecordTooLarge(
            f"payload, metadata and key take a frame of {length} bytes, and it may have "
            f"{MAX_LENGTH}: {advice}"
        )


def _utf8(name: str, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} cannot be said in UTF-8: {error}") from None


def _kind(value: object) -> str:
    return f"a {type(value).__name__}" if value is not None else "None"
