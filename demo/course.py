# Tests: tests/test_demo.py
"""What all workers of the demo share, and what every worker is: a thread that survives its broker.

Contract: a worker connects again after its broker was lost, sends again what was not answered, and
goes on. What it was told goes into the books, answer by answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.wire import Interrupted
from brokerd.server.sections import FORMATS

from .ledger import Ledger
from .line import Feed, Line, dial
from .rows import Row
from .views import Views

TOPIC = "flights"


def writer_of(row: int) -> str:
    """The format that writes a row; each has every fifth."""
    return FORMATS[row % len(FORMATS)]


@dataclass
class Course:
    """Where the broker is, how far things have come, and when to end."""

    addresses: Mapping[str, str]
    """Wire format -> where it listens."""
    rows: Sequence[Row]
    ledger: Ledger
    views: Views
    produce_window: int
    acquire_window: int
    kill_at: int
    """Acknowledged rows at which the broker is to be killed."""
    subscription_id: int = 0
    """The BlipMQ subscription, made before the first row was written."""
    idle_subscription_id: int = 0
    """Another one, which nobody polls before the archive is read."""
    end_offset: int | None = None
    """How many records the log has, once nobody writes any more."""
    near_kill: threading.Event = field(default_factory=threading.Event)
    killed: threading.Event = field(default_factory=threading.Event)
    end: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._number_of = {row.packed: row.number for row in self.rows}

    def read_by(self) -> dict[str, int]:
        """Records that each format's readers are done with."""
        return {
            form: self.ledger.finished() if form == "mamamia" else self.views.count(form)
            for form in FORMATS
        }

    def is_on(self) -> bool:
        """Whether workers should go on."""
        return not self.end.is_set()

    def number_of(self, value: object) -> int | None:
        """The row that a value holds, to the byte; None if it is no row's."""
        return self._number_of.get(value) if isinstance(value, bytes) else None


class Worker(threading.Thread):
    """A thread that reports its own failure instead of losing it."""

    def __init__(self, course: Course, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.course = course

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:  # Whatever it is, it is a finding and ends the demo.
            self.course.ledger.report(f"{self.name} failed: {type(error).__name__}: {error}")
            self.course.end.set()

    def work(self) -> None:
        """Do the work; may raise."""
        raise NotImplementedError

    def converse(
        self, form: str, make_feed: Callable[[], Feed], talk: Callable[[Line], bool]
    ) -> None:
        """Hand connections to ``talk`` until it says that it is done, or the demo ends."""
        address = self.course.addresses[form]
        while (line := dial(address, make_feed, self.course.is_on)) is not None:
            with line:
                try:
                    if talk(line):
                        return
                except Interrupted:
                    continue  # talk has booked what was answered; the rest is sent again.
