"""Lists of topics for those who may not know of all of them, of whom there may be many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from brokerd.codecs import flymq
from brokerd.protocols.flymq import topic_list
from brokerd.protocols.flymq.connection import FlymqFactory, FlymqSettings
from brokerd.security.accounts import AccessList
from tests.protocols.flymq_desk import FlymqClient, Steps
from tests.protocols.flymq_guarded import GuardedHouse

COUNT = 1_000


class SteppedGuardedHouse(GuardedHouse):
    """One whose FlyMQ listener is stepped by hand, and where gus may use one topic of many."""

    def __init__(self) -> None:
        super().__init__()
        guard = self.flymq_factory.guard
        self.steps: Any = Steps()
        self.flymq_factory = FlymqFactory(self.broker, self.steps, self.limits, FlymqSettings())
        self.flymq_factory.guard = guard
        for number in range(COUNT):
            self.broker.topics.create(f"t{number:04}")
        self.grant("t0500", "gus")
        self.steps.look_seconds = 0.002

    def log_in(self, name: str) -> FlymqClient:
        """Log in at no cost, so that the login is not charged."""
        look_seconds, self.steps.look_seconds = self.steps.look_seconds, 0.0
        client = super().log_in(name)
        self.steps.look_seconds = look_seconds
        return client

    def step(self, times: int) -> None:
        for _ in range(times):
            self.steps.step()
            self.run()

    def finish(self) -> None:
        while self.steps.waiting:
            self.steps.step()
            self.run()


@pytest.fixture
def house() -> SteppedGuardedHouse:
    return SteppedGuardedHouse()


def begun(house: SteppedGuardedHouse, request: Any) -> FlymqClient:
    client = house.log_in("gus")
    client.send(request, flymq.WhoAmI())
    house.step(2)
    assert client.answers() == []
    return client


@pytest.mark.parametrize(
    ("request_", "names"),
    [
        (flymq.ListTopics(), lambda answer: list(answer.names)),
        (flymq.ClusterMetadata(), lambda answer: [one.topic for one in answer.topics]),
    ],
)
def test_others_are_served_while_a_long_list_is_made(
    house: SteppedGuardedHouse, request_: Any, names: Callable[[Any], list[str]]
) -> None:
    """What is behind it on its own connection is not."""
    client = begun(house, request_)
    assert house.log_in("gus").ask(flymq.WhoAmI())[0].user == "gus"
    house.finish()
    answer, who = client.answers()
    assert names(answer) == ["t0500"]
    assert who.user == "gus"


def test_a_list_has_no_topic_that_went_meanwhile(house: SteppedGuardedHouse) -> None:
    client = begun(house, flymq.ListTopics())
    for name in ("t0500", "t0001"):
        house.broker.topics.delete(name)
    house.finish()
    assert client.answers()[0] == flymq.Topics(())


def test_rights_that_go_while_a_list_is_made_are_gone(house: SteppedGuardedHouse) -> None:
    client = begun(house, flymq.ListTopics())
    house.update("gus", enabled=False)
    house.finish()
    assert client.answers() == [flymq.Topics(()), flymq.Identity(False)]


def test_a_role_that_comes_while_a_list_is_made_disturbs_no_later_request(
    house: SteppedGuardedHouse,
) -> None:
    client = begun(house, flymq.ListTopics())
    house.update("gus", roles=("admin",))
    house.finish()
    client.send(flymq.QueryAudit(limit=1), flymq.GetUser("carl"))
    house.finish()
    house.run()
    topics, who, _, user = client.answers()
    assert topics.names[-1] == f"t{COUNT - 1:04}", "the role counts from the next step on"
    assert (who.user, user.name) == ("gus", "carl")


def test_who_leaves_is_not_looked_for_any_longer(
    house: SteppedGuardedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = begun(house, flymq.ListTopics())
    client.disconnect()
    monkeypatch.setattr(topic_list, "STEP_TOPICS", None)
    house.finish()


def test_one_list_is_made_after_the_other_and_a_fault_is_in_nobody_s_way(
    house: SteppedGuardedHouse,
) -> None:
    """Of those who wait none has its own copy of all topics."""
    clients = [house.log_in("gus") for _ in range(4)]
    for client in clients:
        client.send(flymq.ListTopics(), flymq.ListTopics())
    house.step(2)
    clients[1].disconnect()

    def fault(permission: int, topic_name: str) -> bool:
        raise ZeroDivisionError

    clients[2].protocol.access.may = fault
    done: list[int] = []
    while house.steps.waiting:
        house.step(1)
        done += [number for number in (0, 3) if clients[number].answers()]
    assert done == [0, 3, 0, 3]
    assert not clients[2].is_open
    assert clients[3].is_open


def test_who_has_a_role_waits_for_no_slice_while_there_are_few_topics(
    house: SteppedGuardedHouse,
) -> None:
    for number in range(topic_list.AT_ONCE_TOPICS, COUNT):
        house.broker.topics.delete(f"t{number:04}")
    client = house.log_in("carl")
    client.send(flymq.ListTopics())
    house.run()
    (topics,) = client.answers()
    assert len(topics.names) == topic_list.AT_ONCE_TOPICS


def test_a_long_list_for_a_role_is_made_in_slices(house: SteppedGuardedHouse) -> None:
    client = house.log_in("carl")
    client.send(flymq.ListTopics(), flymq.ClusterMetadata())
    house.step(1)
    assert client.answers() == []
    house.finish()
    topics, cluster = client.answers()
    assert len(topics.names) == len(cluster.topics) == COUNT


def test_a_prefix_s_list_shows_its_topics(house: SteppedGuardedHouse) -> None:
    access = house.log_in("root").protocol.access
    house.broker.accounts.set_access_list(access, AccessList("t09", True, users={"gus": 1}))
    client = house.log_in("gus")
    client.send(flymq.ListTopics())
    house.finish()
    house.run()
    (answer,) = client.answers()
    assert len(answer.names) == 101
