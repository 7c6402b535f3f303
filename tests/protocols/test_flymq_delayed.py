"""FlyMQ's records that come later, or live for a time, as a client and those who read see them."""

from __future__ import annotations

import pytest

from brokerd.broker import BrokerSettings
from brokerd.broker.model.topics import TopicSettings
from brokerd.codecs import flymq
from brokerd.protocols.flymq.connection import FlymqSettings
from tests.protocols.flymq_desk import FlymqHouse
from tests.protocols.flymq_guarded import GuardedHouse

DAY_MS = 86_400_000
NOT_IN = flymq.Failed("authentication required")
MAY_NOT = flymq.Failed("unauthorized")


@pytest.fixture
def house() -> FlymqHouse:
    return FlymqHouse()


def values(house: FlymqHouse, topic: str = "t", partition: int = 0) -> list[bytes]:
    return [value for _, _, value in house.records(topic, partition, 0, 100)]


def later(house: FlymqHouse, value: bytes = b"x", delay_ms: int = 5_000, topic: str = "t") -> int:
    """Schedule a record; its number."""
    answer = house.only(flymq.ProduceDelayed(topic, value, delay_ms))
    assert isinstance(answer, flymq.Produced), answer
    return answer.offset


def not_found(message: int | str) -> flymq.Failed:
    return flymq.Failed(f"message not found: {message}")


class TestDelays:
    def test_a_record_is_there_when_its_delay_is_over_and_not_before(
        self, house: FlymqHouse
    ) -> None:
        answer = house.only(flymq.ProduceDelayed("t", b"hi", 5_000))
        now_ms = round(house.wall_seconds * 1000)
        assert answer == flymq.Produced("t", 0, answer.offset, now_ms, -1, 2)
        house.pass_time(4.9)
        assert values(house) == []
        house.pass_time(0.2)
        assert values(house) == [b"hi"]
        assert house.only(flymq.Consume("t", 0, 0)) == flymq.Consumed(None, b"hi")

    def test_it_goes_to_the_partition_whose_turn_it_is(self) -> None:
        house = FlymqHouse(FlymqSettings(partitions=2))
        later(house, b"later")
        house.produce(b"now")
        house.pass_time(5.1)
        assert (values(house), values(house, partition=1)) == ([b"now"], [b"later"])

    @pytest.mark.parametrize("delay_ms", [0, -1, -(1 << 63)])
    def test_no_delay_is_due_at_once(self, house: FlymqHouse, delay_ms: int) -> None:
        number = later(house, b"x", delay_ms)
        house.pass_time(0.01)
        assert values(house) == [b"x"]
        assert house.only(flymq.CancelDelayed(number, "t")) == not_found(number)

    def test_a_delay_of_a_day_is_the_longest(self, house: FlymqHouse) -> None:
        later(house, delay_ms=DAY_MS)
        longer = house.only(flymq.ProduceDelayed("new", b"x", DAY_MS + 1))
        assert longer == flymq.Failed("delay 86400001 ms exceeds maximum allowed delay 86400000 ms")
        assert house.broker.topics.find("new") is None

    def test_the_longest_delay_is_as_configured(self) -> None:
        house = FlymqHouse(FlymqSettings(delay_max_seconds=10))
        assert later(house, delay_ms=10_000) > 0
        assert isinstance(house.only(flymq.ProduceDelayed("t", b"x", 10_001)), flymq.Failed)

    def test_it_outlasts_a_loss_of_power_and_comes_once(self, house: FlymqHouse) -> None:
        later(house, b"a", 2_000)
        later(house, b"b", 60_000)
        house.pass_time(3.0)
        house.disk.crash()
        house = house.again()
        house.pass_time(70.0, step=1.0)
        assert values(house) == [b"a", b"b"]
        house.disk.crash()
        house = house.again()
        house.pass_time(70.0, step=1.0)
        assert values(house) == [b"a", b"b"]

    def test_the_topics_own_time_to_live_counts_from_when_it_is_due(
        self, house: FlymqHouse
    ) -> None:
        house.broker.topics.create("t", 1, TopicSettings(ttl_us=3_000_000))
        later(house)
        house.pass_time(7.0)
        assert values(house) == [b"x"]
        house.pass_time(2.0)
        assert values(house) == []

    def test_what_is_sent_behind_it_is_answered_in_order(self, house: FlymqHouse) -> None:
        first, second, third, fourth = house.ask(
            flymq.Produce("t", None, b"1"),
            flymq.ProduceDelayed("t", b"22", 1_000),
            flymq.Produce("t", b"k", b"333"),
            flymq.ProduceWithTtl("t", b"4444", 1_000),
        )
        sizes = [answer.value_size for answer in (first, second, third, fourth)]
        assert sizes == [1, 2, 3, 4]
        assert (first.offset, third.offset, fourth.offset) == (0, 1, 2)

    def test_names_and_sizes_are_those_of_produce(self, house: FlymqHouse) -> None:
        for name in ("", "..", "__brokerd.x", "a\nb"):
            assert isinstance(house.only(flymq.ProduceDelayed(name, b"x", 1)), flymq.Failed)
            assert isinstance(house.only(flymq.ProduceWithTtl(name, b"x", 1)), flymq.Failed)
        value = bytes(33_554_405)
        for request in (flymq.ProduceDelayed("t", value, 1), flymq.ProduceWithTtl("t", value, 1)):
            answer = house.only(request)
            assert isinstance(answer, flymq.Failed), answer
            assert "33554404 is the limit" in answer.text


