"""Consumer groups over the API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brokerd.broker import Congested
from brokerd.codecs.mamamia import Acquire, Produce, Settle
from brokerd.errors import NoSpace
from brokerd.groups import GroupSettings
from brokerd.security import READ, WRITE
from tests.admin.caller import Caller, answer_of
from tests.guards import Given, GuardOf
from tests.house import ask

GROUP = "/topics/orders/groups/g"


@pytest.fixture
def caller() -> Caller:
    """Three records of `orders`; group g settled the first and leases the second."""
    caller = Caller()
    ask(caller.house, *(Produce("orders", b"x") for _ in range(3)))
    ask(caller.house, *(Acquire("orders", "g", "c") for _ in range(2)))
    ask(caller.house, Settle("orders", "g", 0, "c", True))
    return caller


def test_groups_of_a_topic_are_listed_by_pages(caller: Caller) -> None:
    for group in ("h", "i"):
        ask(caller.house, Acquire("orders", group, "c"))
    path = "/topics/orders/groups"
    _, page = caller.get(path)
    assert [group["group"] for group in page["groups"]] == ["g", "h", "i"]
    assert page["groups"][0] == {
        "group": "g",
        "paused": False,
        "lag": 2,
        "leased": 1,
        "delayed": 0,
        "dead": 0,
        "committed": None,
    }
    assert page["next"] is None
    _, page = caller.get(path, first=1, limit=1)
    assert ([group["group"] for group in page["groups"]], page["next"]) == (["h"], 2)
    assert caller.get(path, limit=0)[0] == 400


def every_page(caller: Caller, **query: int) -> list[list[str]]:
    """Return the groups of all topics, by pages, as topic/group."""
    pages, first = [], 0
    while first is not None:
        _, page = caller.get("/groups", first=first, **query)
        pages.append([f"{group['topic']}/{group['group']}" for group in page["groups"]])
        assert page["next"] is None or page["next"] > first, "the pages do not end"
        first = page["next"]
    return pages


def test_the_groups_of_all_topics_are_listed_by_pages(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller.post("/topics", {"name": "empty"})
    caller.post("/topics", {"name": "wide", "partitions": 30})
    for group in "hij":
        caller.post(f"/topics/wide/groups/{group}/pause", {"create": True})
    names = ["orders/g", "wide/h", "wide/i", "wide/j"]
    assert every_page(caller) == [names]
    assert every_page(caller, limit=1) == [[name] for name in names]
    assert every_page(caller, limit=3) == [names[:3], names[3:]]
    monkeypatch.setattr("brokerd.admin.calls.groups.PAGE_PARTITIONS", 60)
    assert every_page(caller) == [names[:2], names[2:]]
    monkeypatch.setattr("brokerd.admin.calls.groups.EXAMINED_MAX", 1)
    assert every_page(caller) == [[name] for name in names]
    _, page = caller.get("/groups", limit=1)
    _, same = caller.get("/topics/orders/groups")
    assert page["groups"] == [same["groups"][0] | {"topic": "orders"}]


def test_groups_of_topics_that_one_may_not_read_are_left_out(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("secret", "open"):
        caller.post("/topics", {"name": topic})
        for group in "hi":
            caller.post(f"/topics/{topic}/groups/{group}/pause", {"create": True})
    guarded = Caller(caller.house, GuardOf(Given("ann", 0, {"open": READ, "secret": WRITE})))
    assert every_page(guarded) == [["open/h", "open/i"]]
    monkeypatch.setattr("brokerd.admin.calls.groups.EXAMINED_MAX", 1)
    assert [name for page in every_page(guarded) for name in page] == ["open/h", "open/i"]
    path = "/topics/{}/records/0/0"
    assert guarded.get(path.format("secret"))[0] == 403
    assert guarded.get(path.format("open"))[0] == 404
    assert guarded.get("/topics/secret/offset", time="2026-01-01T00:00:00Z")[0] == 403


def test_a_page_of_groups_with_many_partitions_is_short(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are asked for, the broker is not held up; next tells that there are more."""
    caller.post("/topics", {"name": "wide", "partitions": 30})
    for group in "ghi":
        caller.post(f"/topics/wide/groups/{group}/pause", {"create": True})
    monkeypatch.setattr("brokerd.admin.shapes.common.PAGE_PARTITIONS", 60)
    _, page = caller.get("/topics/wide/groups")
    assert ([group["group"] for group in page["groups"]], page["next"]) == (["g", "h"], 2)
    _, page = caller.get("/topics/wide/groups", first=2)
    assert ([group["group"] for group in page["groups"]], page["next"]) == (["i"], None)


