"""The decoder of each wire format, as the broker reads with it, for tests of all of them."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from hypothesis import strategies as st

from brokerd.codecs import blipmq, flymq, mamamia, mega, rustlog
from tests.strategies import blipmq as blipmq_strategies
from tests.strategies import flymq as flymq_strategies
from tests.strategies import mamamia as mamamia_strategies
from tests.strategies import mega as mega_strategies
from tests.strategies import rustlog as rustlog_strategies


class Reader(Protocol):
    """The common interface of all decoders of streams."""

    error: Any

    @property
    def partial_bytes(self) -> int: ...

    def feed(self, data: bytes) -> list[Any]: ...


class Decoder(NamedTuple):
    """A decoder, and strategies for its input."""

    reader: Callable[[], Reader]
    sent: st.SearchStrategy[tuple[bytes, Any]]
    """One whole frame, and the single value that the reader decodes from it."""
    broken: st.SearchStrategy[bytes]
    """Bytes that are invalid in every stream; the last of them makes it certain."""
    claims: tuple[bytes, ...]
    """Beginnings of requests that claim the largest allowed size."""
    look_ahead_bytes: int = 0
    """Bytes of the previous request that the reader may still hold."""

    @property
    def requests(self) -> st.SearchStrategy[bytes]:
        return self.sent.map(itemgetter(0))


def _wrong_lengths(least: int, most: int) -> st.SearchStrategy[bytes]:
    lengths = st.integers(most + 1, (1 << 32) - 1)
    if least:
        lengths |= st.integers(0, least - 1)
    return lengths.map(lambda length: length.to_bytes(4, "big"))


def _mega_head(kind: int, topic_length: int) -> bytes:
    return b"\0\0\0\7" + bytes([kind]) + topic_length.to_bytes(4, "big", signed=True)


DECODERS: dict[str, Decoder] = {
    "mamamia": Decoder(
        mamamia.FrameReader,
        mamamia_strategies.frames.map(lambda one: (mamamia.frame(*one), one)),
        _wrong_lengths(2, mamamia.MAX_LENGTH),
        (mamamia.MAX_LENGTH.to_bytes(4, "big") + b"\1\1",),
    ),
    "blipmq": Decoder(
        blipmq.frame_reader,
        blipmq_strategies.messages.map(blipmq.encode).map(lambda data: (data, data[4:])),
        _wrong_lengths(blipmq.MIN_LENGTH, blipmq.MAX_LENGTH),
        (blipmq.MAX_LENGTH.to_bytes(4, "big") + b"\3",),
    ),
    "flymq": Decoder(
        flymq.FrameReader,
        flymq_strategies.frames.map(lambda one: (flymq.frame(one[0], one[2], flags=one[1]), one)),
        st.one_of(
            st.integers(0, 255).filter(lambda byte: byte != 0xAF).map(lambda byte: bytes([byte])),
            st.integers(0, 255)
            .filter(lambda byte: byte != 1)
            .map(lambda byte: bytes([0xAF, byte])),
            _wrong_lengths(0, flymq.MAX_LENGTH).map(lambda length: b"\xaf\1\1\1" + length),
        ),
        (b"\xaf\1\1\1" + flymq.MAX_LENGTH.to_bytes(4, "big"),),
    ),
    "rustlog": Decoder(
        rustlog.FrameReader,
        rustlog_strategies.payloads.map(lambda payload: (rustlog.frame(payload), payload)),
        _wrong_lengths(1, rustlog.MAX_PAYLOAD),
        (rustlog.MAX_PAYLOAD.to_bytes(4, "big") + b"\1",),
    ),
    "mega": Decoder(
        mega.RequestReader,
        st.tuples(mega_strategies.requests, mega_strategies.dialects).map(
            lambda one: (mega.encode_request(*one), one[0])
        ),
        st.one_of(
            # Below 16 Mi the look-ahead would take the trailer of the previous request for an id.
            st.tuples(st.integers(1, 3), st.integers(mega.MAX_TOPIC_BYTES + 1, (1 << 24) - 1)).map(
                lambda head: _mega_head(*head) + b"t"
            ),
            st.integers(-(1 << 31), -1)
            .map(lambda length: length.to_bytes(4, "big", signed=True))
            .map(lambda length: _mega_head(1, 1) + b"t" + bytes(8) + length),
        ),
        (
            _mega_head(1, mega.MAX_TOPIC_BYTES),
            _mega_head(1, 1) + b"t" + bytes(8) + mega.MAX_PAYLOAD_BYTES.to_bytes(4, "big"),
            _mega_head(1, 1) + b"t" + bytes(8) + mega.MAX_SKIPPED_BYTES.to_bytes(4, "big"),
        ),
        look_ahead_bytes=4,
    ),
}
