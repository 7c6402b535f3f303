"""Whatever happens to a log, a query gives each record that is there, once."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs

from brokerd.archive.contract.bounds import FILE_NAME, DamagedPlace, encode_bounds
from brokerd.archive.contract.pin import FILE_NAME as PIN_NAME
from brokerd.archive.contract.pin import Pin, encode_pin
from brokerd.archive.contract.view import ArchiveUnavailable, ForeignArchive
from brokerd.archive.journal import segment_list
from brokerd.archive.storage.address import ObjectAddress
from brokerd.errors import BrokerdError, DamagedData, UnknownTopic
from brokerd.spark.location import BadLocation, Location
from brokerd.spark.plan import log_snapshot
from brokerd.spark.plan.journal import read_journal
from brokerd.spark.plan.log_end import log_end
from brokerd.spark.plan.log_snapshot import take_snapshot
from brokerd.spark.plan.query_plan import Plan
from tests.archive.making import damage, make_no_file
from tests.spark.logs import NOW_US, Log, Row, rows_of, scanned_rows


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "data")


class Happening(RuleBasedStateMachine):
    """Records come and go while files do."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.log = Log(self.directory / "data")
        self.plans: list[tuple[Plan, list[Row]]] = []

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    def _live(self) -> list[int]:
        return [one for one in self.log.names if one not in self.log.internal]

    @precondition(lambda self: self.log.next_topic_id < 8)
    @rule(own=st.booleans())
    def create(self, own: bool) -> None:
        live = self._live()
        topic_id = self.log.create(f"topic-{self.log.next_topic_id}")
        if own and live:
            self.log.create(f"__brokerd.{topic_id}", internal_of=live[0])

    @precondition(lambda self: self.log.names)
    @rule(
        data=st.data(),
        values=st.lists(st.binary(max_size=20), min_size=1, max_size=5),
        partition=st.integers(0, 1),
        expires=st.sampled_from([0, 0, NOW_US, NOW_US + 1]),
    )
    def append(
        self, data: st.DataObject, values: list[bytes], partition: int, expires: int
    ) -> None:
        topic_id = data.draw(st.sampled_from(sorted(self.log.names)))
        self.log.append(topic_id, partition, *values, expires_at=expires)

    @precondition(lambda self: len(self.log.names) > 1)
    @rule(values=st.lists(st.binary(max_size=20), min_size=1, max_size=3))
    def append_together(self, values: list[bytes]) -> None:
        first, *_, last = sorted(self.log.names)
        self.log.together((first, 0, values), (last, 1, values), (first, 0, values))

    @precondition(lambda self: self.log.names)
    @rule(data=st.data(), offset=st.integers(1, 10))
    def trim(self, data: st.DataObject, offset: int) -> None:
        self.log.trim(data.draw(st.sampled_from(sorted(self.log.names))), 0, offset)

    @precondition(lambda self: len(self._live()) > 2)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.log.delete(data.draw(st.sampled_from(self._live())))

    @rule(indexed=st.booleans())
    def seal(self, indexed: bool) -> None:
        self.log.index()
        self.log.seal(indexed)

    @rule()
    def publish(self) -> None:
        self.log.publish()

    @rule()
    def roll_up(self) -> None:
        self.log.index()
        self.log.roll_up(file_bytes=1 << 20)

    @rule(own_bytes=st.sampled_from([1, 1 << 40]))
    def merge(self, own_bytes: int) -> None:
        self.log.merge(own_bytes)

    @rule(count=st.integers(1, 3))
    def delete_archived(self, count: int) -> None:
        self.log.publish()  # as a broker does when a file is closed
        self.log.delete_archived(count)

    @rule()
    def vacuum(self) -> None:
        self.log.vacuum()

    @rule(partition_bytes=st.sampled_from([1, 500, 1 << 20]))
    def plan_now(self, partition_bytes: int) -> None:
        found = self.log.plan(partition_bytes=partition_bytes)
        assert found.records >= len(self.log.expected())
        self.plans = [*self.plans, (found, self.log.expected())][-2:]

    @precondition(lambda self: self.plans)
    @rule()
    def read_later(self) -> None:
        """What was there, but for what was removed since."""
        found, expected = self.plans.pop(0)
        try:
            rows = rows_of(found)
        except ArchiveUnavailable as error:
            assert "run it again" in str(error), "a file that partitions share, and no other"
            return
        assert set(rows) <= set(expected)
        assert len(set(rows)) == len(rows)
        assert set(expected) & set(self.log.expected()) <= set(rows)

    @rule(
        first=st.integers(0, 8), end=st.integers(0, 8), since=st.floats(0, 1), until=st.floats(0, 1)
    )
    def read_by_scans(self, first: int, end: int, since: float, until: float) -> None:
        """Spark's own reader, with the conditions of a plan, has the rows of brokerd's."""
        times = [row.time_us for row in self.log.rows] or [0]
        span = max(times) - min(times)
        options = {
            "from_offset": first or None,
            "to_offset": end or None,
            "from_time_us": min(times) + int(since * span),
            "to_time_us": min(times) + int(until * span),
        }
        for request in ({}, options):
            found = self.log.plan(has_scans=True, **request)
            assert scanned_rows(self.log.root, found) == self.log.read(**request)

    @rule(cut=st.floats(0, 1))
    def read_in_two(self, cut: float) -> None:
        end = take_snapshot(self.log.place).end_lsn
        lsn = int(end * cut)
        before = self.log.read(end_lsn=lsn)
        after = self.log.read(first_lsn=lsn, end_lsn=end)
        assert sorted([*before, *after]) == self.log.expected()

    @invariant()
    def is_all_there(self) -> None:
        assert self.log.read() == self.log.expected()