class TestCancelling:
    @pytest.mark.parametrize(
        "asked",
        [
            lambda number: flymq.CancelDelayed(number, "t"),
            lambda number: flymq.CancelDelayed(str(number), "t"),
            lambda number: flymq.CancelDelayed(f"delayed-{number}", "t"),
            lambda number: flymq.CancelDelayed(str(number)),
            lambda number: flymq.CancelDelayed(f"delayed-{number}"),
            lambda number: flymq.CancelDelayed(number & 0xFFFFFFFF, "t"),
            lambda number: flymq.CancelDelayed(f"{number & 0xFFFFFFFF:06d}", "t"),
        ],
    )
    def test_what_is_cancelled_never_comes(self, house: FlymqHouse, asked: object) -> None:
        later(house, b"stays")
        number = later(house, b"goes")
        assert callable(asked)
        assert house.only(asked(number)) == flymq.Done()
        house.disk.crash()
        house = house.again()
        house.pass_time(6.0)
        assert values(house) == [b"stays"]

    def test_what_does_not_wait_any_more_is_not_found(self, house: FlymqHouse) -> None:
        number = later(house, delay_ms=1_000)
        gone = later(house)
        assert house.only(flymq.CancelDelayed(gone, "t")) == flymq.Done()
        house.pass_time(1.1)
        for one in (number, gone, gone + 1, 0):
            assert house.only(flymq.CancelDelayed(one, "t")) == not_found(one)
            assert house.only(flymq.CancelDelayed(f"delayed-{one}")) == not_found(f"delayed-{one}")
        assert house.only(flymq.CancelDelayed(0, "nowhere")) == not_found(0)

    def test_a_number_means_a_record_of_one_topic_alone(self, house: FlymqHouse) -> None:
        """One that was produced does not cancel another topic's, nor that of a new topic of the
        same name."""
        first = later(house, b"a", 1_000, "a")
        second = later(house, b"b", 5_000, "b")
        house.pass_time(1.1)
        assert house.only(flymq.CancelDelayed(first, "b")) == not_found(first)
        assert house.only(flymq.CancelDelayed(str(first))) == not_found(str(first))
        house.ask(flymq.DeleteTopic("a"))
        later(house, b"anew", 5_000, "a")
        assert house.only(flymq.CancelDelayed(first, "a")) == not_found(first)
        house.pass_time(5.2)
        assert (values(house, "a"), values(house, "b")) == ([b"anew"], [b"b"])
        assert second > first

    @pytest.mark.parametrize("text", ["", "x", "delayed-", "-1", "1 ", "٣", "9" * 21, "9" * 20])
    def test_a_text_that_is_no_number_is_not_found(self, house: FlymqHouse, text: str) -> None:
        later(house)
        assert house.ask(flymq.CancelDelayed(text, "t"), flymq.CancelDelayed(text)) == [
            not_found(text),
            not_found(text),
        ]


