"""FlyMQ answers that the broker sends in parts, as the bytes that a client reads."""

from __future__ import annotations

from collections.abc import Sequence

from brokerd.codecs import flymq as fm
from brokerd.values import Record


def consumed(key: bytes | None, value: bytes, opcode: int = fm.Opcode.CONSUME) -> bytes:
    return b"".join(fm.consumed_parts(key, value, opcode))


def fetched(request: fm.Fetch, records: Sequence[Record], next_offset: int) -> bytes:
    return b"".join(fm.fetched_parts(request, records, next_offset))


def fetched_seed(records: Sequence[Record], next_offset: int) -> bytes:
    """Return an answer in the document's layout."""
    return fetched(fm.Fetch("t", 0, 0, 1), records, next_offset)


def fetched_sdk(
    records: Sequence[Record], next_offset: int, opcode: fm.Opcode = fm.Opcode.FETCH
) -> bytes:
    """Return an answer in the SDKs' layout."""
    return fetched(fm.Fetch("t", 0, 0, 1, sdk=True, opcode=opcode), records, next_offset)
