"""The audit trail on a simulated disk: what is in it after a crash, a flood, a full disk."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import pytest
from twisted.logger import capturedLogs

from brokerd.broker import BrokerSettings, Congested
from brokerd.broker.model.topics import TopicSettings
from brokerd.broker.security import audit, audit_search
from brokerd.errors import InvalidName, InvalidRequest, LimitExceeded, NoSpace, ShuttingDown
from brokerd.security.audit import (
    AUDIT_TOPIC,
    Actor,
    AuditFilter,
    AuditPage,
    EventType,
    denied,
    logged_in,
)
from simulator.machine.bare import WALL_SECONDS
from simulator.machine.disk import Call, CrashModel, PowerLost
from tests.house import House

DAY_US = 86_400 * 1_000_000
AUDITED = BrokerSettings(audit_keep_us=90 * DAY_US)
FORGETFUL = BrokerSettings(audit_keep_us=90 * DAY_US, tail_cache_bytes=0, read_cache_bytes=0)
SMALL_FRAMES = BrokerSettings(audit_keep_us=DAY_US, frame_bytes=64 << 10)


BOB = Actor("bob", "192.0.2.7", "flymq")

LARGE = Actor('"' * 250), EventType.ACL_SET, '"' * 250
"""Makes an event of two kilobytes."""


def deny(house: House, actor: Actor = BOB, topic: str = "orders") -> None:
    house.broker.audit.record(denied(actor, "write", topic))


def log_in(house: House, actor: Actor = BOB) -> None:
    house.broker.audit.record(logged_in(actor, "key"))


def audited(**changes: Any) -> House:
    house = House(**{"settings": AUDITED, **changes})
    house.run()
    return house


def ask(house: House, **wanted: Any) -> AuditPage:
    """The answer to a question."""
    answers: list[tuple[AuditPage | None, Exception | None]] = []
    house.broker.audit.query(AuditFilter(**wanted), lambda *answer: answers.append(answer))
    for _ in range(1_000):
        if answers:
            break
        house.run()
        house.clock.advance(0.001)
    ((page, error),) = answers
    if error is not None:
        raise error
    assert page is not None
    return page


def resources(page: AuditPage) -> list[str]:
    return [found.resource for found in page.events]


def make_topic(house: House, name: str) -> None:
    house.broker.audit.carry_out(
        BOB, EventType.TOPIC_CREATED, name, lambda: house.broker.topics.create(name)
    )


def delete_topic(house: House, name: str) -> None:
    house.broker.audit.carry_out(
        BOB, EventType.TOPIC_DELETED, name, lambda: house.broker.topics.delete(name)
    )


def fill_disk(house: House) -> None:
    """Produce to the topic ``big`` until the log has no room for another record."""
    partition = house.broker.topics.create("big").partition(0)
    house.disk.capacity = house.disk.used_bytes
    for size in (60_000, 3_000, 0):
        with pytest.raises(NoSpace):
            while True:
                with suppress(Congested):
                    house.broker.appender.produce(partition, b"x" * size)
                house.run()


KEPT = TopicSettings(retention_us=5)


def change_topics_until(house: House, calls: int) -> bool:
    """Make, change and delete topics; False if the power went at that call of the disk."""
    left = calls

    def enter(call: Call) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise PowerLost

    house.disk.enter = enter
    try:
        house.run()
        make_topic(house, "a")
        deny(house)
        make_topic(house, "b")
        house.run()
        house.append("a", b"x" * 5_000)
        house.broker.audit.carry_out(
            BOB, EventType.TOPIC_CONFIGURED, "a", lambda: house.broker.topics.configure("a", KEPT)
        )
        delete_topic(house, "b")
        house.turn()
        make_topic(house, "c")
        house.run()
    except PowerLost:
        return False
    finally:
        house.disk.enter = lambda call: None
    return True


class TestChanges:
    def test_a_change_is_told_with_who_did_it_from_where_and_when(self) -> None:
        house = audited()
        make_topic(house, "orders")
        (found,) = ask(house).events
        assert (found.type, found.resource, found.result) == ("topic.create", "orders", "success")
        assert (found.user, found.client_ip, found.wire_format) == BOB
        assert (found.event_id, found.time_us) == (0, round(WALL_SECONDS * 1e6))

    @pytest.mark.parametrize("model", list(CrashModel))
    def test_a_change_and_its_event_survive_a_loss_of_power_together(
        self, model: CrashModel
    ) -> None:
        """At whatever call of the disk it comes, and whatever of the last writes it leaves."""
        begin = audited()
        begin.run()
        base = begin.disk
        calls, outcomes = 0, set()
        while True:
            house = House(disk=base.copy(), settings=AUDITED)
            is_done = change_topics_until(house, calls)
            house.disk.crash(model, Random(calls))
            house = audited(disk=house.disk)
            told = {
                name: [found.type for found in ask(house, resource=name).events] for name in "abc"
            }
            topics = {name: house.broker.topics.find(name) for name in "abc"}
            for name, topic in topics.items():
                is_there = told[name] not in ([], ["topic.delete", "topic.create"])
                assert (topic is not None) == is_there, (calls, name, told)
            settings = topics["a"].settings if topics["a"] is not None else TopicSettings()
            assert (settings == KEPT) == ("topic.configure" in told["a"])
            outcomes.add(str(told))
            if is_done:
                break
            calls += 1
        assert len(outcomes) >= 4

    @pytest.mark.parametrize("admit", ["admit", "admit_events"])
    def test_a_change_and_its_event_are_in_one_frame_however_full_it_is(self, admit: str) -> None:
        """What gathered before is cut off before the change, and no frame is larger than its
        limit."""
        house = audited(settings=SMALL_FRAMES)
        group_commit = house.broker.group_commit
        partition = house.broker.topics.create("t").partition(0)
        house.run()
        cut = 0

        def change() -> int:
            getattr(house.broker.group_commit, admit)(50_000)
            house.broker.appender.append(partition, b"y" * 49_900)
            return group_commit.ticket()

        for filled in range(8_000, 16_000, 100):
            limit_bytes = group_commit.limit_bytes
            house.broker.appender.produce(partition, b"x" * filled)
            before = group_commit.ticket()
            ticket = house.broker.audit.carry_out(*LARGE, change, {"d": '"' * 200})
            assert ticket == group_commit.ticket()
            assert group_commit.gathered_bytes <= SMALL_FRAMES.frame_bytes
            cut += ticket > before
            house.run()
            assert group_commit.limit_bytes == limit_bytes
        assert 0 < cut < 80

    def test_what_changes_nothing_may_be_told_and_has_its_room_too(self) -> None:
        house = audited(settings=SMALL_FRAMES)
        partition = house.broker.topics.create("t").partition(0)
        house.run()
        for filled in range(60_000, 64_400, 100):
            house.broker.appender.produce(partition, b"x" * filled)
            assert house.broker.audit.carry_out(*LARGE, lambda: 5, {"d": '"' * 200}) == 5
            assert house.broker.group_commit.gathered_bytes <= SMALL_FRAMES.frame_bytes
            house.run()
        assert ask(house).total == 44

    def test_what_fails_is_not_told(self) -> None:
        house = audited()
        with pytest.raises(InvalidName):
            make_topic(house, "\0")
        assert ask(house).events == ()

    def test_deleting_works_and_is_told_on_a_full_disk(self) -> None:
        house = audited()
        fill_disk(house)
        delete_topic(house, "big")
        house.run()
        house = house.crash()
        assert house.broker.topics.find("big") is None
        assert [found.type for found in ask(house).events] == ["topic.delete"]

    def test_without_a_trail_changes_are_made_and_there_is_no_topic(self) -> None:
        house = House()
        make_topic(house, "t")
        deny(house)
        house.pass_time(100, step=10)
        assert [topic.name for topic in house.broker.topics.all()] == ["t"]
        with pytest.raises(InvalidRequest, match="audit trail is not enabled"):
            ask(house)
        assert house.broker.status()["audit"]["enabled"] is False


class TestRecords:
    def test_a_denial_is_durable_after_the_next_commit(self) -> None:
        house = audited()
        deny(house)
        house.run()
        house = house.crash()
        (found,) = ask(house).events
        assert (found.type, found.user, found.action, found.resource) == (
            "access.denied",
            "bob",
            "write",
            "orders",
        )

    def test_a_flood_is_two_events_a_minute(self) -> None:
        """And the second says how many there were."""
        house = audited()
        for _ in range(10_000):
            deny(house)
        house.run()
        assert len(ask(house).events) == 1
        house.pass_time(61, step=1)
        newest, first = ask(house).events
        assert newest.details == {"repeated": "9999"}
        assert 60_000_000 <= newest.time_us - first.time_us < 62_000_000
        assert house.broker.status()["audit"] == {
            "enabled": True,
            "written": 2,
            "repeated": 9_999,
            "dropped": 0,
            "logins_failed": 0,
            "logins_refused": 0,
            "denied": 10_000,
        }

    def test_what_was_counted_is_written_when_the_broker_stops(self) -> None:
        house = audited()
        for _ in range(10):
            deny(house)
        house.stop()
        deny(house)
        house = house.again()
        assert [found.details for found in ask(house).events] == [{"repeated": "9"}, {}]

    def test_recording_amid_a_request_takes_none_of_the_room_it_was_given(self) -> None:
        """What was admitted has its place, whatever is denied before it is added."""
        house = audited(settings=SMALL_FRAMES)
        partition = house.broker.topics.create("t").partition(0)
        house.run()
        for _ in range(20):
            house.broker.group_commit.admit(60_000)
            for number in range(5):
                deny(house, BOB, f"t{number}")
            gathered = house.broker.group_commit.gathered_bytes
            assert gathered == 0
            house.broker.appender.append(partition, b"x" * 59_000)
            house.run()
        assert house.failures == []

    def test_with_no_room_events_are_dropped_counted_and_told(self) -> None:
        """The broker goes on; once there is room there are events again."""
        house = audited()
        fill_disk(house)
        with capturedLogs() as logs:
            for number in range(20):
                log_in(house, Actor("bob", f"::{number:x}:0:0:0:0"))
                house.run()
            house.pass_time(61, step=1)
        status = house.broker.status()["audit"]
        assert (status["dropped"], status["written"]) == (20, 0)
        told = [one["count"] for one in logs if one.get("event_id") == "audit-dropped"]
        assert told == [1, 19]
        assert house.failures == []
        house.disk.capacity = None
        house.wal.retry_allocation()
        house.run()
        log_in(house)
        house.run()
        assert ask(house).events[0].type == "auth.success"

    def test_while_the_log_is_busy_events_wait_and_none_is_lost(self) -> None:
        house = busy()
        deny(house)
        house.turn()
        assert house.broker.audit.status()["written"] == 0
        house.pass_time(2)
        assert [found.type for found in ask(house).events] == ["access.denied"]
        assert house.broker.audit.status()["dropped"] == 0

    def test_not_more_than_so_many_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(audit, "WAITING_MAX", 3)
        house = busy()
        for number in range(10):
            deny(house, BOB, f"t{number}")
        house.turn()
        house.pass_time(2)
        assert resources(ask(house)) == ["t2", "t1", "t0"]
        assert house.broker.audit.status()["dropped"] == 7

    def test_a_stop_while_the_log_is_busy_waits_for_nothing(self) -> None:
        house = busy()
        deny(house)
        house.turn()
        house.stop()
        assert house.broker.audit.status()["dropped"] == 1


def busy() -> House:
    """A house whose log takes no more until the disk has done what it is at."""
    house = audited(settings=BrokerSettings(audit_keep_us=DAY_US, max_uncommitted_bytes=128 << 10))
    partition = house.broker.topics.create("t").partition(0)
    house.run()
    house.broker.appender.produce(partition, b"x" * 100_000)
    house.turn()
    for size in (28_000, 1_000, 0):  # the small ones use up what may pass those that wait
        with suppress(Congested):
            while True:
                house.broker.appender.produce(partition, b"x" * size)
    return house


class TestTheTopic:
    def test_it_keeps_events_as_long_as_configured_and_follows_the_configuration(self) -> None:
        house = audited()
        topic = house.broker.topics.existing(AUDIT_TOPIC)
        assert topic.settings == TopicSettings(90 * DAY_US, 0, 0, False)
        house.stop()
        house = house.again(settings=BrokerSettings(audit_keep_us=DAY_US))
        topic = house.broker.topics.existing(AUDIT_TOPIC)
        assert topic.settings.retention_us == DAY_US
        house = house.crash()
        assert house.broker.topics.existing(AUDIT_TOPIC).settings.retention_us == DAY_US

    def test_nobody_makes_changes_or_deletes_it(self) -> None:
        house = House()
        with pytest.raises(InvalidName):
            house.broker.topics.create(AUDIT_TOPIC)
        house = audited()
        for change in (
            lambda: house.broker.topics.configure(AUDIT_TOPIC, TopicSettings(retention_us=1)),
            lambda: house.broker.topics.trim(AUDIT_TOPIC, 0, 0),
            lambda: house.broker.topics.delete(AUDIT_TOPIC),
        ):
            with pytest.raises(InvalidName, match="the broker's own"):
                change()

    def test_old_events_go_with_time(self) -> None:
        house = audited(settings=BrokerSettings(audit_keep_us=60_000_000))
        make_topic(house, "old")
        house.pass_time(200, step=5)
        make_topic(house, "new")
        house.pass_time(50, step=5)
        assert resources(ask(house)) == ["new"]


def fill(house: House, count: int, seconds: float = 0.0) -> None:
    """Events about topics t0, t1, ..."""
    for number in range(count):
        house.broker.audit.carry_out(BOB, EventType.ACL_SET, f"t{number}", lambda: None)
        if seconds:
            house.pass_time(seconds, step=seconds)
        elif number % 500 == 499:
            house.run()
    house.run()


class TestQuestions:
    def test_events_come_newest_first_and_page_by_page(self) -> None:
        house = audited()
        fill(house, 25)
        first = ask(house, limit=10)
        assert resources(first) == [f"t{number}" for number in range(24, 14, -1)]
        assert (first.total, first.more, first.next_before) == (25, True, 15)
        last = ask(house, limit=10, skip=20)
        assert resources(last) == ["t4", "t3", "t2", "t1", "t0"]
        assert (last.total, last.more, last.next_before) == (25, False, None)

    def test_a_page_may_begin_before_an_event(self) -> None:
        """So that pages stay as they are while new events come."""
        house = audited()
        fill(house, 25)
        page = ask(house, limit=3, before=ask(house, limit=5).events[-1].event_id)
        assert resources(page) == ["t19", "t18", "t17"]

    def test_only_what_is_asked_for_comes(self) -> None:
        house = audited()
        fill(house, 20)
        deny(house, Actor("eve"), "t1")
        house.run()
        assert ask(house, user="eve").total == 1
        assert ask(house, types=frozenset({"acl.set"}), resource="t1").total == 11
        assert ask(house, search="WRITE").total == 1

    @pytest.mark.parametrize("forgetful", [False, True])
    def test_times_bound_the_search(self, forgetful: bool) -> None:
        """From memory and from disk alike."""
        house = audited(settings=FORGETFUL if forgetful else AUDITED)
        begin_us = house.broker.time.time_us()
        fill(house, 30, seconds=100)
        page = ask(house, start_us=begin_us + 1_000_000_000, end_us=begin_us + 1_300_000_000)
        assert resources(page) == ["t12", "t11", "t10"]
        assert (page.total, page.more) == (3, False)

    def test_one_question_looks_at_so_many_events_and_says_where_to_go_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(audit_search, "EXAMINED_MAX", 25)
        monkeypatch.setattr(audit_search, "BLOCK_EVENTS", 10)
        house = audited()
        fill(house, 60)
        first = ask(house, resource="t3")
        assert resources(first) == ["t39", "t38", "t37", "t36", "t35"]
        assert first.more and first.next_before == 35
        second = ask(house, resource="t3", before=first.next_before)
        assert resources(second) == ["t34", "t33", "t32", "t31", "t30"]
        assert ask(house, resource="t3", limit=2).next_before == 38, "nothing is left out"
        third = ask(house, resource="t3", before=second.next_before)
        assert resources(third) == ["t3"]
        assert not third.more and third.next_before is None

    def test_a_search_ends_where_the_time_ends_that_is_asked_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is older is not looked at, so no other question is needed."""
        monkeypatch.setattr(audit_search, "EXAMINED_MAX", 25)
        monkeypatch.setattr(audit_search, "BLOCK_EVENTS", 10)
        house = audited()
        begin_us = house.broker.time.time_us()
        fill(house, 60, seconds=1)
        page = ask(house, start_us=begin_us + 54_500_000)
        assert resources(page) == ["t59", "t58", "t57", "t56", "t55"]
        assert (page.more, page.next_before) == (False, None)

    def test_large_events_come_all_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(audit_search, "BLOCK_BYTES", 500)
        house = audited()
        fill(house, 30)
        assert resources(ask(house)) == [f"t{number}" for number in range(29, -1, -1)]

    def test_a_record_that_is_no_event_is_passed_over_and_counted(self) -> None:
        house = audited()
        fill(house, 2)
        house.append(AUDIT_TOPIC, b"{}")
        fill(house, 1)
        page = ask(house)
        assert (resources(page), page.total, page.unreadable) == (["t0", "t1", "t0"], 3, 1)

    @pytest.mark.parametrize("before", [0, 200])
    @pytest.mark.parametrize("again", [False, True])
    def test_damage_takes_what_it_takes_and_no_more(
        self, again: bool, before: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Found by the search or at the start; in the event, or also in what tells where it is."""
        monkeypatch.setattr(audit_search, "BLOCK_EVENTS", 10)
        settings = BrokerSettings(audit_keep_us=90 * DAY_US, tail_cache_bytes=0, read_cache_bytes=0)
        house = audited(settings=settings)
        fill(house, 30, seconds=1)
        (path,) = [
            path for path, data in house.disk.files().items() if data.count(b'"resource":"t12"')
        ]
        content = house.disk.content(path)
        at = content.index(b'"resource":"t12"')
        for place in range(at - before, at + 1):
            content[place] ^= 1
        if again:
            house.stop()
            house = audited(settings=FORGETFUL, disk=house.disk)
        page = ask(house)
        assert resources(page) == [f"t{number}" for number in range(29, -1, -1) if number != 12]
        assert page.unreadable >= 1

    @pytest.mark.parametrize("steps", range(4))
    def test_what_retention_takes_during_a_search_is_not_damaged(
        self, steps: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whenever it comes."""
        monkeypatch.setattr(audit_search, "BLOCK_EVENTS", 40)
        monkeypatch.setattr(audit_search, "BLOCK_BYTES", 500)
        house = audited(settings=FORGETFUL)
        fill(house, 100)
        house.stop()
        house = house.again()
        partition = house.broker.topics.existing(AUDIT_TOPIC).partition(0)
        answers: list[Any] = []
        house.broker.audit.query(AuditFilter(), lambda *answer: answers.append(answer))
        for _ in range(steps):
            house.turn()
            house.readers.step()
        partition.move_start(75)
        house.run()
        ((page, error),) = answers
        assert error is None
        assert page.events[0].resource == "t99" and page.total >= 25
        assert (page.unreadable, page.next_before) == (0, None)

    def test_a_long_search_gives_the_reactor_its_turns(self) -> None:
        house = audited()
        fill(house, 5_000)
        answers: list[object] = []
        others: list[int] = []

        def turn() -> None:
            others.append(len(answers))
            if not answers:
                house.clock.callLater(0, turn)

        house.broker.audit.query(AuditFilter(), lambda *answer: answers.append(answer))
        house.clock.callLater(0, turn)
        house.turn()
        assert answers and len(others) >= 5

    def test_many_questions_wait_and_too_many_are_refused(self) -> None:
        house = audited()
        fill(house, 5_000)
        answers: list[object] = []
        asked = 0
        with pytest.raises(LimitExceeded, match="ask again later"):
            for _ in range(100):
                house.broker.audit.query(AuditFilter(), lambda *answer: answers.append(answer))
                asked += 1
        house.pass_time(1, step=0.01)
        assert len(answers) == asked >= audit_search.WAITING_MAX

    def test_who_asks_while_the_broker_stops_is_told_so(self) -> None:
        house = audited()
        fill(house, 5_000)
        answers: list[Any] = []
        for _ in range(3):
            house.broker.audit.query(AuditFilter(), lambda *answer: answers.append(answer))
        house.stop()
        assert [type(error) for _, error in answers] == [ShuttingDown] * 3

    def test_a_wrong_question_is_refused(self) -> None:
        with pytest.raises(InvalidRequest):
            ask(audited(), limit=0)

    def test_an_empty_trail_has_an_empty_answer(self) -> None:
        assert ask(audited()) == AuditPage((), 0, False)
