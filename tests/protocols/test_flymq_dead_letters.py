"""FlyMQ's dead letters: those of groups, and those that programs write to ``NAME.dlq``."""

from __future__ import annotations

import base64
import errno
import json
from typing import Any

import pytest

from brokerd.broker import Congested
from brokerd.broker.calls import call_when_admitted
from brokerd.codecs import flymq
from brokerd.groups import GroupSettings
from brokerd.protocols.flymq import dead_letter_envelope, dead_letters
from brokerd.protocols.flymq.connection import FlymqSettings
from brokerd.security import ADMIN, OPEN
from brokerd.security.accounts import AccessList
from brokerd.wal import WalOptions
from simulator.machine.bare import FORGETFUL
from tests.broker.desk import lease
from tests.broker.test_state import entries, is_records, rot
from tests.protocols.flymq_desk import FlymqHouse
from tests.protocols.flymq_guarded import GuardedHouse

DONE = flymq.Done()
MIB = 1 << 20


def envelope(message_id: str, payload: bytes, **members: Any) -> bytes:
    """What FlyMQ's programs write to a topic for dead letters."""
    said = {"id": message_id, "payload": base64.b64encode(payload).decode(), **members}
    return json.dumps(said).encode()


def kill(house: FlymqHouse, group: str, offset: int, reason: str = "boom", index: int = 0) -> None:
    """Make a record a dead letter of a group."""
    broker = house.broker
    assert broker.leases.dead_letter(
        broker.leases.group_partition("t", group, index, offset), offset, reason
    )
    house.run()


def fetched(house: FlymqHouse, topic: str = "t", most: int = 100) -> list[tuple[Any, ...]]:
    answer = house.only(flymq.FetchDlq(topic, most))
    assert isinstance(answer, flymq.DeadLetters), answer
    return [tuple(one) for one in answer.letters]


def values(house: FlymqHouse, topic: str = "t") -> list[bytes]:
    return [value for _, _, value in house.records(topic, 0, 0, 100)]


def not_found(message: int | str) -> flymq.Failed:
    return flymq.Failed(f"message not found: {message}")


@pytest.fixture
def house() -> FlymqHouse:
    """A topic with five records."""
    house = FlymqHouse()
    house.produce(*[b"%d" % number for number in range(5)])
    return house


