"""Named streams: reports, lag, limits, owners, and what is left of them after a restart."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred

from brokerd.archive.contract.view import Archive
from brokerd.broker import BrokerSettings
from brokerd.broker import streams as module
from brokerd.broker.slices import Pace, SliceOwner, SliceQueue
from brokerd.broker.streams import LAG_STEPS, LAYOUT, Lag, StreamReport
from brokerd.errors import (
    BrokerdError,
    Denied,
    InvalidName,
    InvalidRequest,
    LimitExceeded,
    NewerFormat,
)
from brokerd.security import READ
from brokerd.security.access import OPEN
from brokerd.security.accounts import AccessList, Account
from brokerd.security.principal import Principal
from tests.broker.fakearchive import FakeArchive
from tests.broker.test_audit import AUDITED, ask
from tests.house import House
from tests.protocols.flymq_desk import Steps


def report(house: House, name: str = "loader", by: Any = OPEN, **fields: Any) -> None:
    given: dict[str, Any] = {"log_id": "", "lsn": 0, "topics": None, "offsets": {}, **fields}
    house.broker.streams.report(by, StreamReport(name, **given))
    house.run()


def counting(house: House, name: str, slices: SliceQueue) -> Deferred[Lag | None]:
    """Begin to count the lag of a stream."""
    stream = house.broker.streams.find(name)
    assert stream is not None
    return ensureDeferred(house.broker.streams.count_lag(stream, Pace(slices, SliceOwner())))


def lag(house: House, name: str = "loader") -> Lag:
    counted: list[Lag | None] = []
    counting(house, name, house.broker.slices).addCallback(counted.append)
    assert counted[0] is not None, "the clock stands still, so it takes one slice"
    return counted[0]


def fill(house: House, topic: str = "orders", records: int = 3) -> int:
    """Append records, and return the id of the topic."""
    for number in range(records):
        house.append(topic, b"%d" % number)
    return house.broker.topics.existing(topic).topic_id


def test_the_lag_counts_the_records_behind_the_position() -> None:
    house = House()
    orders, clicks = fill(house), fill(house, "clicks", 2)
    end = house.wal.appended_lsn
    report(house, lsn=100, offsets={orders: [1]})
    assert lag(house).records == 2 + 2  # clicks is not read yet
    assert lag(house).bytes == house.wal.appended_lsn - 100
    report(house, lsn=end, offsets={orders: [3], clicks: [2]})
    assert lag(house) == Lag(0, 0)
    fill(house, "clicks", 1)
    assert lag(house) == Lag(1, house.wal.appended_lsn - end)


def test_the_lag_has_only_topics_of_the_selection_and_no_removed_records() -> None:
    house = House(settings=AUDITED)
    fill(house), fill(house, "clicks.a", 2), fill(house, "other", 5)
    report(house, topics=("orders", "clicks*"))
    assert lag(house).records == 5
    house.broker.topics.trim("orders", 0, 2)
    house.run()
    assert lag(house).records == 3
    house.broker.topics.delete("clicks.a")
    house.run()
    assert lag(house).records == 1
    report(house, "all")
    assert lag(house, "all").records == 1 + 5  # not those of the audit trail


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_long_lag_is_counted_in_slices(is_dropped: bool) -> None:
    house, clock = House(), Steps()
    clock.look_seconds = 1.0
    house.broker.topics.create("orders", 5 * LAG_STEPS)
    house.append("orders", b"x")
    report(house)
    counted: list[Lag | None] = []
    counting(house, "loader", SliceQueue(clock)).addCallback(counted.append)
    turns = 0
    while not counted:
        clock.step()
        turns += 1
        if is_dropped and turns == 2:
            house.broker.streams.drop(OPEN, "loader")
    assert turns == 5
    assert counted == [None if is_dropped else Lag(1, house.wal.appended_lsn)]


def test_patterns_count_as_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A status with 1,000 patterns for each of 2,000 topics would take a second."""
    monkeypatch.setattr(module, "STATUS_STEPS", 100)
    house = House()
    for number in range(300):
        house.broker.topics.create(f"topic {number}")
    report(house, "many", topics=[f"{number}*" for number in range(1_000)])
    report(house, "few", topics=["no topic*"])
    matched = 0
    match = module.TopicNames.match

    def counted(names: module.TopicNames, name: str) -> bool:
        nonlocal matched
        matched += len(names.names or ())
        return match(names, name)

    monkeypatch.setattr(module.TopicNames, "match", counted)
    for _ in range(5):
        matched = 0
        house.broker.streams.count_lags()
        assert 0 < matched <= 100 * module.STEP_PATTERNS
    for _ in range(1_000):
        house.broker.streams.count_lags()
    assert house.broker.streams.known_lag(existing(house, "many")) == Lag(0, 0)


