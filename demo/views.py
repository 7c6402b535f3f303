# Tests: tests/test_demo.py
"""What each wire format saw of the log, row by row: the second half of the demo's books.

Contract: readers report each record as they read it; :meth:`Views.prove` returns one line for
everything that is off: a record that one format did not see, or saw otherwise than the log has it,
a committed offset that went back, a message that came again after its ACK was durable.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .ledger import some

NO_ROW = -1
_FINDINGS_MAX = 20


class Seen(NamedTuple):
    """A record as a reader got it."""

    offset: int
    row: int | None
    """The row whose bytes it holds; None when they are nobody's."""


class Views:
    """Everything the readers of ``formats`` were told; safe to use from several threads."""

    def __init__(self, formats: Sequence[str]) -> None:
        self.rows: dict[str, dict[int, int]] = {name: {} for name in formats}
        """Format -> offset -> row."""
        self._places: dict[str, int] = {}
        self._done: dict[str, set[int]] = {name: set() for name in formats}
        self.findings: list[str] = []
        self._lock = threading.Lock()

    def see(self, name: str, records: Sequence[Seen]) -> None:
        """Book records as a format showed them."""
        with self._lock:
            rows, done = self.rows[name], self._done[name]
            for offset, row in records:
                if row is None:
                    self._find(f"{name}: offset {offset} holds no row's bytes")
                    rows.setdefault(offset, NO_ROW)
                elif rows.setdefault(offset, row) != row:
                    self._find(f"{name}: offset {offset} was row {rows[offset]} and row {row}")
                if offset in done:
                    self._find(f"{name}: offset {offset} came again after its ACK was durable")

    def finish(self, name: str, offsets: Sequence[int]) -> None:
        """Book messages that must not come again: their ACK is durable."""
        with self._lock:
            self._done[name].update(offsets)

    def commit(self, name: str, offset: int) -> None:
        """Book an acknowledged commit of an offset."""
        with self._lock:
            self._places[name] = offset

    def go_on(self, name: str, offset: int) -> None:
        """Book where the broker told a reader to go on."""
        with self._lock:
            if offset < self._places.get(name, 0):
                self._find(
                    f"{name}: the broker knows of offset {offset}, and had acknowledged the commit "
                    f"of {self._places[name]}"
                )

    def count(self, name: str) -> int:
        """Records that a format has seen."""
        return len(self.rows[name])

    def prove(self, log: Mapping[int, int]) -> list[str]:
        """Hold what was seen against the log.

        :param log: offset -> row, for every record of it.
        :return: one line for each thing that is off.
        """
        wrong = list(self.findings)
        for name, rows in self.rows.items():
            missing = log.keys() - rows.keys()
            if missing:
                wrong.append(f"{name} did not see {len(missing)} records: {some(missing)}")
            beyond = rows.keys() - log.keys()
            if beyond:
                wrong.append(f"{name} saw {len(beyond)} records that are not there: {some(beyond)}")
            other = {offset for offset in rows.keys() & log.keys() if rows[offset] != log[offset]}
            if other:
                wrong.append(f"{name} saw {len(other)} records as other rows: {some(other)}")
        return wrong

    def _find(self, what: str) -> None:
        if len(self.findings) < _FINDINGS_MAX:
            self.findings.append(what)
