"""Consumer groups over the API."""

from __future__ import annotations

import pytest

from brokerd.codecs.mamamia import Acquire, Produce, Settle
from tests.admin.caller import Caller
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
    assert caller.get(path) == (200, {"groups": ["g", "h", "i"]})
    assert caller.get(path, first=1, limit=1) == (200, {"groups": ["h"]})
    assert caller.get(path, limit=0)[0] == 400


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
        }
    ]
    assert group["settings"] == {
        "max_attempts": 3,
        "attempts": "failures",
        "backoff_base_seconds": 0,
        "backoff_max_seconds": 600,
        "default_duration_seconds": 30,
        "key_ordered": False,
    }


def test_a_group_that_is_not_there_is_404(caller: Caller) -> None:
    """A misspelt name must not look like a group with nothing to do."""
    status, answer = caller.get("/topics/orders/groups/unknown")
    assert (status, "no group 'unknown'" in answer["error"]) == (404, True)
    assert caller.get("/topics/unknown/groups/g")[0] == 404