def existing(house: House, name: str) -> module.Stream:
    stream = house.broker.streams.find(name)
    assert stream is not None
    return stream


@pytest.mark.parametrize("ending", ["crash", "snapshot", "clean"])
def test_a_report_that_was_answered_survives(ending: str) -> None:
    house = House()
    orders = fill(house)
    report(house, lsn=64, topics=("orders",), offsets={orders: [2]})
    report(house, "gone")
    house.broker.streams.drop(OPEN, "gone")
    house.run()
    before = house.broker.streams.all()
    if ending == "snapshot":
        house.broker.snapshotter.wanted = True
        fill(house, records=1)
        house.pass_time(1)
        assert house.broker.snapshotter.written == 1
    elif ending == "clean":
        house.stop()
    house = house.again() if ending == "clean" else house.crash()
    (stream,) = house.broker.streams.all()
    assert stream.topics.names == ("orders",)
    assert [(stream.name, stream.lsn, stream.created_us, stream.reported_us)] == [
        (one.name, one.lsn, one.created_us, one.reported_us) for one in before
    ]
    assert stream.position(orders, 0) == 2


def test_a_later_report_may_go_back() -> None:
    """A stream with a new checkpoint begins anew under its name."""
    house = House()
    orders = fill(house)
    report(house, lsn=64, offsets={orders: [3]})
    report(house, lsn=0, offsets={orders: [1]})
    assert lag(house).records == 2
    house = house.crash()
    assert lag(house).records == 2


def test_a_newer_operation_is_refused_at_the_start() -> None:
    house = House()
    report(house)
    house.broker.group_commit.add_entry(LAYOUT.entry({"op": "renamed", "name": "loader"}))
    house.run()
    with pytest.raises(NewerFormat, match=r"'renamed' of a stream.*upgrade brokerd"):
        house.crash()


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"name": ""}, InvalidName, "needs a name"),
        ({"name": "a\n"}, InvalidName, "control character"),
        ({"lsn": 1 << 40}, InvalidRequest, "begin the stream with a new checkpoint"),
        ({"offsets": {1: [9]}}, InvalidRequest, "'orders', which ends at 3"),
        ({"offsets": {1: [0] * 50_001}}, InvalidRequest, "at most 50000"),
        ({"topics": ("x",) * 1_001}, InvalidRequest, "at most 1000 names"),
    ],
)
def test_wrong_reports_are_refused(
    fields: dict[str, Any], error: type[BrokerdError], text: str
) -> None:
    house = House()
    assert fill(house) == 1
    with pytest.raises(error, match=text):
        report(house, **fields)
    assert house.broker.streams.all() == []


def test_a_stream_of_another_log_is_refused() -> None:
    def open_archive(log_id: str) -> Archive:
        return FakeArchive()

    house = House(open_archive=open_archive)
    assert house.broker.bounds is not None
    report(house, log_id=house.broker.bounds.log_id)
    with pytest.raises(InvalidRequest, match="reads the log 00ff"):
        report(house, log_id="00ff")


