# Tests: tests/test_demo.py
"""The workers of the demo: their base class, and the state that they share.

A worker is a thread. When the broker is killed, it reconnects and resends the requests without an
answer. It records each answer in a ledger.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.wire import Interrupted
from brokerd.server.sections import FORMATS

from .connection import Connection, Feed, dial
from .ledger import Ledger
from .read_ledger import ReadLedger
from .rows import Row

TOPIC = "flights"


def writer_of(row: int) -> str:
    """Return the format that writes a row; the formats take turns."""
    return FORMATS[row % len(FORMATS)]


@dataclass
class SharedState:
    """The broker's addresses, the rows, the ledgers, and the events that coordinate the workers."""

    addresses: Mapping[str, str]
    """Wire format -> address."""
    rows: Sequence[Row]
    ledger: Ledger
    read_ledger: ReadLedger
    produce_window: int
    acquire_window: int
    kill_at: int
    """Number of acknowledged rows at which the broker is killed."""
    subscription_id: int = 0
    """BlipMQ subscription of the reader, made before the first row is written."""
    idle_subscription_id: int = 0
    """BlipMQ subscription that is first polled when the archive is read."""
    end_offset: int | None = None
    """Number of records in the log, once all writers are done."""
    near_kill: threading.Event = field(default_factory=threading.Event)
    killed: threading.Event = field(default_factory=threading.Event)
    end: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._number_of = {row.packed: row.number for row in self.rows}

    def read_by(self) -> dict[str, int]:
        """Return format -> number of records that its readers have finished."""
        return {
            form: self.ledger.finished() if form == "mamamia" else self.read_ledger.count(form)
            for form in FORMATS
        }

    def is_on(self) -> bool:
        """Return whether workers should continue."""
        return not self.end.is_set()

    def number_of(self, value: object) -> int | None:
        """Return the number of the row with these bytes, or None."""
        return self._number_of.get(value) if isinstance(value, bytes) else None


class Worker(threading.Thread):
    """A thread that records its failure in the ledger and ends the demo."""

    def __init__(self, state: SharedState, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.state = state

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:  # any exception is a finding
            self.state.ledger.report(f"{self.name} failed: {type(error).__name__}: {error}")
            self.state.end.set()

    def work(self) -> None:
        """Do the work; may raise."""
        raise NotImplementedError

    def converse(
        self, form: str, make_feed: Callable[[], Feed], talk: Callable[[Connection], bool]
    ) -> None:
        """Connect and call ``talk`` until it returns True or the demo ends."""
        address = self.state.addresses[form]
        while (connection := dial(address, make_feed, self.state.is_on)) is not None:
            with connection:
                try:
                    if talk(connection):
                        return
                except Interrupted:
                    continue  # talk recorded the answers and keeps the rest for a resend
