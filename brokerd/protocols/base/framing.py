# Tests: tests/protocols/test_connection.py, tests/protocols/test_strangers.py
"""A connection that splits its bytes into frames and handles them in order.

A format implements `FrameConnection.handle`, and `FrameConnection.refuse` for the refusals that
``handle`` raises. It may override `FrameConnection.handle_stream_error`. No frame is handled while
``holds`` is set, and one reactor turn handles as many frames as `Connection.overtime` allows. A
frame that has to wait stays first and is handled again.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

from brokerd.broker import Broker, Congested
from brokerd.errors import AuthenticationRequired, BrokerdError, Denied, without_traceback
from brokerd.protocols.base.connection import Connection
from brokerd.protocols.base.memory import ANSWERS, AwaitMemory
from brokerd.protocols.base.request_times import OPERATION

STRANGER_BYTES_MAX: Final = 128 << 10
"""Largest unfinished frame of a client without permissions: many times the size of a login.

The same limit holds for the decompressed size of a compressed frame."""

RUN_FRAMES_MIN: Final = 4
"""Fewer frames are handled one by one."""
RUN_FRAMES_MAX: Final = 512
"""Frames that one run handles at most: some milliseconds."""

FrameT = TypeVar("FrameT")
ErrorT = TypeVar("ErrorT", bound=BrokerdError)
AnyError = TypeVar("AnyError", bound=BrokerdError, covariant=True)


class Reader(Protocol[FrameT, AnyError]):
    """A codec's frame reader; see `brokerd.codecs.framing.FramesReader`."""

    @property
    def error(self) -> AnyError | None: ...

    @property
    def partial_bytes(self) -> int: ...

    def feed(self, data: bytes) -> list[FrameT]: ...


class FrameOnHold(Exception):
    """Raised after a hold was set: the frame is handled again when the hold is released."""


class FrameConnection(Connection, Generic[FrameT, ErrorT]):
    """One connection of a format with frames."""

    def __init__(self, broker: Broker, reader: Reader[FrameT, ErrorT]) -> None:
        super().__init__(broker)
        self._reader = reader
        self.frames: list[FrameT] = []
        """Frames received and not handled yet."""
        self._first_since = 0.0
        """When the first frame was handled for the first time, if it had to wait; else 0."""

    # -- for the format -----------------------------------------------------------------------

    def handle(self, frame: FrameT) -> None:
        """Carry out a frame.

        Raises `Congested` or `FrameOnHold` if the frame has to wait, and any other `BrokerdError`
        if `refuse` has to answer it.
        """
        raise NotImplementedError

    def handle_run(self, frames: list[FrameT]) -> int:
        """Carry out the first of these frames together if they are alike; return how many.

        The result is that of `handle` for each. Returns 0 if one of them might be refused or has to
        wait: `handle` gets them then. Must not change ``frames`` or raise a `BrokerdError`. It is
        not called while quotas hold for the client.
        """
        return 0

    def refuse(self, frame: FrameT, refusal: BrokerdError) -> None:
        """Answer a frame that `handle` refused, or raise ``refusal`` again if it is a fault.

        A fault is logged, and the connection is aborted without the answers of earlier frames.
        """
        raise refusal

    def operation_of(self, frame: FrameT) -> str:
        """Return the operation of a frame for the metrics; one of a fixed set of names."""
        return OPERATION

    def handle_stream_error(self, error: ErrorT) -> None:
        """Answer bytes that are no frame and close. All frames before them are handled."""
        self.close_after_answers()

    def quota_use(self, frame: FrameT) -> tuple[int, int]:
        """Return how a frame counts against quotas: its `Use`, and its bytes."""
        raise NotImplementedError

    def frame_to_retry(self, frame: FrameT) -> FrameT:
        """Return the part of a frame to keep after `Congested`."""
        return frame

    def close_here(self) -> None:
        """Drop all later frames and close when the earlier ones are answered."""
        self.frames.clear()
        self.close_after_answers()

    # -- for `Connection` ---------------------------------------------------------------------

    def feed(self, data: bytes) -> bool:
        """Split bytes into frames; return True if they completed one."""
        reader = self._reader
        frames = reader.feed(data)
        self.frames += frames
        partial_bytes = reader.partial_bytes
        self.unfinished = partial_bytes > 0
        self.received_bytes += len(data)
        if partial_bytes > STRANGER_BYTES_MAX and not (self.frames or self.holds):
            self._check_stranger()
        return bool(frames)

    def _check_stranger(self) -> None:
        """Close the connection of a client without permissions that fills memory."""
        if self.access.is_stranger:
            with suppress(AuthenticationRequired, Denied):
                self.access.require_known()  # writes an audit event
            self.abort()

    def handle_requests(self) -> None:
        """Handle the received frames until one has to wait."""
        frames = self.frames
        handle = self._handle_within_quotas if self.quotas else self.handle
        handled = 0
        if len(frames) >= RUN_FRAMES_MIN and not self.quotas:
            handled = self._handle_runs(frames)
        for frame in islice(frames, handled, None):
            if self.holds or (handled and self.overtime()):
                break
            try:
                handle(frame)
            except Congested as wait:
                if self.gone:  # the log failed meanwhile, and `forget` dropped the frames
                    return
                frames[handled] = self.frame_to_retry(frame)
                if isinstance(wait, AwaitMemory):
                    lacking = self.lacking_memory()
                    self.wait_for_memory(ANSWERS if lacking is None else lacking)
                else:
                    self.congested()
                break
            except FrameOnHold:
                break
            except BrokerdError as refusal:
                self.count_refusal(refusal)
                self.refuse(frame, refusal)
                without_traceback(refusal)
            handled += 1
        if handled:
            times = self.factory.request_times
            times.passes += 1
            if not times.passes & times.mask and handled <= len(frames):
                self.timed_operation = self.operation_of(frames[handled - 1])
                self.timed_since = self._first_since or self.pass_began_seconds
            if self._first_since:
                self._first_since = 0.0
        if handled < len(frames):
            self._first_since = self._first_since or self.pass_began_seconds
            self.received_bytes -= self.received_bytes * handled // len(frames)
        else:  # none is left; `close_here` drops the rest itself
            self.received_bytes = self._reader.partial_bytes
        del frames[:handled]
        broken = self._reader.error
        if broken is not None and not frames:
            self.handle_stream_error(broken)

    def _handle_runs(self, frames: list[FrameT]) -> int:
        """Handle runs of like frames, one after the other; return the number of frames."""
        handled = 0
        while len(frames) - handled >= RUN_FRAMES_MIN and not self.holds:
            if handled and self.overtime():
                break
            count = self.handle_run(frames[handled : handled + RUN_FRAMES_MAX])
            if not count:
                break
            handled += count
        return handled

    def _handle_within_quotas(self, frame: FrameT) -> None:
        """Count a frame against the quotas of the client and carry it out, or let it wait."""
        if self.waits_for_quota(*self.quota_use(frame)):
            raise FrameOnHold
        try:
            self.handle(frame)
        except (Congested, FrameOnHold):
            raise  # it is counted already when it is handled again
        except BrokerdError:
            self.used_quota()
            raise
        self.used_quota()

    def forget(self) -> None:
        """Drop the frames of a closed connection."""
        self.frames.clear()
