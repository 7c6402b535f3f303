# Tests: tests/broker/test_sealing.py
"""Segments sealed on request: for an archive that is to hold what was written just now."""

from __future__ import annotations

from collections.abc import Callable

from brokerd.broker.journal import Clock, DelayedCall, Journal
from brokerd.errors import NoSpace
from brokerd.wal import Wal

WAIT_SECONDS = 20.0
"""How long somebody waits for a segment to be sealed before hearing that it is not."""

Sealed = Callable[[int, Exception | None], None]
"""Called with the LSN below which all segments are sealed, and why that is not all."""


class Sealing:
    """Seals the active segment. ``after_seal()`` is called whenever a segment is sealed."""

    def __init__(
        self, wal: Wal, journal: Journal, clock: Clock, after_seal: Callable[[], None]
    ) -> None:
        self._wal = wal
        self._journal = journal
        self._clock = clock
        self._after_seal = after_seal
        self._waiting: list[tuple[int, Sealed, DelayedCall]] = []
        wal.on_sealed = self._on_sealed

    def stop(self) -> None:
        """Nobody waits any more."""
        for _, _, call in self._waiting:
            call.cancel()
        self._waiting.clear()

    def seal(self, sealed: Sealed) -> None:
        """Seal what holds all that is applied now; nothing is done if it is sealed already.

        ``sealed`` is called when the segment's index is on the disk, or with `NoSpace` if there is
        no room to go on, or no index after a while.
        """
        self._journal.when_all_durable(lambda: self._seal(sealed))

    def _seal(self, sealed: Sealed) -> None:
        self._wal.seal()
        call = self._clock.callLater(WAIT_SECONDS, self._give_up)
        self._waiting.append((self._wal.durable_lsn, sealed, call))
        if self._wal.allocation_error is not None:
            self._give_up()
        else:
            self._tell()

    def _on_sealed(self) -> None:
        self._tell()
        self._after_seal()

    def _tell(self, error: Exception | None = None) -> None:
        """Tell those who have what they waited for; and, if there is an error, everybody else."""
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
        self._tell(
            NoSpace(f"the journal's last file cannot be sealed now: {reason}; free some space")
        )
