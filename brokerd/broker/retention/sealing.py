# Tests: tests/broker/test_sealing.py
"""Seals segments on request, so that a rollup can archive the newest records."""

from __future__ import annotations

from collections.abc import Callable

from brokerd.broker.journal import Clock, DelayedCall, Journal
from brokerd.errors import NoSpace
from brokerd.wal import Wal

WAIT_SECONDS = 20.0
"""A request fails if the segment is not sealed by then."""

SealCallback = Callable[[int, Exception | None], None]
"""Takes the LSN below which all segments are sealed; the error says why segments remain."""


class Sealing:
    """Seals the active segment. Calls ``after_seal()`` after each sealed segment."""

    def __init__(
        self, wal: Wal, journal: Journal, clock: Clock, after_seal: Callable[[], None]
    ) -> None:
        self._wal = wal
        self._journal = journal
        self._clock = clock
        self._after_seal = after_seal
        self._waiting: list[tuple[int, SealCallback, DelayedCall]] = []
        wal.on_sealed = self._on_sealed

    def stop(self) -> None:
        """Drop all requests without an answer."""
        for _, _, call in self._waiting:
            call.cancel()
        self._waiting.clear()

    def seal(self, sealed: SealCallback) -> None:
        """Seal all entries applied so far; sealed segments stay as they are.

        Calls ``sealed`` when the segment's index is on the disk, or with `NoSpace` if the disk is
        full or the index is not written within `WAIT_SECONDS`.
        """
        self._journal.when_all_durable(lambda: self._seal(sealed))

    def _seal(self, sealed: SealCallback) -> None:
        self._wal.seal()
        call = self._clock.callLater(WAIT_SECONDS, self._give_up)
        self._waiting.append((self._wal.durable_lsn, sealed, call))
        if self._wal.allocation_error is not None:
            self._give_up()
        else:
            self._answer()

    def _on_sealed(self) -> None:
        self._answer()
        self._after_seal()

    def _answer(self, error: Exception | None = None) -> None:
        """Answer the requests whose segment is sealed; with an error, answer all requests."""
        lsn = self._wal.sealed_lsn
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            end_lsn, sealed, call = one
            if end_lsn > lsn and error is None:
                self._waiting.append(one)
                continue
            if call.active():
                call.cancel()
            sealed(lsn, error if end_lsn > lsn else None)

    def _give_up(self) -> None:
        reason = self._wal.allocation_error or "no index was written in time"
        self._answer(
            NoSpace(f"the journal's last file cannot be sealed now: {reason}; free some space")
        )
