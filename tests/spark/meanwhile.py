"""The life of a log between two looks of a query at its files.

A query looks at files one after the other. `Meanwhile` counts its calls of the file system, and
lets steps of a broker and a job happen just before one of them.
"""

from __future__ import annotations

import builtins
import io
import os
import pickle
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from brokerd.archive.contract.bounds import FILE_NAME, encode_bounds
from brokerd.archive.journal.copies import delete_copies, send_copies
from brokerd.archive.journal.sealed import Segment, open_sealed
from brokerd.archive.storage.store import open_store
from brokerd.spark.location import Location
from brokerd.spark.plan import archive_files
from tests.spark.logs import Log, Row

CALLS = (
    (os, ("open", "listdir", "scandir", "stat", "pread")),
    (builtins, ("open",)),
    (io, ("open",)),
)
"""The functions by which brokerd looks at files."""

Step = Callable[["Life"], None]


# -- Steps of a broker and a job -----------------------------------------------------------------


class Life:
    """A log that goes on, and what a reader of it may return."""

    def __init__(self, path: Path) -> None:
        self.log = Log(path)
        self.added: list[tuple[int, int, Row]] = []
        """The end of the log before and after, and the record, for each one that `append` added."""
        self.expected: list[list[Row]] = []
        """The readable records before the first step, and after each step."""
        self.is_alone = False
        """Whether readers have the archive alone."""

    def begin(self) -> None:
        """Remember the state before the first step."""
        self.expected = [self.log.expected()]
        self.added = []

    def do(self, step: Step) -> None:
        """Do a step."""
        step(self)
        self.expected.append(self.log.expected())

    def judge(
        self, rows: Sequence[Row], end_lsn: int, since: int, before: Sequence[Row] | None = None
    ) -> None:
        """Check the rows of a query.

        :param end_lsn: the end LSN that the query gives.
        :param since: the end LSN of a query before the first step.
        :param before: its rows; None for all readable records.
        """
        assert end_lsn >= since, "the query does not reach the log's end before it"
        assert len(set(rows)) == len(rows), "a record is there twice"
        ever = {row for rows in self.expected for row in rows}
        assert set(rows) <= ever, "a record is there that never was readable"
        always = set(self.expected[0] if before is None else before)
        always.update(row for before, after, row in self.added if after <= end_lsn)
        readable_at_end = set(self.expected[-1])
        missing = sorted(always & readable_at_end - set(rows))
        assert not missing, f"records are missing: {missing}"
        later = {row for before, after, row in self.added if before >= end_lsn}
        assert not later & set(rows), "a record is there from beyond the end"


def append(life: Life) -> None:
    log = life.log
    for topic_id in sorted(log.names):
        before, count = log.end_lsn(), len(log.rows)
        log.append(topic_id, 0, b"more %d" % len(log.rows), b"and more")
        life.added += [(before, log.end_lsn(), row) for row in log.rows[count:]]


def seal(life: Life) -> None:
    life.log.seal()


def publish(life: Life) -> None:
    life.log.publish()
    if life.is_alone:
        _publish_beside(life.log)


def roll_up(life: Life) -> None:
    life.log.roll_up()
    if life.is_alone:
        _publish_beside(life.log)


def roll_up_in_lots(life: Life) -> None:
    life.log.roll_up(lot_bytes=1, local_lot_bytes=1)


def mark_deleted(life: Life) -> None:
    """Record the deletion of what is archived, as the broker does before the first file goes."""
    log = life.log
    gone = [path for path in log.sealed if _end_of(path) <= log.archived_lsn()]
    if gone:
        name = f"{gone[0].stem}-{_end_of(gone[-1]):020}.deleted"
        (log.wal / name).touch()


def delete_indexes(life: Life) -> None:
    for path in _marked(life.log):
        path.with_suffix(".idx").unlink(missing_ok=True)


def delete_files(life: Life) -> None:
    for path in _marked(life.log):
        path.unlink()
        life.log.sealed.remove(path)


def delete_journal(life: Life) -> None:
    """Delete all that is archived, at once."""
    for step in (mark_deleted, delete_indexes, delete_files):
        step(life)


def delete_all_removed(life: Life) -> None:
    """Trim all records, and delete their files, which no archive needs."""
    log = life.log
    for (topic_id, partition), end in sorted(log.log.next.items()):
        if topic_id in log.names:
            log.trim(topic_id, partition, end)
    log.seal()
    log.publish()
    for path in list(log.sealed):
        log.remove(path)


def trim(life: Life) -> None:
    life.log.trim(1, 0, 1)


def delete_topic(life: Life) -> None:
    life.log.delete(2)


def create_topic(life: Life) -> None:
    life.log.create(f"topic {life.log.next_topic_id}")


def merge(life: Life) -> None:
    life.log.merge()


def vacuum(life: Life) -> None:
    life.log.vacuum()


def send(life: Life) -> None:
    """Copy what is not archived beside the archive, as the job does before tasks need it."""
    log = life.log
    segments = []
    for path in log.sealed:
        if _end_of(path) > log.archived_lsn():
            found = open_sealed(path)
            segments.append(Segment(str(path), found.segment_id, found.first_lsn, found.end_lsn))
    send_copies(open_store(log.root), segments)
    _publish_beside(log)


def delete_copies_of_archived(life: Life) -> None:
    delete_copies(open_store(life.log.root), life.log.archived_lsn())


def _publish_beside(log: Log) -> None:
    open_store(log.root).put(FILE_NAME, encode_bounds(log.bounds))


