"""Long work on a FlyMQ request: in slices, with reads in between, and no longer than its client."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest

from brokerd.broker.slices import SLICE_SECONDS
from brokerd.codecs import flymq
from brokerd.protocols.base.steps import SORTED_NAMES, Steps, sorted_names
from brokerd.protocols.flymq import group_admin
from brokerd.protocols.flymq.topic_list import finish
from tests.protocols.flymq_desk import FlymqHouse, SteppedHouse

LIST = flymq.ListGroups()


class Work:
    """Stands for what LIST_GROUPS does: so many steps."""

    def __init__(self, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = steps
        monkeypatch.setattr(group_admin, "_collect", lambda broker: self.steps(broker))

    def steps(self, broker: Any) -> Steps[list[flymq.Group]]:
        while self.left:
            self.left -= 1
            yield None
        return []


@pytest.fixture
def house() -> SteppedHouse:
    """Each look at the clock takes a quarter of a slice."""
    house = SteppedHouse()
    house.steps.look_seconds = SLICE_SECONDS / 4
    return house


def test_a_slice_ends_when_its_time_is_over(
    house: SteppedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(100, monkeypatch)
    client = house.client()
    client.send(LIST)
    house.run()
    lefts = [work.left]
    while house.steps.waiting:
        house.steps.step()
        lefts.append(work.left)
    assert max(before - after for before, after in pairwise(lefts)) <= 5
    house.run()
    assert client.answers() == [flymq.Groups(())]


def test_the_work_of_a_client_that_has_gone_is_given_up(
    house: SteppedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(100, monkeypatch)
    client = house.client()
    client.send(LIST)
    house.run()
    house.steps.step()
    client.disconnect()
    left = work.left
    house.finish()
    assert work.left == left


def test_what_is_sent_behind_it_waits_and_others_do_not(
    house: SteppedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    Work(100, monkeypatch)
    client, other = house.client(), house.client()
    client.send(LIST, flymq.ListTopics())
    house.run()
    assert other.ask(flymq.ListTopics()) == [flymq.Topics(())]
    assert client.answers() == []
    house.finish()
    assert client.answers() == [flymq.Groups(()), flymq.Topics(())]


def test_it_begins_when_what_the_client_wrote_is_durable() -> None:
    """So it is seen; and nothing is shown that a crash could take back."""
    house = FlymqHouse()
    client = house.client()
    client.send(flymq.Produce("t.dlq", None, b"x"), flymq.FetchDlq("t"))
    house.turn()
    assert client.answers() == []
    house.run()
    produced, fetched = client.answers()
    assert isinstance(produced, flymq.Produced)
    assert [letter.payload for letter in fetched.letters] == [b"x"]


def test_names_are_sorted_in_steps() -> None:
    """A topic may have 200,000 groups, and a read of its dead letters goes by name."""
    names = [f"{number * 7_919 % 100_003:x}" for number in range(3 * SORTED_NAMES - 1)]
    steps = sorted_names(names)
    assert [next(steps) for _ in range(3)] == [None] * 3
    with pytest.raises(StopIteration) as ended:
        next(steps)
    assert list(ended.value.value) == sorted(names)
    assert list(finish(sorted_names(()))) == []


def test_dead_letters_of_very_many_groups_are_found_in_steps() -> None:
    house = FlymqHouse()
    house.produce(b"x")
    for number in range(40):
        house.broker.groups.pause("t", f"g{number * 7 % 40:02d}")
        if number % 10 == 3:
            name = f"g{number * 7 % 40:02d}"
            leases = house.broker.leases
            leases.dead_letter(leases.group_partition("t", name, 0, 0), 0, name)
    house.run()
    with patch("brokerd.protocols.base.steps.SORTED_NAMES", 3):
        found = house.only(flymq.FetchDlq("t", 100))
        assert [one.error for one in found.letters] == ["g01", "g11", "g21", "g31"]
        assert house.only(flymq.ReplayDlq("t", 0)) == flymq.Done()
        assert house.only(flymq.FetchDlq("t", 100)).letters == ()
        for name in ("g05", "g17"):
            leases = house.broker.leases
            leases.dead_letter(leases.group_partition("t", name, 0, 0), 0, name)
        assert house.only(flymq.PurgeDlq("t")) == flymq.Done()
        assert house.only(flymq.FetchDlq("t", 100)).letters == ()
        listed = house.only(LIST)
        assert [one.group for one in listed.groups] == [f"g{number:02d}" for number in range(40)]
