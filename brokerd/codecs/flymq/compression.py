# Tests: tests/codecs/test_flymq_compression.py
"""gzip of whole payloads, with an end to how large they may become (page, section Compression).

One member (RFC 1952), nothing after it. What is decompressed is made in steps of at most
``STEP_BYTES``, of which the last stops one byte past the limit.
"""

from __future__ import annotations

import gzip
import zlib

from brokerd.codecs.flymq.values import COMPRESSION_MASK, GZIP, RequestError

STEP_BYTES = 262_144
_PIECE_BYTES = 16_384
_MEMBER = b"\x1f\x8b\x08"
_GZIP_WINDOW = 31
_SIZE_BYTES = 4


def decompressed(flags: int, payload: bytes, max_bytes: int) -> bytes:
    """The payload as it was before it was compressed.

    :raises RequestError: another compression than gzip, not gzip, or more than `max_bytes`.
    """
    compression = flags & COMPRESSION_MASK
    if not compression:
        return payload
    if compression != GZIP:
        raise RequestError(
            f"compression 0x{compression:02X} is not supported; send gzip (0x{GZIP:02X}) "
            "or plain payloads"
        )
    if not payload:
        raise _not_gzip("it is empty")
    _refuse_announced(payload, max_bytes)
    try:
        return _inflate(payload, max_bytes)
    except zlib.error as error:
        raise _not_gzip(str(error)) from None


def compressed(payload: bytes) -> bytes:
    """One gzip member; the same bytes for the same payload."""
    return gzip.compress(payload, mtime=0)


def _refuse_announced(payload: bytes, max_bytes: int) -> None:
    """Refuse what says in its trailer that it is too large, before anything is decompressed."""
    size = int.from_bytes(payload[-_SIZE_BYTES:], "little")
    if payload.startswith(_MEMBER) and size > max_bytes:
        raise RequestError(
            f"the payload says that it has {size} bytes when it is decompressed; "
            f"it may have {max_bytes}"
        )


def _inflate(payload: bytes, max_bytes: int) -> bytes:
    inflater = zlib.decompressobj(wbits=_GZIP_WINDOW)
    parts: list[bytes] = []
    room = max_bytes
    for start in range(0, len(payload), _PIECE_BYTES):
        piece = payload[start : start + _PIECE_BYTES]
        while piece:
            part = inflater.decompress(piece, min(STEP_BYTES, room + 1))
            room -= len(part)
            if room < 0:
                raise RequestError(
                    f"the payload has more than {max_bytes} bytes when it is decompressed"
                )
            parts.append(part)
            piece = inflater.unconsumed_tail
        if inflater.eof:
            rest = len(inflater.unused_data) + max(0, len(payload) - start - _PIECE_BYTES)
            if rest:
                raise _not_gzip(f"after its only member {rest} bytes follow it")
            return b"".join(parts)
    raise _not_gzip("it is cut short")


def _not_gzip(reason: str) -> RequestError:
    return RequestError(f"the payload is not gzip: {reason}")