def test_a_group_is_described(caller: Caller) -> None:
    """Over all partitions and by partition, with its settings."""
    status, group = caller.get(GROUP)
    assert status == 200
    told = {name: group[name] for name in ("floor", "next", "lag", "leased", "ready", "dead")}
    assert told == {"floor": 1, "next": 3, "lag": 2, "leased": 1, "ready": 1, "dead": 0}
    assert (group["paused"], group["oldest_age_seconds"]) == (False, 0)
    assert group["by_partition"] == [
        {
            "partition": 0,
            "floor": 1,
            "next": 3,
            "lag": 2,
            "leased": 1,
            "delayed": 0,
            "dead": 0,
            "committed": None,
            "lag_by_commit": False,
        }
    ]
    assert group["settings"] == {
        "max_attempts": 3,
        "attempts": "failures",
        "backoff_base_seconds": 0,
        "backoff_max_seconds": 600,
        "default_duration_seconds": 30,
        "key_ordered": False,
        "lease_doubling": False,
    }


def test_a_group_that_only_commits_is_told_of_by_its_commits(caller: Caller) -> None:
    caller.house.broker.groups.commit_offset("orders", "readers", 0, 1)
    _, page = caller.get("/topics/orders/groups")
    assert [(one["group"], one["lag"], one["committed"]) for one in page["groups"]] == [
        ("g", 2, None),
        ("readers", 2, 1),
    ]
    caller.house.broker.groups.commit_offset("orders", "readers", 0, 3)
    _, group = caller.get("/topics/orders/groups/readers")
    assert (group["lag"], group["ready"], group["oldest_age_seconds"]) == (0, 0, None)
    (group_partition,) = group["by_partition"]
    assert (
        group_partition["lag"],
        group_partition["committed"],
        group_partition["lag_by_commit"],
    ) == (0, 3, True)
    _, group = caller.get(GROUP)
    assert not group["by_partition"][0]["lag_by_commit"]


def test_a_group_that_is_not_there_is_404(caller: Caller) -> None:
    """A misspelt name must not look like a group with nothing to do."""
    status, answer = caller.get("/topics/orders/groups/unknown")
    assert (status, "no group 'unknown'" in answer["error"]) == (404, True)
    assert caller.get("/topics/unknown/groups/g")[0] == 404


def leased(caller: Caller, count: int = 10) -> list[int]:
    """Offsets that the group gets now."""
    answers = ask(caller.house, *(Acquire("orders", "g", "c") for _ in range(count)))
    return [answer.message.id for answer in answers if answer.message is not None]


def test_a_paused_group_gets_nothing_until_it_is_resumed(caller: Caller) -> None:
    """Across a restart, too."""
    status, group = caller.post(f"{GROUP}/pause")
    assert (status, group["paused"]) == (200, True)
    assert leased(caller) == []
    caller = Caller(caller.house.crash())
    assert caller.get(GROUP)[1]["paused"] is True
    assert leased(caller) == []
    assert caller.post(f"{GROUP}/resume")[1]["paused"] is False
    assert leased(caller) == [2]


@pytest.mark.parametrize(
    ("to", "floor", "gets"),
    [("start", 0, [0, 1, 2]), ("end", 3, []), (1, 1, [1, 2]), (99, 3, [])],
)
def test_a_group_goes_on_where_it_is_sent(
    caller: Caller, to: str | int, floor: int, gets: list[int]
) -> None:
    status, group = caller.post(f"{GROUP}/seek", {"to": to})
    assert (status, group["floor"], group["leased"]) == (200, floor, 0)
    assert leased(caller) == gets


