"""FlyMQ's groups as administrators see them: listed, described, deleted, and sought by time."""

from __future__ import annotations

import pytest

from brokerd.broker import Congested
from brokerd.broker.model.topics import ConsumerGroup
from brokerd.codecs import flymq
from brokerd.protocols.flymq.connection import FlymqSettings
from brokerd.protocols.flymq.group_admin import STEP_TOPICS
from brokerd.security.audit import AUDIT_TOPIC
from tests.protocols.flymq_desk import FlymqHouse, SteppedHouse
from tests.protocols.flymq_guarded import GuardedHouse

DONE = flymq.Done()
MAY_NOT = flymq.Failed("unauthorized")
NOT_IN = flymq.Failed("authentication required")


def group(name: str, topic: str = "t", members: int = 0, **committed: int) -> flymq.Group:
    """With committed offsets by ``pN``."""
    offsets = [flymq.GroupOffset(int(one[1:]), offset) for one, offset in committed.items()]
    return flymq.Group(topic, name, members, tuple(offsets))


def unknown(name: str, topic: str = "") -> flymq.Failed:
    return flymq.Failed(f"consumer group not found: {topic}:{name}")


@pytest.fixture
def house() -> FlymqHouse:
    """Two topics, of which both have a group ``g``."""
    house = FlymqHouse(FlymqSettings(partitions=3))
    for topic in ("t", "s"):
        house.produce(b"x", topic=topic)
        house.ask(flymq.Commit(topic, "g", 1, 4))
    house.ask(flymq.Commit("t", "a", 0, 0), flymq.Commit("t", "a", 2, 9))
    return house


def groups_of(house: FlymqHouse, topic: str) -> dict[str, ConsumerGroup]:
    return house.broker.topics.existing(topic).groups


