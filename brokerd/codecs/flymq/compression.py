# Tests: tests/codecs/test_flymq_compression.py
"""gzip of whole payloads, with an end to how large they may become (page, section Compression).

One member (RFC 1952), nothing after it. It is decompressed in steps of at most ``STEP_BYTES``, none
of which reads more than ``PIECE_BYTES``: there are blocks that say nothing at great length.
"""

from __future__ import annotations

import gzip
import zlib

from brokerd.codecs.flymq.values import COMPRESSION_MASK, GZIP, RequestError

STEP_BYTES = 65_536
"""What a step makes at most, in a fifth of a millisecond."""
PIECE_BYTES = 16_384
"""What a step reads at most, in two milliseconds."""
_MEMBER = b"\x1f\x8b\x08"
_GZIP_WINDOW = 31
_SIZE_BYTES = 4


class Inflation:
    """The decompression of a payload, under way; ``inflated`` is what it has made.

    :raises RequestError: another compression than gzip, not gzip, or more than `max_bytes`; from
        its beginning, or from the step that finds out.
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
        """How much of the payload was read."""
        self.inflated = bytearray()

    def step(self) -> bool:
        """Decompress some more; True when that was the last."""
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
    """One gzip member; the same bytes for the same payload."""
    return gzip.compress(payload, mtime=0)


def _refuse_announced(payload: bytes, max_bytes: int) -> None:
    """Refuse what says in its trailer that it is too large, before anything is decompressed."""
    size = int.from_bytes(payload[-_SIZE_BYTES:], "little")
    if payload.startswith(_MEMBER) and size > max_bytes:
        raise RequestError(
            f"the payload says in its last {_SIZE_BYTES} bytes that it has {size} bytes when it is "
            f"decompressed; it may have {max_bytes}"
        )


def _not_gzip(reason: str) -> RequestError:
    return RequestError(f"the payload is not gzip: {reason}")