class TestTtl:
    def test_a_record_is_gone_when_its_time_is_over_and_leaves_a_gap(
        self, house: FlymqHouse
    ) -> None:
        answer = house.only(flymq.ProduceWithTtl("t", b"short", 500))
        assert answer._replace(timestamp_ms=0) == flymq.Produced("t", 0, 0, 0, -1, 5)
        house.produce(b"long")
        assert values(house) == [b"short", b"long"]
        house.pass_time(0.6)
        assert house.records("t", 0, 0, 10) == [(1, None, b"long")]
        assert isinstance(house.only(flymq.Consume("t", 0, 0)), flymq.Failed)
        house.produce(b"next")
        assert house.records("t", 0, 2, 10) == [(2, None, b"next")]

    def test_its_partition_is_told_as_it_is(self) -> None:
        house = FlymqHouse(FlymqSettings(partitions=3))
        answers = house.ask(*[flymq.ProduceWithTtl("t", b"%d" % number, 9) for number in range(4)])
        assert [(one.partition, one.offset) for one in answers] == [(0, 0), (1, 0), (2, 0), (0, 1)]

    @pytest.mark.parametrize("ttl_ms", [0, -1, -(1 << 63)])
    def test_none_is_for_ever_whatever_the_topic_says(self, house: FlymqHouse, ttl_ms: int) -> None:
        house.broker.topics.create("t", 1, TopicSettings(ttl_us=1_000_000))
        house.ask(flymq.ProduceWithTtl("t", b"stays", ttl_ms), flymq.Produce("t", None, b"goes"))
        house.pass_time(3.0)
        assert values(house) == [b"stays"]

    def test_more_than_a_hundred_years_is_refused(self, house: FlymqHouse) -> None:
        answer = house.only(flymq.ProduceWithTtl("t", b"x", (1 << 63) - 1))
        assert isinstance(answer, flymq.Failed)
        assert "a time to live is a microsecond up to" in answer.text

    def test_it_waits_for_room_in_the_log_as_any(self) -> None:
        house = FlymqHouse(settings=BrokerSettings(max_uncommitted_bytes=64 << 10))
        client = house.client()
        value = bytes(60 << 10)
        client.send(*[flymq.ProduceWithTtl("t", value, 10_000) for _ in range(4)])
        client.send(*[flymq.ProduceDelayed("t", value, 10_000) for _ in range(4)])
        house.run()
        answers = client.answers()
        assert [type(answer) for answer in answers] == [flymq.Produced] * 8
        assert [answer.offset for answer in answers[:4]] == [0, 1, 2, 3]


class TestPermissions:
    def test_who_may_write_may_delay_and_cancel(self) -> None:
        house = GuardedHouse()
        pat, carl = house.log_in("pat"), house.log_in("carl")
        (answer,) = pat.ask(flymq.ProduceDelayed("t", b"x", 5_000))
        number = answer.offset
        asked = [
            flymq.ProduceDelayed("t", b"x", 5_000),
            flymq.ProduceWithTtl("t", b"x", 5_000),
            flymq.CancelDelayed(number, "t"),
            flymq.CancelDelayed(number, "nowhere"),
        ]
        assert carl.ask(*asked) == [MAY_NOT] * 4
        assert house.client().ask(*asked) == [NOT_IN] * 4
        assert pat.ask(flymq.CancelDelayed(number, "t")) == [flymq.Done()]

    def test_a_number_alone_tells_nothing_to_who_may_not_write(self) -> None:
        house = GuardedHouse()
        pat, carl = house.log_in("pat"), house.log_in("carl")
        (answer,) = pat.ask(flymq.ProduceDelayed("t", b"x", 5_000))
        alone = flymq.CancelDelayed(str(answer.offset))
        assert carl.ask(alone) == [not_found(answer.offset)]
        assert house.client().ask(alone) == [NOT_IN]
        assert pat.ask(alone) == [flymq.Done()]