TestHappening = Happening.TestCase
TestHappening.settings = settings(stateful_step_count=30)


# -- What is refused -----------------------------------------------------------------------------


def _rolled_up(log: Log) -> None:
    log.append(log.create("one"), 0, b"a")
    log.seal()
    log.publish()
    log.roll_up()


def test_a_directory_without_bounds_says_who_writes_them(log: Log) -> None:
    (log.path / "state" / FILE_NAME).unlink()
    with pytest.raises(BadLocation, match=r"bounds does not exist: start the broker"):
        take_snapshot(log.place)
    (log.path / "state" / FILE_NAME).write_bytes(b"brokerd bounds 1 00\n{}\n")
    with pytest.raises(DamagedData, match="bounds is damaged"):
        take_snapshot(log.place)


def test_an_archive_that_is_not_there_is_missed(log: Log) -> None:
    _rolled_up(log)
    pin = Pin(take_snapshot(log.place).archive.state.archive_id, log.archived_lsn())  # type: ignore[union-attr]
    (log.path / "state" / PIN_NAME).write_bytes(encode_pin(pin))
    assert log.read() == log.expected()
    log.root.rename(log.path / "elsewhere")
    with pytest.raises(ArchiveUnavailable, match="the disk is mounted"):
        take_snapshot(log.place)
    (log.path / "state" / PIN_NAME).write_bytes(b"?")
    with pytest.raises(DamagedData, match="restart the broker"):
        take_snapshot(log.place)


def test_an_archive_that_is_not_what_the_log_relies_on_is_refused(log: Log) -> None:
    _rolled_up(log)
    (log.path / "state" / PIN_NAME).write_bytes(encode_pin(Pin("0" * 16, 1)))
    with pytest.raises(ForeignArchive, match="is another archive"):
        take_snapshot(log.place)


def test_the_archive_of_another_log_is_refused(log: Log, tmp_path: Path) -> None:
    _rolled_up(log)
    other = structs.replace(log.bounds, log_id="f" * 32)
    (log.path / "state" / FILE_NAME).write_bytes(encode_bounds(other))
    with pytest.raises(ForeignArchive, match="is the archive of log"):
        take_snapshot(log.place)


def test_a_log_that_is_older_than_its_archive_is_refused(log: Log) -> None:
    first = log.bounds
    _rolled_up(log)
    for path in log.wal.iterdir():
        path.unlink()
    (log.path / "state" / FILE_NAME).write_bytes(encode_bounds(first))
    with pytest.raises(ForeignArchive, match="an older copy of the log was restored"):
        take_snapshot(log.place)


def test_a_journal_file_that_is_missing_is_an_error(log: Log) -> None:
    topic_id = log.create("one")
    for _ in range(3):
        log.append(topic_id, 0, b"a")
        log.seal()
    log.sealed[1].unlink()
    with pytest.raises(BrokerdError, match="is missing, and nothing says that it was deleted"):
        take_snapshot(log.place)