class TestOfGroups:
    def test_what_failed_for_good_is_shown_with_its_reason_and_attempts(
        self, house: FlymqHouse
    ) -> None:
        """Whichever format's leases it were."""
        house.broker.groups.configure("t", "g", GroupSettings(max_attempts=2, backoff_base_us=1))
        for _ in range(2):
            lease(house, "t", "g", "worker")
            house.broker.leases.settle(
                house.broker.leases.group_partition("t", "g", 0, 0), 0, False, reason="too hot"
            )
            house.pass_time(1)
        assert fetched(house) == [("0:0:g", b"0", "too hot", 2)]

    def test_the_control_characters_of_a_reason_are_escaped(self, house: FlymqHouse) -> None:
        house.broker.groups.configure("t", "g", GroupSettings(max_attempts=1))
        lease(house, "t", "g", "worker")
        house.broker.leases.settle(
            house.broker.leases.group_partition("t", "g", 0, 0), 0, False, reason="a\x1b[2Jb"
        )
        assert fetched(house) == [("0:0:g", b"0", "a\\x1b[2Jb", 1)]

    def test_a_lease_that_ran_out_is_an_attempt_too(self, house: FlymqHouse) -> None:
        settings = GroupSettings(max_attempts=2, attempts="grants")
        house.broker.groups.configure("t", "g", settings)
        for _ in range(2):
            lease(house, "t", "g", "worker", seconds=1)
            house.pass_time(2)
        assert fetched(house) == [("0:0:g", b"0", "max_attempts", 2)]

    def test_they_come_by_group_and_offset_and_survive_a_crash(self, house: FlymqHouse) -> None:
        for group, offset in (("z", 0), ("a:b", 3), ("a:b", 1)):
            kill(house, group, offset)
        for _ in range(2):
            assert [one[:2] for one in fetched(house)] == [
                ("0:1:a:b", b"1"),
                ("0:3:a:b", b"3"),
                ("0:0:z", b"0"),
            ]
            house = house.crash()

    def test_a_replay_gives_the_record_to_its_group_again(self, house: FlymqHouse) -> None:
        kill(house, "g", 0)
        kill(house, "h", 0)
        assert house.only(flymq.ReplayDlq("t", "0:0:g")) == DONE
        assert [one[0] for one in fetched(house)] == ["0:0:h"]
        assert house.only(flymq.ReplayDlq("t", "0:0:g")) == not_found("0:0:g")
        house = house.crash()
        assert [one[0] for one in fetched(house)] == ["0:0:h"]
        assert lease(house, "t", "g", "worker") == [(0, b"0")]
        assert values(house) == [b"0", b"1", b"2", b"3", b"4"]

    def test_an_offset_replays_to_all_groups_that_have_it(self, house: FlymqHouse) -> None:
        """It is the record's message id, as other formats say it."""
        for group in ("g", "h"):
            kill(house, group, 2)
        kill(house, "h", 3)
        assert house.only(flymq.ReplayDlq("t", 2)) == DONE
        assert [one[0] for one in fetched(house)] == ["0:3:h"]
        assert house.only(flymq.ReplayDlq("t", 2)) == not_found(2)

    def test_a_message_id_names_the_partition_too(self) -> None:
        house = FlymqHouse(FlymqSettings(partitions=2))
        house.produce(b"x", partition=1)
        kill(house, "g", 0, index=1)
        assert fetched(house) == [("1:0:g", b"x", "boom", 0)]
        assert house.only(flymq.ReplayDlq("t", 0)) == not_found(0)
        assert house.only(flymq.ReplayDlq("t", 1 << 48)) == DONE

    def test_one_whose_record_is_gone_is_shown_without_it(self, house: FlymqHouse) -> None:
        house.ask(flymq.ProduceWithTtl("t", b"short", 1_000), flymq.Produce("t", None, b"other"))
        kill(house, "g", 5)
        house.pass_time(2)
        assert fetched(house) == [("0:5:g", b"", "boom (its record is removed or expired)", 0)]

    def test_a_purge_forgets_them_for_good(self, house: FlymqHouse) -> None:
        for group, offset in (("g", 0), ("g", 4), ("h", 1)):
            kill(house, group, offset)
        assert house.only(flymq.PurgeDlq("t")) == DONE
        for _ in range(2):
            assert fetched(house) == []
            assert house.only(flymq.ReplayDlq("t", "0:0:g")) == not_found("0:0:g")
            house = house.crash()

    def test_there_may_be_more_than_one_step_of_them(self, house: FlymqHouse) -> None:
        """Others are served in between."""
        house.produce(*[b"x"] * 995)
        group_partition = house.broker.leases.group_partition("t", "g", 0, 0)
        for offset in range(0, 1_000, 2):
            house.broker.leases.dead_letter(group_partition, offset, "boom")
        house.run()
        letters = fetched(house, most=1_000)
        assert [one[0] for one in letters] == [f"0:{offset}:g" for offset in range(0, 1_000, 2)]
        assert len(fetched(house, most=7)) == 7

    @pytest.mark.parametrize(
        "message",
        ["", "0", "0:0", ":0:g", "0::g", "0:0:", "0:0:x", "0:9:g", "9:0:g", "-1:0:g", "0:+1:g"]
        + ["0:0 :g", "\u0661:0:g", "1" * 40 + ":0:g", ":" * 65_000],
    )
    def test_an_id_that_names_none_is_refused(self, house: FlymqHouse, message: str) -> None:
        kill(house, "g", 0)
        assert house.only(flymq.ReplayDlq("t", message)).text.startswith("message not found: ")
        assert len(fetched(house)) == 1