def _end_of(path: Path) -> int:
    return int(path.stem) + path.stat().st_size


def _marked(log: Log) -> list[Path]:
    ranges = [tuple(map(int, one.stem.split("-"))) for one in log.wal.glob("*.deleted")]
    return [
        path for path in log.sealed if any(first <= int(path.stem) < end for first, end in ranges)
    ]


# -- When they happen ----------------------------------------------------------------------------


class Kept:
    """A life that begins again and again in the same directory."""

    def __init__(self, life: Life) -> None:
        life.begin()
        self._path = life.log.path
        self._copy = self._path.with_name("kept")
        shutil.copytree(self._path, self._copy, copy_function=shutil.copy2)
        self._pickled = pickle.dumps(life)

    def begin(self) -> Life:
        """Return the life as it was."""
        shutil.rmtree(self._path)
        shutil.copytree(self._copy, self._path, copy_function=shutil.copy2)
        archive_files._delta_log.cache_clear()
        found: Life = pickle.loads(self._pickled)
        return found


class Meanwhile:
    """Counts calls of the file system, and does steps before some of them."""

    def __init__(self, life: Life, steps: Iterable[Step] = (), first: int = -1, gap: int = 0):
        """
        :param first: the number of the call before which the first step is done.
        :param gap: how many calls later the next step is done; 0 does all of them at once.
        """
        self._life = life
        self._steps = list(steps)
        self._next = first
        self._gap = gap
        self._is_busy = False
        self.calls: list[str] = []

    def before(self, name: str, path: object) -> None:
        if self._is_busy:
            return
        where = path if isinstance(path, str | os.PathLike) else ""
        root = str(self._life.log.path)
        text = os.fspath(where)
        if name != "pread" and not (isinstance(text, str) and text.startswith(root)):
            return
        number = len(self.calls)
        self.calls.append(f"{name} {text.removeprefix(root)}")
        if number == self._next and self._steps:
            self._is_busy = True
            try:
                count = 1 if self._gap else len(self._steps)
                for step in self._steps[:count]:
                    self._life.do(step)
                del self._steps[:count]
                self._next += self._gap
            finally:
                self._is_busy = False

    def finish(self) -> None:
        """Do the steps that no call was left for."""
        for step in self._steps:
            self._life.do(step)
        self._steps = []


@contextmanager
def watched(meanwhile: Meanwhile) -> Iterator[None]:
    """Let the calls of this thread go through a `Meanwhile`, and none of other threads."""
    thread = threading.get_ident()
    with pytest.MonkeyPatch.context() as patch:
        for owner, names in CALLS:
            for name in names:
                patch.setattr(
                    owner, name, _passed_on(getattr(owner, name), name, meanwhile, thread)
                )
        yield


def _passed_on(
    call: Callable[..., Any], name: str, meanwhile: Meanwhile, thread: int
) -> Callable[..., Any]:
    def do(*arguments: Any, **named: Any) -> Any:
        if threading.get_ident() == thread:
            meanwhile.before(name, arguments[0] if arguments else "")
        return call(*arguments, **named)

    return do


# -- Lives ---------------------------------------------------------------------------------------


class Start(NamedTuple):
    """The state before a query."""

    archived: int
    """How many files of the journal the archive has."""
    sealed: int
    """How many more sealed files there are."""
    has_open_file: bool = False
    is_alone: bool = False
    """Whether readers have the archive and copies of the sealed files, and no journal."""


def make(path: Path, start: Start) -> Life:
    """Make a log of three topics."""
    life = Life(path)
    log = life.log
    for name in ("one", "two", "three"):
        log.create(name)
    for number in range(start.archived + start.sealed):
        append(life)
        log.append(1, 1, b"x" * 200)
        log.seal()
        log.publish()
        if number + 1 == start.archived:
            log.roll_up()
            delete_journal(life)
    if start.has_open_file:
        append(life)
    log.publish()
    if start.is_alone:
        log.place = Location(None, str(log.root))
        life.is_alone = True
        send(life)
    return life


ROUND = (append, seal, publish, roll_up)
LIVES: dict[str, Sequence[Step]] = {
    "archived and deleted": (seal, publish, roll_up, delete_journal),
    "archived, deleted, and goes on": (*ROUND, delete_journal, append),
    "step by step": (*ROUND, mark_deleted, delete_indexes, delete_files),
    "twice": (*ROUND, delete_journal, *ROUND, delete_journal),
    "archived in parts": (append, seal, append, seal, publish, roll_up_in_lots, delete_journal),
    "archived and merged": (*ROUND, delete_journal, merge, append),
    "archived, merged and vacuumed": (*ROUND, delete_journal, merge, vacuum, append),
    "all is trimmed": (append, delete_all_removed),
    "trimmed": (append, trim, seal, publish, roll_up, delete_journal),
    "topic deleted": (append, delete_topic, seal, publish, roll_up, delete_journal, append),
    "topic created": (create_topic, *ROUND, delete_journal, create_topic, append),
}
COPIES_LIVES: dict[str, Sequence[Step]] = {
    "archived and deleted": (roll_up, delete_copies_of_archived),
    "sent": (append, seal, publish, send),
    "sent, archived and deleted": (append, seal, publish, send, roll_up, delete_copies_of_archived),
    "archived first": (*ROUND, delete_copies_of_archived, append, seal, publish, send),
    "merged": (roll_up, delete_copies_of_archived, merge),
    "topics change": (delete_topic, create_topic, *ROUND, delete_copies_of_archived),
}