def test_a_group_goes_on_at_a_time() -> None:
    """At the first record that came then or later, partition by partition."""
    caller = Caller()
    caller.post("/topics", {"name": "orders", "partitions": 2})
    times = []
    for number in range(3):
        for partition in range(2):
            record = {"value": number, "partition": partition}
            caller.post("/topics/orders/records", {"records": [record]})
        _, page = caller.get("/topics/orders/records", offset=number)
        times.append(page["records"][0]["append_time"])
        caller.house.pass_time(5, 1)
    status, group = caller.post(f"{GROUP}/seek", {"to_time": times[1], "create": True})
    assert status == 200
    assert [group_partition["floor"] for group_partition in group["by_partition"]] == [1, 1]
    _, group = caller.post(f"{GROUP}/seek", {"to_time": "2100-01-01T00:00:00Z", "partition": 1})
    assert [group_partition["floor"] for group_partition in group["by_partition"]] == [1, 3]
    _, group = caller.post(f"{GROUP}/seek", {"to_time": "1970-01-01T00:00:00+05:00"})
    assert [group_partition["floor"] for group_partition in group["by_partition"]] == [0, 0]


@pytest.mark.parametrize("shortage", [NoSpace("the disk is full"), Congested("in a moment")])
def test_a_seek_to_a_time_is_of_all_partitions_or_of_none(
    shortage: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the log may run short of room; and it is made once, after any wait."""
    caller = Caller()
    caller.post("/topics", {"name": "orders", "partitions": 3})
    records = [{"value": 0, "partition": partition} for partition in range(3)]
    caller.post("/topics/orders/records", {"records": records})
    group_commit = caller.house.broker.group_commit
    admit, admitted = group_commit.admit_events, []

    def admit_once(size: int) -> None:
        admitted.append(size)
        if len(admitted) == 2:
            raise shortage
        admit(size)

    monkeypatch.setattr(group_commit, "admit_events", admit_once)
    status, group = caller.post(
        f"{GROUP}/seek", {"to_time": "2100-01-01T00:00:00Z", "create": True}
    )
    assert (status, len(admitted)) == (200, 1)
    assert [group_partition["floor"] for group_partition in group["by_partition"]] == [1, 1, 1]


def test_a_seek_to_a_time_is_not_made_in_another_topic_of_that_name(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets of a topic that was deleted while the call waited for room mean nothing."""
    broker = caller.house.broker

    def refuse(size: int) -> None:
        raise Congested("in a moment")

    def make_anew() -> None:
        broker.topics.delete("orders")
        broker.topics.create("orders")

    broker.group_commit.when_uncongested(make_anew)
    with monkeypatch.context() as patch:
        patch.setattr(broker.group_commit, "admit_events", refuse)
        body = json.dumps({"to_time": "2100-01-01T00:00:00Z", "create": True}).encode()
        _, wire = caller.send("POST", f"{GROUP}/seek", body)
        assert caller.house.readers.step()
    broker.groups.pause("orders", "g")  # so that there is a commit, after which those that wait try
    caller.house.run()
    assert answer_of(wire)[0] == 404
    assert not broker.topics.existing("orders").groups


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"to": 1, "to_time": "2026-01-01T00:00:00Z"}, 400),
        ({"to": "middle"}, 400),
        ({"to": -1}, 400),
        ({"to_time": "2026-01-01T00:00:00"}, 400),
        ({"to": 1, "partition": 5}, 404),
        ({"to_time": "2026-01-01T00:00:00Z", "partition": 5}, 404),
    ],
)
def test_a_seek_that_makes_no_sense_is_refused(
    caller: Caller, body: dict[str, object], status: int
) -> None:
    assert caller.post(f"{GROUP}/seek", body)[0] == status
    assert caller.get(GROUP)[1]["floor"] == 1