class TestOfTheTopic:
    def test_programs_produce_to_it_and_see_what_they_wrote(self, house: FlymqHouse) -> None:
        """Also what they wrote just now, over the same connection."""
        said = envelope("m-1", b"hi", error_message="boom", retry_count=3, reason="manual")
        answers = house.ask(
            flymq.Produce("t.dlq", None, said),
            flymq.Produce("t.dlq", b"key", b"no JSON"),
            flymq.FetchDlq("t"),
        )
        assert answers[2].letters == (
            flymq.DeadLetter("m-1", b"hi", "boom", 3),
            flymq.DeadLetter("1", b"no JSON", "", 0),
        )

    def test_what_it_says_of_itself_is_cut_to_what_an_answer_can_say(
        self, house: FlymqHouse
    ) -> None:
        for count, message in ((1 << 40, "e" * 70_000), (-5, "")):
            said = envelope("m", b"", retry_count=count, error_message=message)
            house.produce(said, topic="t.dlq")
        assert fetched(house) == [("m", b"", "e" * 2_000, (1 << 31) - 1), ("m", b"", "", 0)]

    def test_it_comes_behind_the_groups(self, house: FlymqHouse) -> None:
        house.produce(b"plain", topic="t.dlq")
        kill(house, "g", 0)
        assert [one[0] for one in fetched(house)] == ["0:0:g", "0"]
        assert [one[0] for one in fetched(house, most=1)] == ["0:0:g"]

    @pytest.mark.parametrize(("most", "count"), [(0, 10), (-1, 10), (3, 3), (1 << 30, 15)])
    def test_max_says_how_many(self, house: FlymqHouse, most: int, count: int) -> None:
        house.produce(*[b"x"] * 15, topic="t.dlq")
        assert len(fetched(house, most=most)) == count

    def test_all_its_partitions_are_shown(self) -> None:
        house = FlymqHouse(FlymqSettings(partitions=3))
        house.produce(b"a", b"b", b"c", topic="t.dlq")
        assert [one[:2] for one in fetched(house)] == [("0", b"a"), ("1:0", b"b"), ("2:0", b"c")]
        assert house.only(flymq.ReplayDlq("t", "2:0")) == DONE
        assert values(house) == [b"c"]

    def test_a_replay_produces_the_payload_to_where_it_came_from(self, house: FlymqHouse) -> None:
        """Without a key; and it stays, to be replayed again."""
        house.produce(envelope("m-1", b"hi", original_topic="elsewhere"), topic="t.dlq")
        for count in (1, 2):
            assert house.only(flymq.ReplayDlq("t", "m-1")) == DONE
            assert house.records("elsewhere", 0, 0, 10) == [
                (number, None, b"hi") for number in range(count)
            ]
            assert [one[0] for one in fetched(house)] == ["m-1"]
            house = house.crash()

    def test_a_topic_that_is_not_there_is_created_as_a_produce_would(self) -> None:
        house = FlymqHouse(FlymqSettings(partitions=3))
        house.produce(envelope("m-1", b"hi", original_topic="elsewhere"), topic="t.dlq")
        assert house.only(flymq.ReplayDlq("t", "m-1")) == DONE
        assert len(house.broker.topics.existing("elsewhere").partitions) == 3

    def test_what_does_not_say_where_it_came_from_goes_to_the_topic(
        self, house: FlymqHouse
    ) -> None:
        house.produce(envelope("m-1", b"hi"), b"plain", topic="t.dlq")
        assert house.ask(flymq.ReplayDlq("t", "m-1"), flymq.ReplayDlq("t", "1")) == [DONE, DONE]
        assert values(house)[5:] == [b"hi", b"plain"]

    def test_who_replays_sees_at_once_what_came_of_it(self, house: FlymqHouse) -> None:
        house.produce(b"again", topic="t.dlq")
        replayed, fetch = house.ask(flymq.ReplayDlq("t", "0"), flymq.Fetch("t", 0, 5, 10))
        assert replayed == DONE
        assert [record.value for record in fetch.records] == [b"again"]

    def test_an_offset_means_its_records_before_those_of_groups(self, house: FlymqHouse) -> None:
        house.produce(envelope("m-1", b"hi"), topic="t.dlq")
        kill(house, "g", 0)
        assert house.only(flymq.ReplayDlq("t", 0)) == DONE
        assert values(house)[5:] == [b"hi"]
        assert [one[0] for one in fetched(house)] == ["0:0:g", "m-1"]
        assert house.only(flymq.ReplayDlq("t", 1)) == not_found(1)
        assert house.only(flymq.ReplayDlq("t", (1 << 64) - 1)) == not_found((1 << 64) - 1)

    def test_of_two_with_one_id_the_first_is_replayed(self, house: FlymqHouse) -> None:
        house.produce(envelope("m-1", b"one"), envelope("m-1", b"two"), topic="t.dlq")
        house.ask(flymq.ReplayDlq("t", "m-1"))
        assert values(house)[5:] == [b"one"]

    def test_an_id_is_found_behind_thousands_of_others(self, house: FlymqHouse) -> None:
        """The reference looks at a thousand."""
        partition = house.broker.topics.create("t.dlq").partition(0)
        for _ in range(3_000):
            house.broker.appender.produce(partition, b"other")
        house.broker.appender.produce(partition, envelope("m-1", b"hi"))
        house.run()
        assert house.ask(flymq.ReplayDlq("t", "m-1"), flymq.ReplayDlq("t", "m-2")) == [
            DONE,
            not_found("m-2"),
        ]
        assert values(house)[5:] == [b"hi"]

    @pytest.mark.parametrize("name", ["../x", "a\nb", "n" * 256, "__brokerd.audit"])
    def test_no_record_says_where_none_may_be_produced(self, house: FlymqHouse, name: str) -> None:
        house.produce(envelope("m-1", b"hi", original_topic=name), topic="t.dlq")
        before = [topic.name for topic in house.broker.topics.all()]
        assert isinstance(house.only(flymq.ReplayDlq("t", "m-1")), flymq.Failed)
        assert [topic.name for topic in house.broker.topics.all()] == before

    def test_what_no_fetch_could_carry_is_not_replayed(self, house: FlymqHouse) -> None:
        """A record that another format has stored there."""
        house.broker.topics.create("u")
        partition = house.broker.topics.create("u.dlq").partition(0)
        call_when_admitted(
            house.broker, lambda: house.broker.appender.produce(partition, bytes(flymq.MAX_LENGTH))
        )
        house.run()
        assert isinstance(house.only(flymq.ReplayDlq("u", "0")), flymq.Failed)
        assert house.broker.topics.existing("u").partitions[0].next_offset == 0

    def test_a_purge_deletes_it(self, house: FlymqHouse) -> None:
        house.produce(b"x", topic="t.dlq")
        assert house.only(flymq.PurgeDlq("t")) == DONE
        assert house.only(flymq.ListTopics()) == flymq.Topics(("t",))
        assert fetched(house) == []

    def test_what_does_not_fit_the_answer_is_left_for_later_or_told_of(
        self, house: FlymqHouse
    ) -> None:
        big = bytes(flymq.MAX_LENGTH - 30)
        house.produce(b"small", big, b"small", topic="t.dlq")
        assert [one[:2] for one in fetched(house)] == [("0", b"small")]
        house.broker.topics.trim("t.dlq", 0, 1)
        house.run()
        assert fetched(house) == [("1", big, "", 0)]

    def test_an_answer_of_several_is_small_for_who_does_not_read_it(
        self, house: FlymqHouse
    ) -> None:
        house.produce(*[bytes(MIB)] * 5, topic="t.dlq")
        assert [one[0] for one in fetched(house)] == ["0", "1", "2"]

    def test_a_record_that_is_too_large_with_its_id_is_shown_without_its_payload(
        self, house: FlymqHouse
    ) -> None:
        """It does not keep others from being seen."""
        huge = bytes(flymq.MAX_LENGTH - 28)
        group = "g" * 100
        house.produce(huge)
        kill(house, group, 5)
        kill(house, group + "h", 0)
        (_, payload, error, _), other = fetched(house)
        assert (payload, other[1]) == (b"", b"0")
        assert error == (
            f"boom (its {len(huge)} bytes are too large for this answer; FETCH offset 5 of "
            "partition 0)"
        )


