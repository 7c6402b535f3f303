# Tests: tests/test_demo.py
"""The records that each wire format read, compared with the log.

Readers record each record as they read it. :meth:`ReadLedger.check` returns one line for each
fault: a record that a format missed or read with other bytes, a committed offset that went back, a
message delivered again after its ACK was durable.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .ledger import first_few

NO_ROW = -1
_FINDINGS_MAX = 20


class ReadRecord(NamedTuple):
    """A record that a reader received."""

    offset: int
    row: int | None
    """The row with the same bytes; None if no row has them."""


class ReadLedger:
    """The records that the readers of ``formats`` received; thread-safe."""

    def __init__(self, formats: Sequence[str]) -> None:
        self.rows: dict[str, dict[int, int]] = {name: {} for name in formats}
        """Format -> offset -> row."""
        self._committed: dict[str, int] = {}
        self._acknowledged: dict[str, set[int]] = {name: set() for name in formats}
        self.findings: list[str] = []
        self._lock = threading.Lock()

    def add(self, name: str, records: Sequence[ReadRecord]) -> None:
        """Record the records that a format read."""
        with self._lock:
            rows, acknowledged = self.rows[name], self._acknowledged[name]
            for offset, row in records:
                if row is None:
                    self._find(f"{name}: offset {offset} has the bytes of no row")
                    rows.setdefault(offset, NO_ROW)
                elif rows.setdefault(offset, row) != row:
                    self._find(f"{name}: offset {offset} was row {rows[offset]} and row {row}")
                if offset in acknowledged:
                    self._find(f"{name}: offset {offset} came again after its ACK was durable")

    def acknowledge(self, name: str, offsets: Sequence[int]) -> None:
        """Record messages whose ACK is durable; the broker must not deliver them again."""
        with self._lock:
            self._acknowledged[name].update(offsets)

    def commit(self, name: str, offset: int) -> None:
        """Record an acknowledged commit of an offset."""
        with self._lock:
            self._committed[name] = offset

    def resume(self, name: str, offset: int) -> None:
        """Check the committed offset that the broker returned against the last commit."""
        with self._lock:
            if offset < self._committed.get(name, 0):
                self._find(
                    f"{name}: the broker returned committed offset {offset} after it had "
                    f"acknowledged a commit of {self._committed[name]}"
                )

    def count(self, name: str) -> int:
        """Return the number of distinct records that a format has read."""
        return len(self.rows[name])

    def check(self, log: Mapping[int, int]) -> list[str]:
        """Compare the records of each format with the log.

        :param log: offset -> row, for every record of the log.
        :return: one line for each difference.
        """
        wrong = list(self.findings)
        for name, rows in self.rows.items():
            missing = log.keys() - rows.keys()
            if missing:
                wrong.append(f"{name} did not read {len(missing)} records: {first_few(missing)}")
            beyond = rows.keys() - log.keys()
            if beyond:
                wrong.append(
                    f"{name} read {len(beyond)} records that the log lacks: {first_few(beyond)}"
                )
            other = {offset for offset in rows.keys() & log.keys() if rows[offset] != log[offset]}
            if other:
                wrong.append(f"{name} read {len(other)} records as other rows: {first_few(other)}")
        return wrong

    def _find(self, what: str) -> None:
        if len(self.findings) < _FINDINGS_MAX:
            self.findings.append(what)