def test_settings_change_one_by_one(caller: Caller) -> None:
    """What is left out stays, null goes back to the broker's configuration."""
    change = {"max_attempts": 7, "backoff_base_seconds": 0.25, "key_ordered": True}
    status, group = caller.call("PATCH", f"{GROUP}/settings", change)
    assert status == 200
    assert {name: group["settings"][name] for name in change} == change
    assert group["settings"]["default_duration_seconds"] == 30
    _, group = caller.call("PATCH", f"{GROUP}/settings", {"max_attempts": None})
    assert group["settings"]["max_attempts"] == 3
    assert group["settings"]["backoff_base_seconds"] == 0.25
    assert Caller(caller.house.crash()).get(GROUP)[1]["settings"] == group["settings"]


@pytest.mark.parametrize(
    "change", [{"max_attempts": 0}, {"attempts": "both"}, {"key_ordered": 1}, {"backoff": 5}]
)
def test_settings_that_make_no_sense_are_refused(caller: Caller, change: dict[str, object]) -> None:
    assert caller.call("PATCH", f"{GROUP}/settings", change)[0] == 400


def test_a_back_off_above_its_maximum_is_refused(caller: Caller) -> None:
    """The values that are not in the request count, too."""
    path = f"{GROUP}/settings"
    status, answer = caller.call("PATCH", path, {"backoff_base_seconds": 601})
    assert status == 400
    assert "(601 s) is longer than the longest back-off (600 s)" in answer["error"]
    change = {"backoff_base_seconds": 2, "backoff_max_seconds": 2}
    assert caller.call("PATCH", path, change)[0] == 200
    assert caller.call("PATCH", path, {"backoff_max_seconds": 1.5})[0] == 400
    new = {**change, "backoff_base_seconds": 3, "create": True}
    assert caller.call("PATCH", f"{GROUP}2/settings", new)[0] == 400
    assert caller.get(f"{GROUP}2")[0] == 404
    settings = caller.get(GROUP)[1]["settings"]
    assert {name: settings[name] for name in change} == change


def test_a_back_off_of_an_earlier_version_does_not_block_other_changes(caller: Caller) -> None:
    old = GroupSettings(backoff_base_us=20_000_000, backoff_max_us=10_000_000)
    for group_partition in caller.house.broker.topics.existing("orders").groups["g"].used():
        group_partition.store.configure(old)
    status, group = caller.call("PATCH", f"{GROUP}/settings", {"max_attempts": 9})
    assert (status, group["settings"]["max_attempts"]) == (200, 9)
    assert group["settings"]["backoff_base_seconds"] == 20
    assert caller.call("PATCH", f"{GROUP}/settings", {"backoff_base_seconds": 19})[0] == 400


def test_a_group_is_deleted(caller: Caller) -> None:
    """One of its name begins anew."""
    assert caller.call("DELETE", GROUP) == (200, {"deleted": "g"})
    assert caller.get(GROUP)[0] == 404
    assert caller.call("DELETE", GROUP)[0] == 404
    assert leased(caller) == [0, 1, 2]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "pause", {}),
        ("POST", "resume", {}),
        ("POST", "seek", {"to": 2}),
        ("PATCH", "settings", {"max_attempts": 7}),
    ],
)
def test_a_change_that_was_made_is_no_404(
    caller: Caller, method: str, path: str, body: dict[str, object]
) -> None:
    """Though the group is deleted before the change is durable."""
    if path == "resume":
        caller.post(f"{GROUP}/pause")
    _, changed = caller.send(method, f"{GROUP}/{path}", json.dumps(body).encode())
    _, deleted = caller.send("DELETE", GROUP)
    assert not changed.value()
    caller.house.run()
    status, group = answer_of(changed)
    assert (status, group["group"]) == (200, "g")
    assert answer_of(deleted) == (200, {"deleted": "g"})


def test_a_seek_to_a_time_that_was_made_is_no_404(caller: Caller) -> None:
    body = b'{"to_time": "2100-01-01T00:00:00Z"}'
    _, sought = caller.send("POST", f"{GROUP}/seek", body)
    assert caller.house.readers.step()
    _, deleted = caller.send("DELETE", GROUP)
    caller.house.run()
    status, group = answer_of(sought)
    assert (status, group.get("floor")) == (200, 3)
    assert answer_of(deleted)[0] == 200