def _older_bounds(log: Log) -> None:
    """The broker lets go of files in which a topic was trimmed and one deleted, untold."""
    one, two = log.create("one"), log.create("two")
    log.append(one, 0, b"a", b"b", b"c")
    log.append(two, 0, b"x")
    log.seal()
    log.publish()
    log.roll_up()
    log.trim(one, 0, 2)
    log.delete(two)
    log.seal()
    log.roll_up()
    log.append(one, 0, b"d")


def test_bounds_that_are_older_than_what_was_let_go_are_an_error(log: Log) -> None:
    """Nothing tells any more which records were removed; as the broker says it, all is well."""
    _older_bounds(log)
    assert log.read() == log.expected()
    log.delete_archived()
    with pytest.raises(BrokerdError, match=r"the journal up to \d+ was deleted since: .* why the"):
        log.read()
    log.publish()
    assert log.read() == log.expected()


def test_damage_that_is_known_is_no_reason_to_doubt_the_bounds(log: Log) -> None:
    """Also where they do not reach it."""
    _older_bounds(log)
    first, end = int(log.sealed[1].stem), log.log.first_lsn
    for suffix in (".wal", ".idx"):
        log.sealed[1].with_suffix(suffix).unlink()
    place = DamagedPlace(log.sealed[1].name, 0, end - first)
    older = structs.replace(log.bounds, damage=[place])
    (log.path / "state" / FILE_NAME).write_bytes(encode_bounds(older))
    assert [row.value for row in log.read()] == [b"a", b"b", b"c", b"d", b"x"]


@pytest.mark.parametrize("is_zeroed", [False, True])
@pytest.mark.parametrize("left", [4096, 5000, None])
def test_a_journal_that_ends_below_the_bounds_is_an_error(
    log: Log, left: int | None, is_zeroed: bool
) -> None:
    """Its last file is cut, or zeroed from somewhere on, or not there at all."""
    topic_id = log.create("one")
    log.append(topic_id, 0, b"a")
    log.seal()
    log.append(topic_id, 0, b"b" * 2_000)
    log.append(topic_id, 0, b"c" * 2_000)
    log.publish()
    assert log.read() == log.expected()
    last = log.wal / f"{log.log.first_lsn:020}.wal"
    data = last.read_bytes()
    if left:
        last.write_bytes(data[:left].ljust(len(data) if is_zeroed else left, b"\0"))
    else:
        last.unlink()
    named = last if left else log.sealed[0]
    end = log.log.first_lsn + (4096 if left else 0)
    for read in (take_snapshot, log_end):
        with pytest.raises(BrokerdError, match=f"{named}, .* LSN {end}, .* {log.bounds.lsn}: the"):
            read(log.place)
    assert [row.value for row in log.read(tail=False)] == [b"a"]
    place = DamagedPlace(last.name, end - log.log.first_lsn, log.bounds.lsn - log.log.first_lsn)
    known = structs.replace(log.bounds, damage=[place])
    (log.path / "state" / FILE_NAME).write_bytes(encode_bounds(known))
    assert [row.value for row in log.read()] == [b"a"]
    assert log_end(log.place)[1] == end


def test_the_archive_may_have_what_the_journal_lacks_at_its_end(log: Log) -> None:
    _rolled_up(log)
    for path in log.wal.iterdir():
        path.unlink()
    assert log.read() == log.expected()


def test_a_damaged_index_is_an_error_that_names_the_file(log: Log) -> None:
    log.append(log.create("one"), 0, b"a")
    log.seal()
    damage(log.sealed[0].with_suffix(".idx"), 100)
    with pytest.raises(BrokerdError, match=f"{log.sealed[0]} at .*its index is unusable"):
        take_snapshot(log.place)


def test_files_that_go_each_time_they_are_looked_at_end_the_query(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*args: object) -> None:
        raise FileNotFoundError(2, "gone", "x.wal")

    monkeypatch.setattr(log_snapshot, "read_journal", gone)
    with pytest.raises(BrokerdError, match="faster than they are read; run it again"):
        take_snapshot(log.place)


@pytest.mark.parametrize(
    ("is_alone", "what"), [(False, "data: journal files"), (True, "archive: files of the archive")]
)
def test_files_that_go_each_time_a_query_is_planned_end_it(
    log: Log, monkeypatch: pytest.MonkeyPatch, is_alone: bool, what: str
) -> None:
    """The place is named, which may be an archive by itself."""

    def gone(*args: object) -> None:
        raise FileNotFoundError(2, "gone", "x.wal")

    _rolled_up(log)
    if is_alone:
        log = _alone(log, has_bounds=True)
    monkeypatch.setattr("brokerd.spark.plan.query_plan.match_files", gone)
    with pytest.raises(BrokerdError, match=f"/{what} are deleted faster than they are read; run"):
        log.plan()


