"""Streams that hold: nothing that they have not read is removed, and no hold lasts for ever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from twisted.logger import capturedLogs

from brokerd.broker import BrokerSettings
from brokerd.broker.group_commit import Congested
from brokerd.broker.model.topics import TopicSettings
from brokerd.broker.retention.retention import RetentionSettings
from brokerd.broker.streams import StreamReport
from brokerd.errors import BrokerdError, Denied, InvalidRequest, NoSpace
from brokerd.security import ADMIN, READ
from brokerd.security.access import OPEN
from brokerd.security.accounts import AccessList, Account
from brokerd.security.principal import Principal
from tests.broker.desk import SECOND_US, produce
from tests.broker.test_audit import ask
from tests.broker.test_bounds import below, new_house
from tests.broker.test_retention import CHECK_SECONDS, pass_rounds, start
from tests.house import House

OLD_SECONDS = 25
HOLD_SECONDS = 100
HOLD_BYTES = 1 << 20

SETTINGS = BrokerSettings(
    audit_keep_us=1 << 60,
    retention=RetentionSettings(
        TopicSettings(OLD_SECONDS * SECOND_US, 0, 0),
        0,
        CHECK_SECONDS * SECOND_US,
        HOLD_SECONDS * SECOND_US,
        HOLD_BYTES,
    ),
)


def report(
    house: House, *offsets: int, name: str = "loader", holds: bool = True, **fields: Any
) -> None:
    """Report a position in the topic ``t``, at the end of the log."""
    topic = house.broker.topics.find("t")
    given: dict[str, Any] = {
        "log_id": "" if house.broker.bounds is None else house.broker.bounds.log_id,
        "lsn": house.wal.appended_lsn,
        "topics": ("t",),
        "offsets": {} if topic is None else {topic.topic_id: list(offsets)},
        **fields,
    }
    by = given.pop("by", OPEN)
    house.broker.streams.report(by, StreamReport(name, **given, holds=holds))
    house.run()


def state(house: House, name: str = "loader") -> tuple[bool, str]:
    stream = house.broker.streams.find(name)
    assert stream is not None
    return stream.holds, stream.hold_dropped


@pytest.fixture
def house() -> House:
    house = House(settings=SETTINGS)
    produce(house, "t", b"0", b"1", b"2")
    house.run()
    return house


def test_retention_waits_for_a_stream_that_holds(house: House) -> None:
    report(house, 1)
    report(house, 2, name="faster")
    report(house, 0, name="slower without a hold", holds=False)
    pass_rounds(house, 4)
    assert start(house) == 1
    report(house, 3)
    pass_rounds(house)
    assert start(house) == 2
    report(house, 3, name="faster")
    pass_rounds(house)
    assert start(house) == 3


def test_a_limit_in_bytes_waits_too() -> None:
    retention = replace(SETTINGS.retention, topics=TopicSettings(0, 1, 0))
    house = House(settings=replace(SETTINGS, retention=retention))
    for value in (b"0", b"1", b"2"):
        produce(house, "t", value)
        house.run()
    report(house, 1)
    pass_rounds(house, 2)
    assert start(house) == 1
    house.broker.streams.drop(OPEN, "loader")
    pass_rounds(house)
    assert start(house) > 1


def test_only_the_topics_of_the_stream_are_held(house: House) -> None:
    produce(house, "other", b"0")
    house.run()
    report(house, 0)
    produce(house, "new", b"0")
    report(house, name="of all new ones", topics=("n*",), offsets={})
    pass_rounds(house, 4)
    assert [start(house, topic) for topic in ("t", "other", "new")] == [0, 1, 0]


@pytest.mark.parametrize("ending", ["none", "crash"])
def test_a_silent_stream_does_not_hold_for_ever(house: House, ending: str) -> None:
    report(house, 1)
    pass_rounds(house, HOLD_SECONDS // CHECK_SECONDS - 2)
    assert (start(house), state(house)) == (1, (True, ""))
    if ending == "crash":  # a start counts as a report
        house = house.crash()
        pass_rounds(house, HOLD_SECONDS // CHECK_SECONDS - 1)
        assert (start(house), state(house)) == (1, (True, ""))
    with capturedLogs() as logs:
        pass_rounds(house, 3)
    assert (start(house), state(house)) == (3, (False, "silent"))
    (line,) = [one for one in logs if one.get("event_id") == "stream-hold-dropped"]
    assert line["stream"] == "loader" and "stream_hold_seconds" in line["reason"]
    (event,) = [one for one in ask(house).events if one.type == "stream.hold-drop"]
    assert (event.resource, event.user, event.details) == ("loader", "", {"reason": "silent"})
    assert house.broker.streams.status()["holds_dropped"] == 1
    house = house.crash()
    assert state(house) == (False, "silent")


def test_a_stream_that_reports_holds_as_long_as_it_does(house: House) -> None:
    for _ in range(3):
        report(house, 1)
        pass_rounds(house, HOLD_SECONDS // CHECK_SECONDS - 1)
    assert (start(house), state(house)) == (1, (True, ""))


def test_a_stream_far_behind_does_not_hold_and_holds_again_when_it_is_near(house: House) -> None:
    report(house, 1)
    lsn = house.wal.appended_lsn
    for _ in range(HOLD_BYTES // 100_000 + 1):
        produce(house, "other", bytes(100_000))
        house.run()
    pass_rounds(house)
    assert state(house) == (False, "bytes")
    with capturedLogs() as logs:
        report(house, 1, lsn=lsn)
        report(house, 1, lsn=lsn)
    assert state(house) == (False, "bytes")
    assert logs == [] or "stream-hold-dropped" not in [one.get("event_id") for one in logs]
    report(house, 2)
    assert state(house) == (True, "")
    pass_rounds(house, 3)
    assert start(house) == 2


def test_a_first_report_from_far_behind_does_not_hold(house: House) -> None:
    for _ in range(HOLD_BYTES // 100_000 + 1):
        produce(house, "other", bytes(100_000))
        house.run()
    with capturedLogs() as logs:
        report(house, 0, lsn=0)
    assert state(house) == (False, "bytes")
    assert [one["event_id"] for one in logs if "event_id" in one] == ["stream-hold-dropped"]


def test_a_full_disk_ends_all_holds(house: House) -> None:
    report(house, 1)
    house.wal._allocator.error = "No space left on device"
    assert house.wal.allocation_error is not None
    pass_rounds(house)
    assert state(house) == (False, "disk")
    report(house, 1)
    assert state(house) == (False, "disk")
    house.wal._allocator.error = None
    report(house, 1)
    assert state(house) == (True, "")


@pytest.mark.parametrize("refusal", [NoSpace, Congested])
def test_a_hold_is_dropped_when_the_log_has_room(
    house: House, monkeypatch: pytest.MonkeyPatch, refusal: type[BrokerdError]
) -> None:
    report(house, 1)
    house.wal._allocator.error = "No space left on device"
    errors: list[BrokerdError] = [refusal("not now")]

    def admit(size: int) -> None:
        raise errors[-1]

    with monkeypatch.context() as patch:
        patch.setattr(house.broker.group_commit, "admit_events", admit)
        pass_rounds(house)
        assert state(house) == (True, "")
        errors.append(InvalidRequest("a fault"))
        with pytest.raises(InvalidRequest):
            house.broker.streams.drop_holds()
    pass_rounds(house)
    assert state(house) == (False, "disk")


def test_without_a_time_no_stream_holds() -> None:
    retention = replace(SETTINGS.retention, stream_hold_us=0)
    house = House(settings=replace(SETTINGS, retention=retention))
    produce(house, "t", b"0")
    house.run()
    report(house, 0)
    assert state(house) == (False, "silent")
    pass_rounds(house, 4)
    assert start(house) == 1


@pytest.mark.parametrize("ending", ["crash", "snapshot", "clean"])
def test_a_hold_survives(house: House, ending: str) -> None:
    report(house, 1)
    if ending == "snapshot":
        house.broker.snapshotter.wanted = True
        produce(house, "t", b"3")
        house.pass_time(1)
        assert house.broker.snapshotter.written == 1
    elif ending == "clean":
        house.stop()
    house = house.again() if ending == "clean" else house.crash()
    pass_rounds(house, 4)
    assert (start(house), state(house)) == (1, (True, ""))


def test_a_trim_on_request_passes_over_a_hold(house: House) -> None:
    report(house, 1)
    house.broker.topics.trim("t", 0, 3)
    assert start(house) == 3
    house.broker.topics.delete("t")
    house.run()
    assert state(house) == (True, "")


def test_the_archive_compacts_nothing_that_is_held() -> None:
    house = new_house(settings=SETTINGS)
    produce(house, "t", b"0", b"1", b"2")
    house.run()
    assert below(house) == 3
    report(house, 1)
    assert below(house) == 1
    report(house, 2)
    assert below(house) == 2
    house.broker.streams.drop(OPEN, "loader")
    assert below(house) == 3


def test_a_hold_does_not_raise_the_bound_of_a_group() -> None:
    house = new_house(settings=SETTINGS)
    produce(house, "t", b"0", b"1", b"2")
    house.broker.groups.commit_offset("t", "g", 0, 1)
    house.run()
    report(house, 2)
    assert below(house) == 1


def test_bounds_are_written_soon_after_a_hold_begins_or_goes_back() -> None:
    house = new_house(settings=SETTINGS)
    produce(house, "t", b"0", b"1")
    house.run()
    house.pass_time(5)
    assert house.broker.bounds is not None
    for offset, lsn, more in ((1, 64, 1), (1, 72, 0), (0, 8, 1)):
        before = house.broker.bounds.written
        report(house, offset, lsn=lsn)
        house.pass_time(5)
        assert house.broker.bounds.written == before + more


def test_a_hold_needs_admin_on_the_topics(house: House) -> None:
    directory = house.broker.accounts.directory
    directory.put_account(Account(1_000, "ann", ()))
    ann = Principal(directory, house.broker.audit.record, "ann", "admin", "")
    house.broker.accounts.set_access_list(OPEN, AccessList("t", users={"ann": READ}))
    house.run()
    report(house, 1, by=ann, holds=False)
    with pytest.raises(Denied):
        report(house, 1, by=ann)
    assert state(house) == (False, "")


def test_a_hold_is_on_the_topics_of_the_selection_alone(house: House) -> None:
    """The reporter needs ADMIN on these: it must not hold the records of others."""
    directory = house.broker.accounts.directory
    directory.put_account(Account(1_000, "ann", ()))
    ann = Principal(directory, house.broker.audit.record, "ann", "admin", "")
    house.broker.accounts.set_access_list(OPEN, AccessList("own", users={"ann": ADMIN}))
    house.run()
    topic = house.broker.topics.existing("t")
    report(house, by=ann, topics=("own",), offsets={topic.topic_id: [0]})
    assert state(house) == (True, "")
    pass_rounds(house, 4)
    assert start(house) == 3