def test_each_change_tells_what_it_did_itself(caller: Caller) -> None:
    """Not what others did before it was durable."""
    wires = [
        caller.send(method, f"{GROUP}/{path}", body)[1]
        for method, path, body in (
            ("POST", "seek", b'{"to": 2}'),
            ("POST", "seek", b'{"to": 0}'),
            ("POST", "pause", b""),
            ("POST", "resume", b""),
            ("PATCH", "settings", b'{"max_attempts": 7}'),
            ("PATCH", "settings", b'{"max_attempts": 8}'),
        )
    ]
    caller.house.run()
    told = [answer_of(wire)[1] for wire in wires]
    assert [group["by_partition"][0]["floor"] for group in told] == [2, 0, 0, 0, 0, 0]
    assert [group["paused"] for group in told] == [False, False, True, False, False, False]
    assert [group["settings"]["max_attempts"] for group in told] == [3, 3, 3, 3, 7, 8]


def test_nothing_can_be_done_to_groups_of_no_topic(caller: Caller) -> None:
    for verb in ("pause", "resume", "seek"):
        body = {"to": 0} if verb == "seek" else None
        assert caller.post(f"/topics/none/groups/g/{verb}", body)[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "pause", {}),
        ("POST", "seek", {"to": "end"}),
        ("POST", "seek", {"to_time": "2100-01-01T00:00:00Z"}),
        ("PATCH", "settings", {"max_attempts": 5}),
    ],
)
def test_a_group_is_made_only_when_that_is_asked(
    caller: Caller, method: str, path: str, body: dict[str, object]
) -> None:
    """A misspelt name must not look as if the change was made."""
    place = f"/topics/orders/groups/gg/{path}"
    status, answer = caller.call(method, place, body)
    assert (status, answer["retryable"]) == (404, False)
    assert "no group 'gg' (is 'g' meant?); a group begins with" in answer["error"]
    assert len(caller.get("/topics/orders/groups")[1]["groups"]) == 1
    status, answer = caller.call(method, place, body | {"create": True})
    assert (status, answer["group"]) == (200, "gg")


@pytest.mark.parametrize("to", [{"to": "start"}, {"to": "end"}, {"to": 1}, {"to": 99}])
def test_a_preview_names_the_floors_that_the_seek_sets(caller: Caller, to: dict[str, Any]) -> None:
    """It changes nothing; a seek beyond an end stops there."""
    before = caller.get(GROUP)
    status, preview = caller.get(f"{GROUP}/seek", **to)
    assert status == 200 and caller.get(GROUP) == before
    (change,) = preview["by_partition"]
    assert (change["floor"], change["leased"], change["dead"], change["lag"]) == (1, 1, 0, 2)
    _, after = caller.post(f"{GROUP}/seek", to)
    assert (after["floor"], after["lag"]) == (change["new_floor"], change["new_lag"])
    assert (preview["lag"], preview["new_lag"]) == (2, after["lag"])


def test_a_preview_of_a_time_and_of_one_partition(caller: Caller) -> None:
    caller.post("/topics", {"name": "many", "partitions": 3})
    caller.post("/topics/many/groups/h/pause", {"create": True})
    path, early = "/topics/many/groups/h/seek", "1990-01-01T00:00:00Z"
    assert [one["partition"] for one in caller.get(path, to_time=early)[1]["by_partition"]] == [
        0,
        1,
        2,
    ]
    _, preview = caller.get(path, to="end", partition=2)
    assert (preview["partitions"], preview["by_partition"][0]["partition"]) == (1, 2)
    for query, status in [
        ({}, 400),
        ({"to": "end", "to_time": early}, 400),
        ({"to": "middle"}, 400),
        ({"to": "end", "partition": 3}, 404),
    ]:
        assert caller.get(path, **query)[0] == status
    assert caller.get("/topics/many/groups/none/seek", to="end")[0] == 404
