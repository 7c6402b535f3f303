"""A real browser gets answers in another order than it asked for: nothing wrong shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.admin.browser import CHROMIUM, Console, console_without_retries, leave_dead_letters

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="there is no Chromium here (Debian: apt-get install chromium)"
    ),
]

GROUP = "topics/orders/groups/workers"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """A topic of two partitions; its group has two dead letters."""
    with console_without_retries(tmp_path_factory.mktemp("order")) as (console, client):
        console.post("topics", {"name": "orders", "partitions": 2})
        for partition in (0, 1):
            records = [{"value": f"in {partition}", "partition": partition}] * 6
            console.post("topics/orders/records", {"records": records})
        leave_dead_letters(client)
        yield console


class Held(NamedTuple):
    """A request whose answer waits."""

    console: Console
    routes: list[Any]
    pattern: str

    def arrive(self) -> None:
        """Let the answer arrive, and the page use it."""
        page = self.console.page
        page.wait_for_timeout(0)
        while not self.routes:
            page.wait_for_timeout(10)
        with page.expect_response(lambda _: True):
            self.routes.pop().continue_()
        page.wait_for_load_state("networkidle")


@pytest.fixture
def hold(console: Console) -> Iterator[Callable[[str], Held]]:
    """Return a function that holds the next request whose address has this text."""
    patterns: list[Callable[[str], bool]] = []

    def begin(text: str) -> Held:
        routes: list[Any] = []

        def chosen(url: str) -> bool:
            return text in url

        console.page.route(chosen, lambda route: routes.append(route), times=1)
        patterns.append(chosen)
        return Held(console, routes, text)

    yield begin
    for chosen in patterns:
        console.page.unroute(chosen)


def test_a_preview_is_of_what_the_fields_say(console: Console, hold: Callable[[str], Held]) -> None:
    """The offset is changed while the preview of another one is under way."""
    page = console.visit(f"#/{GROUP}")
    console.choose("Seek …")
    page.get_by_role("dialog").get_by_label("To", exact=True).select_option("offset")
    console.fill("Offset", "2")
    preview = hold("/seek?")
    console.press("Preview")
    console.fill("Offset", "5")
    preview.arrive()
    seek = page.get_by_role("dialog").get_by_role("button", name="Seek", exact=True)
    assert seek.is_disabled()
    assert page.get_by_text("becomes").count() == 0
    console.press("Preview")
    page.get_by_text("becomes").wait_for()
    assert seek.is_enabled()
    page.keyboard.press("Escape")


@pytest.mark.parametrize("text", ["9007199254740993", "18446744073709551616"])
def test_a_number_that_javascript_would_round_is_refused(console: Console, text: str) -> None:
    page = console.visit(f"#/{GROUP}")
    console.choose("Seek …")
    page.get_by_role("dialog").get_by_label("To", exact=True).select_option("offset")
    console.fill("Offset", text)
    console.press("Preview")
    page.get_by_role("alert").get_by_text(f"{text} is too large").wait_for()
    page.keyboard.press("Escape")


def test_records_are_those_of_the_last_question(
    console: Console, hold: Callable[[str], Held]
) -> None:
    page = console.visit("#/topics/orders")
    read = page.get_by_role("button", name="Read", exact=True)
    first = hold("records?partition=0")
    read.click()
    page.locator("#view").get_by_label("partition", exact=True).fill("1")
    read.click()
    records = page.get_by_role("region", name="records", exact=True)
    records.get_by_text("in 1").first.wait_for()
    first.arrive()
    assert records.get_by_text("in 0").count() == 0
    assert "partition=1" in page.url


def test_a_late_answer_leaves_the_address_of_another_view(
    console: Console, hold: Callable[[str], Held]
) -> None:
    page = console.visit("#/topics/orders")
    first = hold("records?partition=0")
    page.get_by_role("button", name="Read", exact=True).click()
    page.get_by_role("link", name="Clock").click()
    page.wait_for_url("**/#/clock")
    first.arrive()
    assert page.url.endswith("#/clock")


def test_one_record_is_explained_at_a_time(console: Console, hold: Callable[[str], Held]) -> None:
    page = console.visit("#/")
    page.locator("#explain-topic").fill("orders")
    page.locator("#explain-offset").fill("0")
    first = hold("/records/0/0")
    explain = page.get_by_role("button", name="Explain")
    explain.click()
    page.locator("#explain-partition").fill("1")
    explain.click()
    events = page.locator("#explain-events")
    events.get_by_text("no address").wait_for()
    first.arrive()
    assert events.get_by_text("no stock").count() == 0


def test_buttons_for_dead_letters_are_those_of_the_list(
    console: Console, hold: Callable[[str], Held]
) -> None:
    page = console.visit(f"#/{GROUP}")
    letters = page.get_by_role("region", name="dead letters", exact=True)
    letters.get_by_text("no stock").wait_for()
    reason, show = page.get_by_label("reason"), page.get_by_role("button", name="Show", exact=True)
    reason.fill("no stock")
    first = hold("reason=no+stock")
    show.click()
    reason.fill("no address")
    show.click()
    letters.get_by_text("no stock").wait_for(state="detached")
    first.arrive()
    assert letters.get_by_text("no address").count() == 1
    console.choose("Purge …")
    offered = page.get_by_role("dialog").locator("option")
    assert offered.evaluate_all("all => all.map((one) => one.value)") == ["no address"]
    page.keyboard.press("Escape")


NAMES = {"constructor": ["read"], " ann": ["read"], "ann": ["write"]}


def test_an_access_list_keeps_unusual_names(console: Console) -> None:
    """A name that JavaScript's objects have, and a name with a space before it."""
    page = console.visit("#/security")
    console.call("PUT", "acls/topics/odd", {"users": {" ann": ["read"], "ann": ["write"]}})
    page = console.visit("#/security")
    console.choose("change the access list of topic odd")
    field = page.get_by_role("dialog").get_by_label("Accounts")
    console.fill("Accounts", f"{field.input_value()}\nconstructor: read")
    console.press("Set")
    console.notice()
    assert console.get("acls/topics/odd")["users"] == NAMES
    console.choose("change the access list of topic odd")
    console.fill("Accounts", "bob: read\nbob: write")
    console.press("Set")
    page.get_by_role("alert").get_by_text("bob stands twice").wait_for()
    page.keyboard.press("Escape")
    assert console.get("acls/topics/odd")["users"] == NAMES