class TestReads:
    """What cannot be read keeps nothing else from being seen."""

    def damaged(self, topic: str) -> FlymqHouse:
        """Records 20 to 29 of fifty cannot be read."""
        options = WalOptions(segment_bytes=64 * 1024, free_bytes_min=0)
        house = FlymqHouse(settings=FORGETFUL, options=options)
        for first in range(0, 50, 10):
            house.produce(*[b"x%d" % (first + number) for number in range(10)], topic=topic)
        if topic == "t":
            kill(house, "g", 25)
            kill(house, "g", 35)
        house.pass_time(0.5)
        house.disk.crash()
        hit = is_records(1, 20)
        [(name, _, entry)] = [place for place in entries(house) if hit(place[2].entry)]
        rot(house, name, entry.position + 48)
        return house.again()

    def test_damage_in_the_topic_is_passed_over(self) -> None:
        house = self.damaged("t.dlq")
        shown = [int(one[0]) for one in fetched(house)]
        assert shown == [*range(20), *range(30, 50)]
        assert house.ask(flymq.ReplayDlq("t", "35"), flymq.ReplayDlq("t", 25)) == [
            DONE,
            not_found(25),
        ]
        assert values(house) == [b"x35"]

    def test_a_damaged_record_of_a_group_is_told_of(self) -> None:
        assert fetched(self.damaged("t")) == [
            ("0:25:g", b"", "boom (its record is unreadable)", 0),
            ("0:35:g", b"x35", "boom", 0),
        ]

    def test_a_read_that_fails_otherwise_may_be_tried_again(self) -> None:
        """A search that saw nothing is not taken for one that found nothing."""
        options = WalOptions(segment_bytes=64 * 1024, free_bytes_min=0)
        house = FlymqHouse(settings=FORGETFUL, options=options)
        for _ in range(5):
            house.produce(*[b"x" * 1000] * 50, topic="t.dlq")  # in segments that are sealed
        house.disk.fail("open", error=errno.EMFILE)
        text = house.only(flymq.ReplayDlq("t", "m-1")).text
        assert text.startswith("the record cannot be read now")
        assert text.endswith("try again")
        assert house.only(flymq.ReplayDlq("t", "m-1")) == not_found("m-1")


