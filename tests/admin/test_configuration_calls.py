"""The configuration over the API."""

from __future__ import annotations

from brokerd.security import ADMIN, MONITOR
from brokerd.server.config import load
from brokerd.server.configuration_report import ConfigurationReport
from tests.admin.caller import Caller
from tests.guards import Given, GuardOf


def test_options_are_shown_with_their_sources() -> None:
    caller = Caller()
    loaded = load(assignments=["wal.durability=interval:5"])
    caller.site.api.options = ConfigurationReport(loaded, loaded.config).options
    status, answer = caller.get("/configuration")
    (found,) = [one for one in answer["options"] if one["name"] == "wal.durability"]
    assert (status, found) == (
        200,
        {
            "name": "wal.durability",
            "value": "interval:5",
            "origin": "option",
            "source": "--set wal.durability",
            "default": "fsync",
            "reloadable": False,
            "restart_needed": False,
        },
    )


def test_only_administrators_see_it() -> None:
    assert Caller(guard=GuardOf(Given("eye", MONITOR))).get("/configuration")[0] == 403
    assert Caller(guard=GuardOf(Given("root", ADMIN))).get("/configuration")[0] == 200
