# Tests: tests/broker/test_sealing.py
"""Seals segments on request, so that a rollup can archive the newest records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from brokerd.broker.clock import Clock, Timer
from brokerd.broker.group_commit import GroupCommit
from brokerd.errors import NoSpace
from brokerd.wal import Wal

WAIT_SECONDS = 20.0
"""A request fails if the segment is not sealed by then."""

SealCallback = Callable[[int, Exception | None], None]
"""Takes the LSN below which all segments are sealed; the error says why segments remain."""


@dataclass(eq=False)
class _Request:
    """A request to seal all entries below ``end_lsn``."""

    end_lsn: int
    sealed: SealCallback
    timer: Timer = field(init=False)


class Sealing:
    """Seals the active segment. Calls ``after_seal()`` after each sealed segment."""

    def __init__(
        self, wal: Wal, group_commit: GroupCommit, clock: Clock, after_seal: Callable[[], None]
    ) -> None:
        self._wal = wal
        self._group_commit = group_commit
        self._clock = clock
        self._after_seal = after_seal
        self._waiting: list[_Request] = []
        wal.on_sealed.append(self._on_sealed)

    def stop(self) -> None:
        """Drop all requests without an answer."""
        for request in self._waiting:
            request.timer.cancel()
        self._waiting.clear()

    def seal(self, sealed: SealCallback) -> None:
        """Seal all entries applied so far; sealed segments stay as they are.

        Calls ``sealed`` when the segment's index is on the disk, or with `NoSpace` if the disk is
        full or the index is not written within `WAIT_SECONDS`.
        """
        self._group_commit.when_all_durable(lambda: self._seal(sealed))

    def _seal(self, sealed: SealCallback) -> None:
        self._wal.seal()
        request = _Request(self._wal.durable_lsn, sealed)
        request.timer = self._clock.callLater(WAIT_SECONDS, self._give_up, request)
        self._waiting.append(request)
        self._answer()
        if self._wal.allocation_error is not None and request in self._waiting:
            self._give_up(request)

    def _on_sealed(self) -> None:
        self._answer()
        self._after_seal()

    def _answer(self) -> None:
        """Answer the requests whose segment is sealed."""
        lsn = self._wal.sealed_lsn
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            if request.end_lsn > lsn:
                self._waiting.append(request)
                continue
            request.timer.cancel()
            request.sealed(lsn, None)

    def _give_up(self, request: _Request) -> None:
        """Answer one request with an error."""
        self._waiting.remove(request)
        if request.timer.active():
            request.timer.cancel()
        reason = self._wal.allocation_error or "no index was written in time"
        error = NoSpace(f"the journal's last file cannot be sealed now: {reason}; free some space")
        request.sealed(self._wal.sealed_lsn, error)