class TestNothing:
    @pytest.mark.parametrize("topic", ["none", "t", "n" * 255])
    def test_nothing_is_shown_and_purged_where_there_is_nothing(
        self, house: FlymqHouse, topic: str
    ) -> None:
        """Clients expect no error."""
        assert fetched(house, topic) == []
        replays = [flymq.ReplayDlq(topic, message) for message in ("m-1", 0)]
        answers = house.ask(flymq.PurgeDlq(topic), *replays)
        assert answers == [DONE, not_found("m-1"), not_found(0)]

    @pytest.mark.parametrize("topic", ["", "..", "../x", "a\nb"])
    def test_a_name_that_no_topic_has_is_refused(self, house: FlymqHouse, topic: str) -> None:
        answers = house.ask(flymq.FetchDlq(topic), flymq.PurgeDlq(topic))
        assert all("topic name" in answer.text for answer in answers)

    def test_too_many_to_purge_at_once_are_left(
        self, house: FlymqHouse, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And what to do is said."""
        monkeypatch.setattr("brokerd.broker.leases.group_admin.DEAD_LETTER_COST_MAX", 50)
        for offset in range(3):
            kill(house, "g", offset)
        answer = house.only(flymq.PurgeDlq("t"))
        assert answer.text.startswith("group 'g' has more dead letters than one request may purge")
        assert len(fetched(house)) == 3

    def test_a_client_that_leaves_is_searched_for_no_further(
        self, house: FlymqHouse, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dead_letters, "SEARCH_RECORDS", 5)
        house.produce(*[b"x"] * 2_000, envelope("m-1", b"hi"), topic="t.dlq")
        client = house.client()
        client.send(flymq.ReplayDlq("t", "m-1"))
        client.send_no_more()
        house.run()
        assert client.answers() == [not_found("m-1")]
        assert len(values(house)) == 5


class TestRoom:
    """A log without room lets a request wait; it is done once, when there is some."""

    def congest(self, house: FlymqHouse, where: Any, name: str) -> list[str]:
        """Let the log be full once, the second time it is asked for room; what it said."""
        admit, said = getattr(where, name), []

        def admitted(size: int) -> None:
            said.append("full" if len(said) == 1 else "room")
            if said[-1] == "full":
                raise Congested("log space is being allocated; try again")
            admit(size)

        house.broker.topics.create("before")  # a commit is under way
        setattr(where, name, admitted)
        return said

    def test_a_purge_goes_on_where_it_stopped(self, house: FlymqHouse) -> None:
        for group in ("g", "h", "i"):
            kill(house, group, 0)
        house.produce(b"x", topic="t.dlq")
        said = self.congest(house, house.broker.group_commit, "admit_events")
        assert house.only(flymq.PurgeDlq("t")) == DONE
        assert said[:4] == ["room", "full", "room", "room"]
        assert fetched(house) == []

    def test_a_replay_to_several_groups_too(self, house: FlymqHouse) -> None:
        for group in ("g", "h", "i"):
            kill(house, group, 0)
        said = self.congest(house, house.broker.group_commit, "admit_events")
        assert house.only(flymq.ReplayDlq("t", 0)) == DONE
        assert said[:4] == ["room", "full", "room", "room"]
        assert fetched(house) == []

    def test_a_replay_produces_once(self, house: FlymqHouse) -> None:
        house.produce(envelope("m-1", b"hi", original_topic="elsewhere"), topic="t.dlq")
        said = self.congest(house, house.broker.group_commit, "admit")
        assert house.only(flymq.ReplayDlq("t", "m-1")) == DONE
        assert said[:3] == ["room", "full", "room"]
        assert values(house, "elsewhere") == [b"hi"]

    def test_a_replay_that_waits_for_room_does_not_search_again(
        self, house: FlymqHouse, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Or others, who need not, would have the room each time."""
        house.produce(envelope("m-1", b"hi"), topic="t.dlq")
        looked: list[str] = []

        def envelope_of(index: int, record: Any) -> Any:
            found = dead_letter_envelope.envelope_of(index, record)
            looked.append(found.message_id)
            return found

        monkeypatch.setattr(dead_letters, "envelope_of", envelope_of)
        said = self.congest(house, house.broker.group_commit, "admit")
        said.append("room")
        assert house.only(flymq.ReplayDlq("t", "m-1")) == DONE
        assert said == ["room", "full", "room"]
        assert looked == ["m-1"]
        assert values(house) == [*(b"%d" % number for number in range(5)), b"hi"]


class TestPermissions:
    def house(self) -> GuardedHouse:
        """The topics are those of their lists alone."""
        house = GuardedHouse()
        root = house.log_in("root")
        root.ask(
            *[flymq.Produce(topic, None, b"x") for topic in ("t", "secret")],
            flymq.Produce("t.dlq", None, envelope("m-1", b"hi", original_topic="secret")),
        )
        for topic in ("t", "t.dlq", "secret"):
            house.grant(topic, "root")
        return house

    def test_they_are_for_who_may_use_the_topic(self) -> None:
        house = self.house()
        asked = flymq.FetchDlq("t"), flymq.ReplayDlq("t", "m-1"), flymq.PurgeDlq("t")
        assert house.ask(*asked) == [flymq.Failed("authentication required")] * 3
        assert house.log_in("gus").ask(*asked) == [flymq.Failed("unauthorized")] * 3
        shown, *others = house.log_in("carl").ask(*asked)
        assert len(shown.letters) == 1
        assert others == [flymq.Failed("unauthorized")] * 2
        assert house.log_in("pat").ask(*asked) == [
            flymq.Failed("unauthorized"),
            DONE,
            flymq.Failed("unauthorized"),
        ]
        assert house.log_in("root").ask(flymq.PurgeDlq("t")) == [DONE]

    def test_the_topic_for_dead_letters_has_permissions_of_its_own(self) -> None:
        house = self.house()
        house.grant("t", "gus")
        gus = house.log_in("gus")
        assert gus.ask(
            flymq.FetchDlq("t"), flymq.ReplayDlq("t", "m-1"), flymq.ReplayDlq("t", 0)
        ) == [
            flymq.DeadLetters(()),
            not_found("m-1"),
            not_found(0),
        ]

    def test_a_purge_is_refused_as_a_whole_where_that_topic_must_stay(self) -> None:
        """To who knows that it is there; who does not, purges what else there is."""
        house = self.house()
        kill(house, "g", 0)
        accounts = house.broker.accounts
        accounts.set_access_list(OPEN, AccessList("t", False, False, {"gus": ADMIN}))
        house.grant("t.dlq", "gus")
        gus = house.log_in("gus")
        assert gus.ask(flymq.PurgeDlq("t")) == [flymq.Failed("unauthorized")]
        root = house.log_in("root")
        assert len(root.ask(flymq.FetchDlq("t"))[0].letters) == 2
        house.grant("t.dlq", "root")
        assert gus.ask(flymq.PurgeDlq("t")) == [DONE]
        assert [one.message_id for one in root.ask(flymq.FetchDlq("t"))[0].letters] == ["m-1"]

    def test_a_replay_needs_to_write_where_the_record_says(self) -> None:
        """Who may write to the one topic must not get into another by it."""
        house = self.house()
        for topic in ("t", "t.dlq"):
            house.grant(topic, "gus")
        gus = house.log_in("gus")
        assert gus.ask(flymq.ReplayDlq("t", "m-1")) == [flymq.Failed("unauthorized")]
        house.grant("secret", "gus")
        assert gus.ask(flymq.ReplayDlq("t", "m-1")) == [DONE]

    def test_what_is_done_is_in_the_trail(self) -> None:
        house = self.house()
        kill(house, "g", 0)
        root = house.log_in("root")
        root.ask(flymq.ReplayDlq("t", "m-1"), flymq.ReplayDlq("t", "0:0:g"))
        kill(house, "g", 0)
        root.ask(flymq.PurgeDlq("t"))
        root.ask(
            flymq.Produce("t.dlq", None, envelope("m-2", b"hi", original_topic="new")),
            flymq.ReplayDlq("t", "m-2"),
        )
        (made,) = root.ask(flymq.QueryAudit(types=("topic.create",), resource="new"))
        assert [(one.user, one.resource) for one in made.events] == [("root", "new")]
        (found,) = root.ask(flymq.QueryAudit(types=("dlq.replay", "dlq.purge")))
        told = [(one.type, one.user, one.resource) for one in reversed(found.events)]
        assert told == [
            ("dlq.replay", "root", "t.dlq"),
            ("dlq.replay", "root", "t/g"),
            ("dlq.purge", "root", "t/g"),
            ("dlq.replay", "root", "t.dlq"),
        ]