def test_damaged_bounds_are_named(log: Log) -> None:
    """Whether a batch reads them, or a stream that wants to know how far the log has got."""
    path = log.path / "state" / FILE_NAME
    path.write_bytes(b"?")
    for read in (take_snapshot, log_end):
        with pytest.raises(DamagedData, match=f"^{path} is damaged: .*; start the broker"):
            read(log.place)


@pytest.mark.parametrize("name", [FILE_NAME, PIN_NAME])
def test_a_pipe_in_place_of_a_file_of_the_broker_is_an_error(log: Log, name: str) -> None:
    """Nobody would ever write to it."""
    path = log.path / "state" / name
    make_no_file(path, "pipe")
    with pytest.raises(BrokerdError, match=f"{path} cannot be read: it is not a regular file"):
        take_snapshot(log.place)


def test_a_pipe_in_place_of_a_journal_file_that_is_archived_holds_nobody_up(log: Log) -> None:
    _rolled_up(log)
    make_no_file(log.sealed[0], "pipe")
    assert log.read() == log.expected()


def test_a_file_that_may_not_be_read_is_an_error_that_says_so(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*args: object) -> None:
        raise PermissionError(13, "Permission denied", "x.wal")

    monkeypatch.setattr(log_snapshot, "read_journal", forbidden)
    with pytest.raises(
        BrokerdError, match=r"x\.wal cannot be read: Permission denied; the user who runs"
    ):
        take_snapshot(log.place)


# -- What happens between two looks at files -----------------------------------------------------


@pytest.mark.parametrize("tail", [True, False])
@pytest.mark.parametrize("has_open_file", [True, False])
def test_files_taken_into_the_archive_and_deleted_meanwhile_are_read_from_it(
    log: Log, monkeypatch: pytest.MonkeyPatch, has_open_file: bool, tail: bool
) -> None:
    """The archive is looked at; then a rollup takes the rest of the log, and the broker deletes."""
    topic_id = log.create("one")
    _rolled_up(log)
    for value in (b"b", b"c"):
        log.append(topic_id, 0, value)
        log.seal()
    if has_open_file:
        log.append(topic_id, 0, b"d")
    real = read_journal
    done: list[int] = []

    def meanwhile(*args: object) -> object:
        if not done:
            log.publish()
            log.roll_up()
            log.delete_archived()
        done.append(1)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(log_snapshot, "read_journal", meanwhile)
    assert log.read(tail=tail) == [row for row in log.expected() if tail or row.value != b"d"]
    assert len(done) == 2, "looked at again"