class TestLists:
    def test_all_groups_are_listed_by_topic_and_name(self, house: FlymqHouse) -> None:
        client = house.client()
        joined, listed = client.ask(flymq.Subscribe("t", "new", 0, "latest"), flymq.ListGroups())
        assert isinstance(joined, flymq.Position)
        assert listed.groups == (
            group("g", "s", p1=4),
            group("a", p0=0, p2=9),
            group("g", p1=4),
            group("new", members=1),
        )

    def test_groups_of_other_formats_are_among_them(self, house: FlymqHouse) -> None:
        """But neither one without a name nor the broker's own."""
        broker = house.broker
        broker.leases.dead_letter(broker.leases.group_partition("t", "workers", 0, 0), 0, "boom")
        broker.groups.commit_offset("t", "", 0, 1)
        broker.groups.commit_offset("s", "..", 0, 1)
        house.run()
        names = [(one.topic, one.group) for one in house.only(flymq.ListGroups()).groups]
        assert names == [("s", ".."), ("s", "g"), ("t", "a"), ("t", "g"), ("t", "workers")]

    def test_those_of_the_broker_s_own_topics_are_not(self) -> None:
        house = GuardedHouse()
        house.broker.groups.commit_offset(AUDIT_TOPIC, "g", 0, 1)
        root = house.log_in("root")
        unseen = flymq.ListGroups(), flymq.DescribeGroup("g", None), flymq.DeleteGroup("g")
        assert root.ask(*unseen) == [flymq.Groups(()), unknown("g"), unknown("g")]

    def test_groups_of_a_topic_that_is_deleted_meanwhile_are_not(self) -> None:
        house = SteppedHouse()
        house.steps.look_seconds = 0.001
        for topic in ("a", "b"):
            house.broker.topics.create(topic)
            for number in range(9):
                house.broker.groups.commit_offset(topic, f"g{number}", 0, 1)
        house.run()
        client = house.client()
        client.send(flymq.ListGroups())
        house.run()
        house.steps.step()
        house.broker.topics.delete("b")
        house.finish()
        (answer,) = client.answers()
        assert [one.topic for one in answer.groups] == ["a"] * 9

    def test_more_than_an_answer_can_have_are_refused(
        self, house: FlymqHouse, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("brokerd.protocols.flymq.group_admin.MAX_LENGTH", 60)
        text = "there are more groups than an answer can have"
        assert house.only(flymq.ListGroups()) == flymq.Failed(text)

    def test_without_groups_the_list_is_empty(self) -> None:
        assert FlymqHouse().only(flymq.ListGroups()) == flymq.Groups(())

    def test_many_groups_are_listed_in_slices(self) -> None:
        """Others are served in between."""
        house = FlymqHouse()
        house.produce(b"x")
        for number in range(3_000):
            house.broker.groups.commit_offset("t", f"g{number:04}", 0, number)
        house.run()
        listed = house.only(flymq.ListGroups()).groups
        assert [one.group for one in listed] == [f"g{number:04}" for number in range(3_000)]


@pytest.mark.parametrize(
    "request_",
    [flymq.ListGroups(), flymq.DescribeGroup("g", None), flymq.DeleteGroup("g")],
    ids=["list", "describe", "delete"],
)
def test_all_topics_are_looked_at_in_slices(request_: object) -> None:
    """Each of these requests sorted the names of all topics in one step."""
    house = SteppedHouse()
    house.steps.look_seconds = 0.01
    for number in range(3 * STEP_TOPICS):
        house.broker.topics.create(f"t{number:05}")
        if number % 500 == 0:
            house.run()
    for topic in ("t02000", "t00100"):
        house.broker.groups.commit_offset(topic, "g", 0, 1)
    house.run()
    client = house.client()
    client.send(request_)
    house.run()
    steps = 0
    while house.steps.waiting:
        house.steps.step()
        house.run()
        steps += 1
    (answer,) = client.answers()
    assert steps >= 6
    if isinstance(answer, flymq.JavaGroup):
        assert answer.topics == ("t00100", "t02000")
    elif isinstance(answer, flymq.Groups):
        assert [one.topic for one in answer.groups] == ["t00100", "t02000"]
    else:
        assert answer == DONE
        assert not any(topic.groups for topic in house.broker.topics.all())


class TestDescriptions:
    def test_a_group_is_described_in_the_layout_of_its_request(self, house: FlymqHouse) -> None:
        described = house.ask(flymq.DescribeGroup("g", "t"), flymq.DescribeGroup("g", None))
        assert described == [
            group("g", p1=4),
            flymq.JavaGroup("g", "Empty", (), ("s", "t"), ""),
        ]

    def test_with_an_empty_topic_it_is_the_first_by_name(self, house: FlymqHouse) -> None:
        """So the Go client asks."""
        assert house.only(flymq.DescribeGroup("g")) == group("g", "s", p1=4)

    def test_java_is_told_who_the_members_are(self, house: FlymqHouse) -> None:
        """One that has joined the group of two topics is one member."""
        client = house.client()
        client.ask(*[flymq.Subscribe(topic, "g", 0, "latest") for topic in ("s", "t")])
        house.client().ask(flymq.Subscribe("t", "g", 0, "latest"))
        described = house.only(flymq.DescribeGroup("g", None))
        assert described.state == "Stable"
        assert len(described.members) == 2

    @pytest.mark.parametrize("topic", ["t", "none", "", None, "../x"])
    def test_an_unknown_one_is_refused(self, house: FlymqHouse, topic: str | None) -> None:
        requests = flymq.DescribeGroup("x", topic), flymq.DeleteGroup("x", topic)
        assert house.ask(*requests) == [unknown("x", topic or "")] * 2

    def test_a_group_without_a_name_is_unknown(self, house: FlymqHouse) -> None:
        house.broker.groups.commit_offset("t", "", 0, 1)
        house.run()
        requests = (
            flymq.DescribeGroup("", "t"),
            flymq.DescribeGroup("", None),
            flymq.DeleteGroup("", "t"),
        )
        assert house.ask(*requests) == [unknown("", "t"), unknown(""), unknown("", "t")]


class TestDeletion:
    def test_a_group_of_a_topic_is_deleted_for_good(self, house: FlymqHouse) -> None:
        assert house.only(flymq.DeleteGroup("g", "t")) == DONE
        for _ in range(2):
            assert house.only(flymq.GetOffset("t", "g", 1)) == unknown("g", "t")
            assert house.only(flymq.GetOffset("s", "g", 1)) == flymq.Position(4)
            house = house.crash()

    @pytest.mark.parametrize("topic", ["", None])
    def test_without_a_topic_it_is_deleted_of_all(
        self, house: FlymqHouse, topic: str | None
    ) -> None:
        assert house.only(flymq.DeleteGroup("g", topic)) == DONE
        assert [*groups_of(house, "s"), *groups_of(house, "t")] == ["a"]
        assert house.only(flymq.DeleteGroup("g", topic)) == unknown("g")

    def test_one_that_somebody_else_deletes_meanwhile_is_no_error(self) -> None:
        house = SteppedHouse()
        house.steps.look_seconds = 0.001
        topics = [f"t{number}" for number in range(9)]
        for topic in topics:
            house.broker.topics.create(topic)
            house.broker.groups.commit_offset(topic, "g", 0, 1)
        house.run()
        client = house.client()
        client.send(flymq.DeleteGroup("g"))
        house.run()
        house.steps.step()
        house.broker.groups.delete("t8", "g")
        house.finish()
        assert client.answers() == [DONE]
        assert not any(groups_of(house, topic) for topic in topics)

    def test_it_is_in_the_trail(self) -> None:
        house = GuardedHouse()
        root = house.log_in("root")
        root.ask(
            flymq.CreateTopic("t", 1), flymq.Commit("t", "g", 0, 0), flymq.DeleteGroup("g", "t")
        )
        (found,) = root.ask(flymq.QueryAudit(types=("group.delete",)))
        assert [(one.user, one.resource) for one in found.events] == [("root", "t/g")]

    def test_a_deletion_of_several_goes_on_when_the_log_has_room(self, house: FlymqHouse) -> None:
        group_commit = house.broker.group_commit
        admit, sizes = group_commit.admit_events, []

        def congested_second(size: int) -> None:
            sizes.append(size)
            if len(sizes) == 2:
                raise Congested("log space is being allocated; try again")
            admit(size)

        house.broker.topics.create("before")  # a commit is under way
        group_commit.admit_events = congested_second  # type: ignore[method-assign]
        assert house.only(flymq.DeleteGroup("g")) == DONE
        assert len(sizes) == 3
        assert [*groups_of(house, "s"), *groups_of(house, "t")] == ["a"]


class TestTimes:
    times_ms: list[int]

    @pytest.fixture
    def timed(self) -> FlymqHouse:
        """A record each ten seconds, beginning now."""
        house = FlymqHouse()
        self.times_ms = []
        for number in range(5):
            answer = house.only(flymq.Produce("t", None, b"%d" % number))
            self.times_ms.append(answer.timestamp_ms)
            house.pass_time(10)
        return house

    def test_a_seek_finds_the_first_record_since_then(self, timed: FlymqHouse) -> None:
        """The time that PRODUCE told leads to its record."""
        for number, time_ms in enumerate(self.times_ms):
            assert timed.only(flymq.SeekToTimestamp("t", 0, time_ms)) == flymq.Position(number)
            later = flymq.SeekToTimestamp("t", 0, time_ms + 5_000)
            assert timed.only(later) == flymq.Position(number + 1)

    def test_before_all_records_and_behind_them(self, timed: FlymqHouse) -> None:
        for time_ms in (0, -1, -(1 << 63)):
            assert timed.only(flymq.SeekToTimestamp("t", 0, time_ms)) == flymq.Position(0)
        for time_ms in (1 << 50, (1 << 63) - 1):
            assert timed.only(flymq.SeekToTimestamp("t", 0, time_ms)) == flymq.Position(5)
        timed.broker.topics.trim("t", 0, 2)
        timed.run()
        assert timed.only(flymq.SeekToTimestamp("t", 0, 0)) == flymq.Position(2)

    def test_with_a_group_it_is_committed_and_durable(self, timed: FlymqHouse) -> None:
        assert timed.only(flymq.SeekToTimestamp("t", 0, 1 << 50, "g")) == flymq.Position(5)
        assert timed.only(flymq.SeekToTimestamp("t", 0, 0, "")) == flymq.Position(0)
        assert timed.crash().only(flymq.GetOffset("t", "g", 0)) == flymq.Position(5)
        assert [*groups_of(timed, "t")] == ["g"]

    def test_what_makes_no_sense_is_refused(self, timed: FlymqHouse) -> None:
        answers = timed.ask(
            flymq.SeekToTimestamp("none", 0, 0),
            flymq.SeekToTimestamp("t", 1, 0),
            flymq.SeekToTimestamp("t", -1, 0),
            flymq.SeekToTimestamp("t", 0, 0, ".."),
        )
        assert [answer.text[:25] for answer in answers] == [
            "topic not found: none",
            "partition 1 not found",
            "partition -1 not found",
            "group name must not be '.",
        ]
        assert not groups_of(timed, "t")


class TestPermissions:
    ASKED = (
        flymq.ListGroups(),
        flymq.DescribeGroup("g", "t"),
        flymq.DescribeGroup("g", None),
        flymq.DeleteGroup("g", ""),
    )

    def house(self) -> GuardedHouse:
        house = GuardedHouse()
        house.log_in("root").ask(flymq.CreateTopic("t", 1), flymq.Commit("t", "g", 0, 0))
        return house

    def test_they_are_for_administrators(self) -> None:
        house = self.house()
        assert house.ask(*self.ASKED) == [NOT_IN] * 4
        for name in ("pat", "carl", "gus"):
            assert house.log_in(name).ask(*self.ASKED) == [MAY_NOT] * 4
        assert not any(
            isinstance(one, flymq.Failed) for one in house.log_in("root").ask(*self.ASKED)
        )

    def test_a_seek_needs_what_a_commit_needs(self) -> None:
        house = self.house()
        seek = flymq.SeekToTimestamp("t", 0, 0, "g")
        assert house.only(seek) == NOT_IN
        assert house.log_in("carl").ask(seek) == [flymq.Position(0)]
