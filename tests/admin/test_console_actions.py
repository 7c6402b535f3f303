"""A real browser changes a broker: each button, its dialog, and the refusals of the API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from urllib.error import HTTPError

import pytest

from brokerd.client.mamamia import BatchSettle, MamamiaClient
from tests.admin.browser import CHROMIUM, Console, console_without_retries, leave_dead_letters

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="there is no Chromium here (Debian: apt-get install chromium)"
    ),
]

GROUP = "topics/orders/groups/workers"


class Workshop(NamedTuple):
    """A console, and a client of its broker."""

    console: Console
    client: MamamiaClient


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    """A topic with six records; its group has two dead letters and a lease."""
    with console_without_retries(tmp_path_factory.mktemp("actions")) as (console, client):
        records = [{"value": f"order {number}"} for number in range(6)]
        console.post("topics/orders/records", {"records": records})
        leave_dead_letters(client)
        client.acquire("orders", "workers", "w2", 3_600)
        yield Workshop(console, client)


def test_a_topic_is_created_changed_and_deleted(workshop: Workshop) -> None:
    """A mistake shows in the dialog as the API tells it, and nothing is lost of what was typed."""
    console = workshop.console
    page = console.visit("#/topics")
    console.choose("Create a topic …")
    console.fill("Name", "orders")
    console.fill("Retention by age, in seconds", "3600")
    console.press("Create")
    refusal = page.get_by_role("dialog").get_by_role("alert")
    refusal.wait_for()
    assert "there is a topic 'orders' already" in refusal.inner_text()
    console.fill("Name", "a/b ü")
    console.press("Create")
    assert console.notice() == "Topic a/b ü is created."
    assert console.get("topics/a%2Fb%20%C3%BC")["settings"]["retention_seconds"] == 3600
    page.get_by_role("link", name="a/b ü").click()
    console.choose("Change settings …")
    console.fill("Retention by age, in seconds", "")
    page.get_by_role("dialog").get_by_label("Keep only").select_option("yes")
    console.press("Change")
    console.notice()
    settings = console.get("topics/a%2Fb%20%C3%BC")["settings"]
    assert (settings["retention_seconds"], settings["compact"]) == (None, True)
    console.choose("delete topic a/b ü")
    confirm = page.get_by_role("dialog").get_by_role("button", name="Delete the topic")
    assert confirm.is_disabled()
    console.fill("Type a/b ü to confirm", "a/b u")
    assert confirm.is_disabled()
    console.fill("Type a/b ü to confirm", "a/b ü")
    console.press("Delete the topic")
    assert console.notice() == "Topic a/b ü is deleted."
    assert page.url.endswith("#/topics")
    with pytest.raises(HTTPError, match="404"):
        console.get("topics/a%2Fb%20%C3%BC")


def test_a_dialog_needs_no_mouse(workshop: Workshop) -> None:
    """Tab stays inside, Escape changes nothing, Enter sends; then the view has the focus."""
    console = workshop.console
    page = console.visit("#/topics")
    page.get_by_role("button", name="Create a topic …").focus()
    page.keyboard.press("Enter")
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    focused = "document.activeElement.textContent"
    assert page.evaluate(focused) == "Create a topic …"
    page.keyboard.press("Enter")
    for _ in range(20):
        page.keyboard.press("Tab")
        assert page.evaluate(
            "document.activeElement === document.body"
            " || document.querySelector('dialog').contains(document.activeElement)"
        )
    page.get_by_role("dialog").get_by_label("Name", exact=True).focus()
    page.keyboard.type("typed")
    page.keyboard.press("Enter")
    assert console.notice() == "Topic typed is created."
    assert page.evaluate("document.activeElement.id") == "view"
    console.call("DELETE", "topics/typed", {})


def test_a_group_is_paused_and_resumed(workshop: Workshop) -> None:
    console = workshop.console
    console.visit(f"#/{GROUP}")
    console.choose("Pause …")
    console.press("Pause")
    assert console.notice() == "Group workers is paused."
    assert console.get(GROUP)["paused"]
    console.choose("Resume …")
    console.press("Resume")
    assert console.notice() == "Group workers is resumed."
    assert not console.get(GROUP)["paused"]


def test_dead_letters_are_chosen_by_reason(workshop: Workshop) -> None:
    """The reasons that show are suggestions; a purge names the group."""
    console = workshop.console
    page = console.visit(f"#/{GROUP}")
    letters = page.get_by_role("region", name="dead letters", exact=True)
    letters.get_by_text("no stock").wait_for()
    console.choose("Replay …")
    offered = page.get_by_role("dialog").locator("option")
    assert sorted(one.get_attribute("value") for one in offered.all()) == ["no address", "no stock"]
    console.fill("Reason", "no stock")
    console.press("Replay")
    assert console.notice() == "1 dead letters are replayed."
    console.choose("Purge …")
    console.fill("Reason", "no stock")
    console.fill("Type workers to confirm", "workers")
    console.press("Purge")
    assert console.notice() == "0 dead letters are purged."
    console.choose("Purge …")
    console.fill("Type workers to confirm", "workers")
    console.press("Purge")
    assert console.notice() == "1 dead letters are purged."
    assert console.get(GROUP)["dead"] == 0


def test_a_lease_is_ended(workshop: Workshop) -> None:
    console = workshop.console
    page = console.visit(f"#/{GROUP}")
    page.get_by_text("w2").wait_for()
    console.choose("end the lease of partition 0 offset 2")
    console.press("End the lease")
    assert "is ended" in console.notice()
    assert console.get(f"{GROUP}/leases")["leases"] == []


def test_a_seek_shows_first_what_it_changes(workshop: Workshop) -> None:
    """Another target needs another preview."""
    console = workshop.console
    page = console.visit(f"#/{GROUP}")
    lag = console.get(GROUP)["lag"]
    console.choose("Seek …")
    seek = page.get_by_role("dialog").get_by_role("button", name="Seek", exact=True)
    assert seek.is_disabled()
    page.get_by_role("dialog").get_by_label("To", exact=True).select_option("offset")
    console.press("Preview")
    page.get_by_role("alert").get_by_text("give the offset").wait_for()
    console.fill("Offset", "4")
    console.press("Preview")
    page.get_by_text(f"Lag {lag} becomes 2. 0 leases end.").wait_for()
    assert seek.is_enabled()
    console.fill("Offset", "5")
    assert seek.is_disabled()
    console.press("Preview")
    page.get_by_text(f"Lag {lag} becomes 1.").wait_for()
    console.press("Seek")
    assert console.notice() == "Group workers is moved."
    assert console.get(GROUP)["floor"] == 5
    console.choose("Seek …")
    page.get_by_role("dialog").get_by_label("To", exact=True).select_option("time")
    console.fill("Time (UTC)", "2020-01-01T00:00:00")
    console.press("Preview")
    console.press("Seek")
    console.notice()
    assert console.get(GROUP)["floor"] == 0


def test_a_group_is_removed(workshop: Workshop) -> None:
    console = workshop.console
    console.post("topics/orders/groups/idle/pause", {"create": True})
    page = console.visit("#/topics/orders/groups/idle")
    console.choose("Remove …")
    console.fill("Type idle to confirm", "idle")
    console.press("Remove the group")
    assert console.notice() == "Group idle is removed."
    assert page.url.endswith("#/topics/orders")
    assert [one["group"] for one in console.get("topics/orders/groups")["groups"]] == ["workers"]


def test_a_delayed_message_is_cancelled(workshop: Workshop) -> None:
    console = workshop.console
    delayed = [{"value": "later", "delay_seconds": 3_600}]
    (made,) = console.post("topics/orders/records", {"records": delayed})["records"]
    page = console.visit("#/topics/orders")
    page.get_by_role("cell", name="later", exact=True).wait_for()
    console.choose(f"cancel delayed message {made['schedule_id']}")
    console.press("Cancel the message")
    assert "is cancelled" in console.notice()
    assert console.get("topics/orders/scheduled")["scheduled"] == []


def test_a_connection_is_closed(workshop: Workshop) -> None:
    """Closing it again is a refusal, which the dialog shows."""
    console = workshop.console
    console.visit("#/connections")
    (connection,) = console.get("connections")["connections"]
    console.choose(f"close connection {connection['id']}")
    console.call("DELETE", f"connections/{connection['id']}", {})
    console.press("Close the connection")
    refusal = console.page.get_by_role("dialog").get_by_role("alert")
    refusal.wait_for()
    assert f"there is no connection {connection['id']}" in refusal.inner_text()
    console.press("Cancel")
    workshop.client.group_info("orders", "workers")
    console.visit("#/connections")
    (connection,) = console.get("connections")["connections"]
    console.choose(f"close connection {connection['id']}")
    console.press("Close the connection")
    assert "is closed" in console.notice()
    assert console.get("connections")["connections"] == []


def test_leases_and_dead_letters_come_in_pages(workshop: Workshop) -> None:
    """A page has 100; the buttons lead forth and back."""
    console, client = workshop
    records = [{"value": number} for number in range(250)]
    console.post("topics/paged/records", {"records": records})
    client.close()  # another test closed the connection; the next call connects anew
    leased = client.acquire_batch("paged", "workers", "w", 250, 3_600)
    page = console.visit("#/topics/paged/groups/workers")

    def check(label: str) -> None:
        rows = page.get_by_role("region", name=label, exact=True).locator("tbody tr")
        for name, first in [("next", 100), ("next", 200), ("first", 0)]:
            page.get_by_role("button", name=f"{name} page of {label}").click()
            rows.first.get_by_role("link", name=str(first), exact=True).wait_for()
            assert rows.count() == (50 if first == 200 else 100)
            assert page.get_by_role("button", name=f"next page of {label}").is_visible() == (
                first != 200
            )

    check("leases")
    items = [BatchSettle(one.id, False, reason="broken", dead=True) for one in leased]
    client.settle_batch("paged", "workers", "w", items)
    console.visit("#/topics/paged/groups/workers")
    check("dead letters")


@pytest.mark.parametrize(
    ("name", "path"),
    [("<i>loader", "%3Ci%3Eloader/position"), ("..", "-/position?path.stream=..")],
    ids=["markup", "dots"],
)
def test_a_named_stream_is_shown_and_dropped(workshop: Workshop, name: str, path: str) -> None:
    """Also one whose name a browser would drop from a path."""
    console, topic = workshop.console, f"streamed-{len(name)}"
    console.post(f"topics/{topic}/records", {"records": [{"value": "a"}, {"value": "b"}]})
    topic_id = str(console.get(f"topics/{topic}")["topic_id"])
    position = {"log_id": console.get("archive")["log_id"], "lsn": 0, "topics": [topic]}
    report = {**position, "offsets": {topic_id: [1]}, "holds": True}
    console.call("PUT", f"streams/{path}", report)
    console.visit("#/streams")
    (row,) = (
        console.page.get_by_role("region", name="streams", exact=True).locator("tbody tr").all()
    )
    assert row.locator("td").all_inner_texts()[4] == "yes"
    row.get_by_role("link").click()
    console.page.get_by_role("heading", name=f"Stream {name}").wait_for()
    cells = (
        console.page.get_by_role("region", name="positions", exact=True)
        .locator("td")
        .all_inner_texts()
    )
    assert cells == [topic, "0", "1", "2", "1"]
    console.choose("Drop the stream …")
    console.press("Drop the stream")
    assert console.notice() == f"The stream {name} is dropped."
    assert console.get("streams")["streams"] == []


def test_a_quota_is_set_changed_and_deleted(workshop: Workshop) -> None:
    console = workshop.console
    console.visit("#/quotas")
    console.choose("Set a quota …")
    console.fill("Name", "*")
    console.page.get_by_role("dialog").get_by_label("Kind").select_option("default")
    console.fill("Requests a second", "700")
    console.press("Set")
    assert console.notice() == "The quota of default * is set."
    console.choose("change the quota of default *")
    console.fill("Connections", "9")
    console.press("Set")
    console.notice()
    limits = console.get("quotas/default/*")["limits"]
    assert (limits["requests"], limits["connections"]) == (700, 9)
    console.choose("change the quota of default *")
    console.call("PUT", "quotas/default/*", {"requests": 800, "bytes_in": 5_000})
    console.fill("Connections", "8")
    console.press("Set")
    console.notice()
    assert console.get("quotas/default/*")["limits"] == {
        "requests": 800,
        "bytes_in": 5_000,
        "bytes_out": 0,
        "connections": 8,
    }, "the dialog changes no limit that another administrator set meanwhile"
    console.choose("delete the quota of default *")
    console.press("Delete the quota")
    assert console.notice() == "The quota of default * is deleted."
    assert console.get("quotas")["quotas"] == []


def test_each_quota_shows_whole_on_a_screen_of_1300_pixels(workshop: Workshop) -> None:
    """Also its buttons, and whether its account exists."""
    console, page = workshop.console, workshop.console.page
    limits = {"requests": 1_000_000, "bytes_in": 1_000_000, "bytes_out": 1 << 39}
    names = ["2001:db8:1234:5678:9abc:def0:1234:5678", "::1"]
    for name in names:
        console.call("PUT", f"quotas/address/{name}", limits)
    console.call("PUT", "quotas/account/gone", {"connections": 100_000})
    before = page.viewport_size
    page.set_viewport_size({"width": 1_300, "height": 900})
    console.visit("#/quotas")
    row = page.get_by_role("row").filter(has_text=names[0])
    assert "976.6 KiB\n0 B so far" in row.inner_text()
    assert "no account" in page.get_by_role("row").filter(has_text="gone").inner_text()
    region = page.get_by_role("region", name="quotas")
    assert region.evaluate("(all) => all.scrollWidth <= all.clientWidth")
    page.set_viewport_size(before)
    for name in names:
        console.call("DELETE", f"quotas/address/{name}")
    console.call("DELETE", "quotas/account/gone")


def test_broker_time_is_set(workshop: Workshop) -> None:
    console = workshop.console
    console.visit("#/clock")
    console.choose("Set broker time …")
    console.press("Set broker time")
    assert console.notice() == "Broker time is set."


def test_a_group_is_configured(workshop: Workshop) -> None:
    """An empty field is the default of the broker."""
    console = workshop.console
    console.post("topics/orders/groups/tuned/pause", {"create": True})
    page = console.visit("#/topics/orders/groups/tuned")
    console.choose("Change settings …")
    console.fill("Most attempts", "7")
    page.get_by_role("dialog").get_by_label("Records of a key").select_option("yes")
    console.fill("Shortest back-off, in seconds", "1.5")
    console.press("Change")
    assert console.notice() == "The settings of group tuned are changed."
    settings = console.get("topics/orders/groups/tuned")["settings"]
    assert (settings["max_attempts"], settings["backoff_base_seconds"]) == (7, 1.5)
    assert settings["key_ordered"] and settings["attempts"] == "failures"
    console.choose("Change settings …")
    console.fill("Most attempts", "")
    console.press("Change")
    console.notice()
    settings = console.get("topics/orders/groups/tuned")["settings"]
    assert (settings["max_attempts"], settings["backoff_base_seconds"]) == (1, 1.5)


def test_a_group_has_charts_of_its_lag(workshop: Workshop) -> None:
    """They begin with the first look, go on after a change, and follow the broker."""
    console = workshop.console
    console.post("topics/charted/records", {"records": [{"value": "x"}] * 5})
    workshop.client.close()
    workshop.client.acquire("charted", "workers", "w", 3_600)
    page = console.visit("#/topics/charted/groups/workers")
    chart = page.get_by_role("img", name="records of the group: lag 5, leased 1, dead 0")
    chart.wait_for()
    page.get_by_role("img", name="age of the oldest unsettled record: age ").wait_for()
    console.post("topics/charted/records", {"records": [{"value": "x"}] * 7})
    page.get_by_role("img", name="records of the group: lag 12, leased 1, dead 0").wait_for()
    console.choose("Pause …")
    console.press("Pause")
    console.notice()
    most = page.get_by_label("charts of the group").get_by_text("at most 12 in").first
    most.wait_for()
    before = int(most.inner_text().split()[-2])
    assert before >= 3
    line = page.locator("#view polyline.line-0").first.get_attribute("points").split()
    heights = [float(point.partition(",")[2]) for point in line]
    assert len(line) >= before and heights[0] > heights[-1] == 2.0
    page.wait_for_function(
        "(before) => Number(document.querySelector('#view .total').textContent.split(' ')[4])"
        " > before",
        arg=before,
    )


def test_a_schema_is_registered_and_deleted(workshop: Workshop) -> None:
    """A version that is not compatible is refused until the mode allows it."""
    console = workshop.console
    page = console.visit("#/schemas")
    console.choose("Register a schema …")
    console.fill("Name", "orders/ü")
    console.fill("Text", "{")
    console.press("Register")
    page.get_by_role("dialog").get_by_role("alert").wait_for()
    console.fill("Text", '{"type": "object"}')
    console.press("Register")
    assert console.notice() == "Version 1 of schema orders/ü is registered."
    page.get_by_role("heading", name="Schema orders/ü").wait_for()
    console.choose("Register a version …")
    console.fill("Text", '{"type": "object", "required": ["id"]}')
    console.press("Register")
    page.get_by_role("dialog").get_by_role("alert").get_by_text("compatibility check").wait_for()
    console.press("Cancel")
    console.choose("Set compatibility …")
    page.get_by_role("dialog").get_by_label("Compatibility", exact=True).select_option("none")
    console.press("Set")
    assert console.notice() == "The compatibility of schema orders/ü is none."
    console.choose("Register a version …")
    console.fill("Text", '{"type": "object", "required": ["id"]}')
    console.press("Register")
    assert console.notice() == "Version 2 of schema orders/ü is registered."
    page.get_by_text("required").wait_for()
    console.choose("Delete this version …")
    console.fill("Type orders/ü to confirm", "orders/ü")
    console.press("Delete the version")
    assert console.notice() == "The version 2 of schema orders/ü is deleted."
    (one,) = console.get("schemas")["schemas"]
    assert [version["version"] for version in one["versions"]] == [1]
    console.visit("#/schemas/orders%2F%C3%BC/1")
    console.choose("Delete the schema …")
    console.fill("Type orders/ü to confirm", "orders/ü")
    console.press("Delete the schema")
    assert console.notice() == "The schema orders/ü is deleted."
    assert console.get("schemas")["schemas"] == []


def test_an_account_is_created_changed_and_deleted(workshop: Workshop) -> None:
    console = workshop.console
    page = console.visit("#/security")
    console.choose("Create an account …")
    console.fill("Name", "ann ü")
    console.fill("Password", "long enough 17")
    console.fill("Password again", "long enough 18")
    console.press("Create")
    page.get_by_role("alert").get_by_text("the two passwords differ").wait_for()
    console.fill("Password again", "long enough 17")
    console.fill("Roles", "consumer, monitor")
    console.press("Create")
    assert console.notice() == "Account ann ü is created."
    ann = console.get("users/ann%20%C3%BC")
    assert (ann["roles"], ann["enabled"]) == (["consumer", "monitor"], True)
    console.choose("change account ann ü")
    console.fill("Roles", "producer")
    page.get_by_role("dialog").get_by_label("Enabled").select_option("no")
    console.press("Change")
    console.notice()
    after = console.get("users/ann%20%C3%BC")
    assert (after["roles"], after["enabled"]) == (["producer"], False)
    console.choose("change the password of ann ü")
    console.fill("Password", "another one 17")
    console.fill("Password again", "another one 17")
    console.press("Change the password")
    assert console.notice() == "The password of account ann ü is changed."
    assert console.get("users/ann%20%C3%BC")["updated"] > after["updated"]
    console.choose("delete account ann ü")
    console.fill("Type ann ü to confirm", "ann ü")
    console.press("Delete the account")
    assert console.notice() == "Account ann ü is deleted."
    assert console.get("users")["users"] == []


def test_a_stale_dialog_takes_back_no_change_of_another_administrator(workshop: Workshop) -> None:
    """Neither a role that was removed meanwhile, nor a permission."""
    console = workshop.console
    console.post("users", {"name": "carl", "roles": ["consumer", "admin"]})
    console.call(
        "PUT", "acls/topics/orders", {"users": {"carl": ["read", "write"], "ann": ["read"]}}
    )
    page = console.visit("#/security")
    console.choose("change account carl")
    console.call("PATCH", "users/carl", {"roles": ["consumer"]})
    page.get_by_role("dialog").get_by_label("Enabled").select_option("no")
    console.press("Change")
    console.notice()
    carl = console.get("users/carl")
    assert (carl["roles"], carl["enabled"]) == (["consumer"], False)
    console.choose("change the access list of topic orders")
    console.call("PATCH", "acls/topics/orders", {"revoke_users": {"carl": ["write"]}})
    console.fill("Accounts", "carl: read, write\nbob: admin")
    console.press("Set")
    console.notice()
    (found,) = console.get("acls")["access_lists"]
    assert found["users"] == {"carl": ["read"], "bob": ["admin"]}
    console.call("DELETE", "acls/topics/orders", {})
    console.call("DELETE", "users/carl", {})


def test_an_api_key_shows_once(workshop: Workshop) -> None:
    """The broker accepts the key that the dialog shows, until it is revoked."""
    console = workshop.console
    console.post("users", {"name": "robot"})
    page = console.visit("#/security")
    console.choose("Create an API key …")
    console.fill("Account", "robot")
    console.fill("Label", "<b>host 3</b>")
    console.press("Create")
    dialog = page.get_by_role("dialog")
    secret = dialog.locator("pre")
    secret.wait_for()
    (key,) = console.get("keys")["keys"]
    assert (key["user"], key["label"]) == ("robot", "<b>host 3</b>")
    text = secret.inner_text()
    assert text.startswith(f"bk_{key['key_id']}_")
    console.press("Close")
    assert console.notice() == f"API key {key['key_id']} of account robot is created."
    assert text not in page.content()
    console.choose(f"revoke API key {key['key_id']}")
    console.press("Revoke the key")
    assert console.notice() == f"API key {key['key_id']} is revoked."
    assert console.get("keys")["keys"] == []
    console.call("DELETE", "users/robot", {})


def test_an_access_list_is_set_changed_and_deleted(workshop: Workshop) -> None:
    """Lines of names and permissions; a wrong one is refused, and nothing is set."""
    console = workshop.console
    page = console.visit("#/security")
    console.choose("Set an access list …")
    console.fill("Name", "orders.")
    page.get_by_role("dialog").get_by_label("Applies to").select_option("prefixes")
    console.fill("Accounts", "ann: read, wriet")
    console.press("Set")
    page.get_by_role("dialog").get_by_role("alert").get_by_text("“ann: read, wriet”").wait_for()
    assert console.get("acls")["access_lists"] == []
    console.fill("Accounts", "ann: read, write\n\n a:b : admin")
    console.press("Set")
    assert console.notice() == "The access list of prefix orders. is set."
    (found,) = console.get("acls")["access_lists"]
    assert found["prefix"] and not found["public"]
    assert found["users"] == {"a:b": ["admin"], "ann": ["read", "write"]}
    console.choose("change the access list of prefix orders.")
    console.fill("Accounts", "")
    console.fill("Roles", "clerks: read")
    page.get_by_role("dialog").get_by_label("Public").select_option("yes")
    console.press("Set")
    console.notice()
    (found,) = console.get("acls")["access_lists"]
    assert (found["public"], found["users"]) == (True, {})
    assert found["roles"] == {"clerks": ["read"]}
    console.choose("delete the access list of prefix orders.")
    console.fill("Type orders. to confirm", "orders.")
    console.press("Delete the access list")
    assert console.notice() == "The access list of prefix orders. is deleted."
    assert console.get("acls")["access_lists"] == []


def test_names_that_browsers_drop_from_paths_are_changed_too(workshop: Workshop) -> None:
    """An access list of the topic ``..``, and none of another name."""
    console = workshop.console
    console.visit("#/security")
    console.choose("Set an access list …")
    console.fill("Name", "..")
    console.fill("Accounts", "ann: read")
    console.press("Set")
    assert console.notice() == "The access list of topic .. is set."
    assert [one["topic"] for one in console.get("acls")["access_lists"]] == [".."]
    console.choose("delete the access list of topic ..")
    console.fill("Type .. to confirm", "..")
    console.press("Delete the access list")
    console.notice()
    assert console.get("acls")["access_lists"] == []
