# Tests: tests/client/test_checks.py
"""Encodes arguments of a Mamamia client: payloads, metadata, keys and batches.

Raises the built-in `TypeError` and `ValueError`, which name the argument, for values that
MessagePack cannot encode, and `RecordTooLarge` for values that do not fit a frame.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from brokerd.client.checks import bytes_of, kind_of
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

Item = TypeVar("Item", BatchMessage, BatchSettle)


def packed_payload(payload: object) -> tuple[bytes, int]:
    """Return (value, encoding) of a payload."""
    try:
        return pack_payload(payload)
    except (TypeError, ValueError, OverflowError) as error:
        kind = ValueError if isinstance(error, ValueError | OverflowError) else TypeError
        raise kind(f"payload cannot be said in MessagePack: {error}") from None


def packed_metadata(metadata: dict[str, Any] | None) -> bytes | None:
    """Return encoded metadata."""
    if metadata is not None and not isinstance(metadata, dict):
        raise TypeError(f"metadata must be a dict, not {kind_of(metadata)}")
    try:
        return pack_metadata(metadata)
    except (TypeError, ValueError, OverflowError) as error:
        kind = ValueError if isinstance(error, ValueError | OverflowError) else TypeError
        raise kind(f"metadata cannot be said in MessagePack: {error}") from None


def packed_key(key: bytes | str | None) -> bytes | None:
    """Return an encoded key."""
    return None if key is None else bytes_of("key", key)


def checked_items(name: str, items: Iterable[Item], kind: type[Item], made_by: str) -> list[Item]:
    """Return the items of a batch, all results of the function ``made_by``."""
    found = list(items)
    for index, item in enumerate(found):
        if not isinstance(item, kind):
            raise TypeError(f"{name}[{index}] must be made by {made_by}, and is {kind_of(item)}")
    return found


def check_size(request: Produce | ProduceBatch) -> None:
    """Refuse a request that does not fit a frame, or whose delivery would not."""
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
