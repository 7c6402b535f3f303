# Tests: tests/protocols/test_connection.py, tests/protocols/test_strangers.py
"""A connection whose bytes are frames, each of them handled in its turn.

A format says what a frame does (`FrameConnection.handle`), how one is refused, and what is
answered at the end of a stream that cannot be followed any further. In its turn is: in the order in
which frames came, none while ``holds`` is set, and as many in one turn of the reactor as
`Connection.overtime` allows. A frame that has to wait stays in front and is handled again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, Generic, Protocol, TypeVar

from brokerd.broker import Broker, Congested
from brokerd.errors import AuthenticationRequired, BrokerdError, Denied, without_frames
from brokerd.protocols.base.connection import Connection

STRANGER_BYTES_MAX: Final = 128 << 10
"""What is kept of an unfinished frame of somebody who may do nothing: many times a login.

A compressed one may become no more, either."""

FrameT = TypeVar("FrameT")
ErrorT = TypeVar("ErrorT", bound=BrokerdError)
AnyError = TypeVar("AnyError", bound=BrokerdError, covariant=True)


class Reader(Protocol[FrameT, AnyError]):
    """What a format's codec makes frames with; see `brokerd.codecs.framing.FramesReader`."""

    @property
    def error(self) -> AnyError | None: ...

    @property
    def partial_bytes(self) -> int: ...

    def feed(self, data: bytes) -> list[FrameT]: ...


class FrameOnHold(Exception):
    """Not an answer: the frame in hand is handled again when the hold just set is released."""


class FrameConnection(Connection, Generic[FrameT, ErrorT]):
    """One connection of a format that has frames."""

    def __init__(self, broker: Broker, reader: Reader[FrameT, ErrorT]) -> None:
        super().__init__(broker)
        self._reader = reader
        self.frames: list[FrameT] = []
        """Taken in, not handled."""

    # -- for the format -----------------------------------------------------------------------

    def handle(self, frame: FrameT) -> None:
        """Carry a frame out.

        Raises `Congested` and `FrameOnHold` for one that has to wait, any other `BrokerdError`
        for one that `refuse` shall answer.
        """
        raise NotImplementedError

    def refuse(self, frame: FrameT, refusal: BrokerdError) -> None:
        """Answer a frame that `handle` did not carry out, or raise again what is no refusal."""
        raise refusal

    def handle_stream_error(self, error: ErrorT) -> None:
        """All frames are handled, and what comes behind them are none: answer that, and close."""
        self.close_after_answers()

    def frame_to_retry(self, frame: FrameT) -> FrameT:
        """What must be kept of a frame that met `Congested`."""
        return frame

    def close_here(self) -> None:
        """Close when what came before is answered; of the frames behind it none is handled."""
        self.frames.clear()
        self.close_after_answers()

    # -- for `Connection` ---------------------------------------------------------------------

    def feed(self, data: bytes) -> bool:
        """Take frames in."""
        reader = self._reader
        frames = reader.feed(data)
        self.frames += frames
        partial_bytes = reader.partial_bytes
        self.unfinished = partial_bytes > 0
        if partial_bytes > STRANGER_BYTES_MAX and not (self.frames or self.holds):
            self._check_stranger()
        return bool(frames)

    def _check_stranger(self) -> None:
        """Close on who keeps more than a login takes in memory, and may do nothing."""
        if self.access.is_stranger:
            with suppress(AuthenticationRequired, Denied):
                self.access.require_known()  # which tells of it in the audit trail
            self.abort()

    def run(self) -> None:
        """Handle the frames taken in, until one has to wait."""
        frames = self.frames
        handle = self.handle
        handled = 0
        for frame in frames:
            if self.holds or self.overtime(handled):
                break
            try:
                handle(frame)
            except Congested:
                frames[handled] = self.frame_to_retry(frame)
                self.congested()
                break
            except FrameOnHold:
                break
            except BrokerdError as refusal:
                self.refuse(frame, refusal)
                without_frames(refusal)
            handled += 1
        del frames[:handled]
        broken = self._reader.error
        if broken is not None and not frames:
            self.handle_stream_error(broken)

    def forget(self) -> None:
        """What a connection that is gone asked for is not carried out."""
        self.frames.clear()
