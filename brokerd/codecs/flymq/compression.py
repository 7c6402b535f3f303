# Tests: tests/codecs/test_flymq_compression.py
"""gzip of whole payloads, with a limit of the decompressed size (page, section Compression).

A payload is one member (RFC 1952) without trailing bytes. A step of the decompression makes at most
``STEP_BYTES`` and reads at most ``PIECE_BYTES``, since long blocks may decompress to no bytes.
"""

from __future__ import annotations

import gzip
import zlib

from brokerd.codecs.flymq.values import COMPRESSION_MASK, GZIP, RequestError

STEP_BYTES = 65_536
"""Largest output of a step; it takes a fifth of a millisecond."""
PIECE_BYTES = 16_384
"""Largest input of a step; it takes up to two milliseconds."""
_MEMBER = b"\x1f\x8b\x08"
_GZIP_WINDOW = 31
_SIZE_BYTES = 4


class Inflation:
    """The decompression of a payload; ``inflated`` is the output so far.

    :raises RequestError: by the constructor or a step, for another compression than gzip, malformed
        gzip, or more than `max_bytes`.
    """

    def __init__(self, flags: int, payload: bytes, max_bytes: int) -> None:
        compression = flags & COMPRESSION_MASK
        if compression != GZIP:
            raise RequestError(
                f"compression 0x{compression:02X} is not supported; send gzip (0x{GZIP:02X}) "
                "or plain payloads"
            )
        if not payload:
            raise _not_gzip("it is empty")
        _refuse_announced(payload, max_bytes)
        self._payload = payload
        self._max_bytes = max_bytes
        self._inflater = zlib.decompressobj(wbits=_GZIP_WINDOW)
        self.read_bytes = 0
        """Number of bytes read from the payload."""
        self.inflated = bytearray()

    def step(self) -> bool:
        """Decompress one step; return True at the end."""
        piece = self._inflater.unconsumed_tail or self._next_piece()
        room = self._max_bytes - len(self.inflated)
        try:
            part = self._inflater.decompress(piece, min(STEP_BYTES, room + 1))
        except zlib.error as error:
            raise _not_gzip(str(error)) from None
        if len(part) > room:
            raise RequestError(
                f"the payload has more than {self._max_bytes} bytes when it is decompressed"
            )
        self.inflated += part
        if not self._inflater.eof:
            return False
        rest = len(self._inflater.unused_data) + len(self._payload) - self.read_bytes
        if rest:
            raise RequestError(
                f"the payload must be one gzip member and nothing else: {rest} bytes follow it"
            )
        return True

    def _next_piece(self) -> bytes:
        start = self.read_bytes
        piece = self._payload[start : start + PIECE_BYTES]
        if not piece:
            raise _not_gzip("it is cut short")
        self.read_bytes = start + len(piece)
        return piece


def compressed(payload: bytes) -> bytes:
    """Return one gzip member, the same bytes for the same payload."""
    return gzip.compress(payload, mtime=0)


def _refuse_announced(payload: bytes, max_bytes: int) -> None:
    """Refuse a payload whose trailer announces too many bytes, before its decompression."""
    size = int.from_bytes(payload[-_SIZE_BYTES:], "little")
    if payload.startswith(_MEMBER) and size > max_bytes:
        raise RequestError(
            f"the payload says in its last {_SIZE_BYTES} bytes that it has {size} bytes when it is "
            f"decompressed; it may have {max_bytes}"
        )


def _not_gzip(reason: str) -> RequestError:
    return RequestError(f"the payload is not gzip: {reason}")