def test_all_may_be_archived_and_deleted_after_the_bounds_were_read(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive then reaches farther than the bounds, and no file tells how far the log does."""
    topic_id = log.create("one")
    _rolled_up(log)
    real = log_snapshot.read_pin

    def meanwhile(root: Path) -> object:
        log.append(topic_id, 0, b"b")
        log.seal()
        log.publish()
        log.roll_up()
        log.delete_archived()
        monkeypatch.undo()
        return real(root)

    monkeypatch.setattr(log_snapshot, "read_pin", meanwhile)
    assert log.read() == log.expected()


def test_files_that_go_beside_an_older_gap_are_read_from_the_archive(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try sees the old gap; a second gap comes during the second try."""
    topic_id = log.create("one")
    log.append(topic_id, 0, b"removed")
    log.trim(topic_id, 0, 1)
    log.seal()
    log.publish()
    log.remove(log.sealed[0])
    log.append(topic_id, 0, b"kept")
    log.seal()
    log.append(topic_id, 0, b"open")
    log.publish()
    real = read_journal
    tries: list[int] = []

    def meanwhile(*args: object) -> object:
        tries.append(1)
        if len(tries) == 2:
            log.roll_up()
            log.delete_archived()
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(log_snapshot, "read_journal", meanwhile)
    assert log.read() == log.expected()
    assert len(tries) == 3


def test_a_last_file_that_goes_while_the_end_is_read_counts_as_reached(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bounds and the list are older than its seal, archive and deletion."""
    topic_id = log.create("one")
    _rolled_up(log)
    log.append(topic_id, 0, b"b")
    bounds = log.bounds
    log.seal()
    log.publish()
    log.roll_up()
    real = segment_list.open_sealed

    def gone(path: Path) -> object:
        log.delete_archived()
        return real(path)

    monkeypatch.setattr(segment_list, "open_sealed", gone)
    assert segment_list.end_of_log(log.wal, bounds) == log.archived_lsn()
    assert log.sealed == []


def test_bounds_may_be_older_than_the_archive(log: Log) -> None:
    """A job that began later has taken what the broker said nothing of when they were read."""
    topic_id = log.create("one")
    log.append(topic_id, 0, b"a")
    log.publish()
    older = log.bounds
    log.append(log.create("two"), 0, b"b")
    log.seal()
    log.append(topic_id, 0, b"c")
    log.publish()
    log.roll_up()
    (log.path / "state" / FILE_NAME).write_bytes(encode_bounds(older))
    assert older.lsn < log.archived_lsn()
    assert log.read() == log.expected()
    assert log.plan().segments == (1, 1)


def test_the_file_that_is_written_to_can_be_left_out(log: Log) -> None:
    topic_id = log.create("one")
    log.append(topic_id, 0, b"a")
    log.seal()
    log.append(topic_id, 0, b"b")
    assert [row.value for row in log.read(tail=False)] == [b"a"]
    assert take_snapshot(log.place, tail=False).end_lsn == log.log.first_lsn
    assert [row.value for row in log.read()] == [b"a", b"b"]


def test_the_archive_of_a_data_directory_may_be_in_a_bucket(
    tmp_path: Path, bucket: ObjectAddress
) -> None:
    log = Log(tmp_path / "data", bucket)
    _rolled_up(log)
    log.append(1, 0, b"b")
    log.seal()
    log.append(1, 1, b"c")
    assert log.read() == log.expected()
    found = log.plan()
    log.publish()
    log.roll_up()
    log.delete_archived()
    assert rows_of(found) == log.read() == log.expected()
    assert log.plan().files == (2, 2)


# -- An archive by itself ------------------------------------------------------------------------


def _alone(log: Log, *, has_bounds: bool) -> Log:
    """The archive of a log alone, with what the job leaves there."""
    if has_bounds:
        (log.root / FILE_NAME).write_bytes(encode_bounds(log.bounds))
    log.place = Location(None, str(log.root))
    return log


@pytest.mark.parametrize("has_bounds", [False, True])
def test_an_archive_alone_has_what_was_taken_into_it(log: Log, has_bounds: bool) -> None:
    _rolled_up(log)
    expected = log.expected()
    log.append(1, 0, b"later")
    log = _alone(log, has_bounds=has_bounds)
    assert log.read() == expected
    assert log.read(topics=("one",)) == expected
    assert log.read(topics=("o*", "x*")) == expected
    assert log.read(topics=("x*",)) == []
    assert take_snapshot(log.place).end_lsn == log.plan().end_lsn == log.archived_lsn()


def test_an_archive_with_bounds_tells_topics_and_starts(log: Log) -> None:
    _rolled_up(log)
    log.append(log.create("two"), 0, b"a", b"b")
    log.append(log.create("gone"), 0, b"a", b"b")
    log.seal()
    log.publish()
    log.roll_up()
    log.trim(2, 0, 1)
    log.delete(3)
    log.publish()
    log = _alone(log, has_bounds=True)
    assert log.read() == log.expected()
    assert [row.value for row in log.read(from_offsets={"two": {0: 0}})] == [b"a", b"b"]
    with pytest.raises(UnknownTopic, match="there is no topic 'gone'"):
        log.read(topics=("gone",))


def test_an_archive_without_bounds_knows_no_offsets_by_topic(log: Log) -> None:
    _rolled_up(log)
    log = _alone(log, has_bounds=False)
    with pytest.raises(BrokerdError, match="lacks its bounds, so its topics are unknown"):
        log.read(from_offsets={"one": {0: 0}})


def test_a_place_that_is_no_archive_says_so(log: Log) -> None:
    log.place = Location(None, str(log.root))
    with pytest.raises(BadLocation, match="it lacks records/_delta_log/"):
        take_snapshot(log.place)
    log.root.mkdir()
    (log.root / FILE_NAME).write_bytes(encode_bounds(log.bounds))
    with pytest.raises(BadLocation, match="it lacks records/_delta_log/"):
        take_snapshot(log.place)
    (log.root / FILE_NAME).write_bytes(b"?")
    with pytest.raises(DamagedData, match="bounds is damaged"):
        take_snapshot(log.place)
