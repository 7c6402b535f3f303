"""Long work on a FlyMQ request: in slices, with reads in between, and no longer than its client."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from brokerd.broker.slices import SLICE_SECONDS
from brokerd.codecs import flymq
from brokerd.protocols.base.steps import Steps
from brokerd.protocols.flymq import group_admin
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