def test_names_are_limited() -> None:
    house = House(settings=BrokerSettings(max_streams=2))
    report(house, "a"), report(house, "b")
    with pytest.raises(LimitExceeded, match=r"2 named streams already, and limits\.streams is 2"):
        report(house, "c")
    report(house, "b")
    house.broker.streams.drop(OPEN, "a")
    report(house, "c")
    assert [one.name for one in house.broker.streams.all()] == ["b", "c"]


def test_partitions_of_deleted_topics_are_forgotten() -> None:
    house = House()
    orders = fill(house)
    report(house, offsets={orders: [1, 7], 99: [5]})
    stream = house.broker.streams.find("loader")
    assert stream is not None
    assert {topic: list(offsets) for topic, offsets in stream.offsets.items()} == {orders: [1]}


def test_a_report_needs_read_on_the_topics_and_a_name_of_its_own() -> None:
    house = House()
    directory = house.broker.accounts.directory
    for number, (name, roles) in enumerate(
        [("ann", ("consumer",)), ("ben", ()), ("root", ("admin",))], 1_000
    ):
        directory.put_account(Account(number, name, roles))
    ann, ben, root = (
        Principal(directory, house.broker.audit.record, name, "admin", "")
        for name in ("ann", "ben", "root")
    )
    report(house, by=ann)
    for topics in (None, ("orders",), ("ord*",)):
        with pytest.raises(Denied):
            report(house, "other", by=ben, topics=topics)
    house.broker.accounts.set_access_list(OPEN, AccessList("orders", users={"ben": READ}))
    house.run()
    report(house, "other", by=ben, topics=("orders",))
    with pytest.raises(Denied):
        report(house, "other", by=ben, topics=("orders", "clicks"))
    with pytest.raises(Denied, match="belongs to another account"):
        report(house, "loader", by=ben, topics=("orders",))
    report(house, "loader", by=root)
    stream = house.broker.streams.find("loader")
    assert stream is not None and stream.owner == "ann"
    with pytest.raises(Denied):
        house.broker.streams.drop(ann, "loader")
    assert house.broker.streams.drop(root, "loader")
    assert not house.broker.streams.drop(root, "loader")


def test_a_report_shows_and_keeps_no_offsets_of_topics_without_permission() -> None:
    """An error about such an offset would tell the topic's name and the number of its records."""
    house = House()
    orders, clicks = fill(house), fill(house, "clicks", 2)
    directory = house.broker.accounts.directory
    directory.put_account(Account(1_000, "ben"))
    ben = Principal(directory, house.broker.audit.record, "ben", "admin", "")
    house.broker.accounts.set_access_list(OPEN, AccessList("orders", users={"ben": READ}))
    house.run()
    report(house, by=ben, topics=("orders",), offsets={orders: [1], clicks: [1_000], 99: [1_000]})
    stream = house.broker.streams.find("loader")
    assert stream is not None and list(stream.offsets) == [orders]
    assert lag(house).records == 2


def test_the_trail_has_the_first_report_and_the_drop_alone() -> None:
    house = House(settings=AUDITED)
    report(house), report(house), report(house)
    house.broker.streams.drop(OPEN, "loader")
    house.pass_time(1)
    kinds = [one.type for one in ask(house).events]
    assert [kind for kind in kinds if kind.startswith("stream")] == ["stream.drop", "stream.create"]


def test_a_status_counts_a_bounded_number_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STATUS_STEPS", 20)
    house = House()
    house.broker.topics.create("wide", 50)
    fill(house)
    report(house, "a"), report(house, "b", topics=("orders",))
    statuses = [house.broker.streams.status() for _ in range(8)]
    assert statuses[0]["lags"] == [] and statuses[0]["count"] == 2
    assert [one["name"] for one in statuses[-1]["lags"]] == ["a", "b"]
    assert {one["lag_records"] for one in statuses[-1]["lags"]} == {3}
