"""A real browser logs in to the console of a broker with security on."""

from __future__ import annotations

import threading
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.process import BrokerProcess
from tests.admin.browser import CHROMIUM, Console, browser_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="there is no Chromium here (Debian: apt-get install chromium)"
    ),
]

ROOT = {"authorization": f"Basic {b64encode(b'admin:root password').decode()}"}


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with an administrator, and the reader ann of topic orders."""
    directory = tmp_path_factory.mktemp("login")
    (directory / "password").write_text("root password\n")
    settings = ["security.auth=on", f"security.admin_password_file={directory / 'password'}"]
    with BrokerProcess(
        directory / "data", directory / "log", settings, formats=("mamamia",)
    ) as broker:
        broker.start()
        yield broker.admin


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browser_of() as browser:
        yield browser


@pytest.fixture
def console(browser: Any, admin: str) -> Iterator[Console]:
    console = Console(browser, admin)
    yield console
    console.context.close()


@pytest.fixture
def other_server(tmp_path: Path) -> Iterator[str]:
    """A web server on another port of the same host, with an empty page."""
    (tmp_path / "index.html").write_text("<!doctype html><body>")
    pages = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def log_in(console: Console, name: str, password: str) -> None:
    console.page.get_by_label("account").fill(name)
    console.page.get_by_label("password").fill(password)
    console.page.keyboard.press("Enter")


def test_the_form_gives_a_session_that_lasts_until_the_logout(console: Console) -> None:
    """A wrong password shows its refusal; a reload keeps the session, and writes work."""
    page = console.visit("#/topics")
    assert page.get_by_role("heading", name="Topics").count() == 0
    log_in(console, "admin", "wrong")
    page.get_by_role("alert").get_by_text("invalid username or password").wait_for()
    log_in(console, "admin", "root password")
    page.get_by_role("button", name="Create a topic …").wait_for()
    console.visit("#/topics")
    assert page.get_by_label("password").count() == 0
    console.choose("Create a topic …")
    console.fill("Name", "orders")
    console.press("Create")
    assert console.notice() == "Topic orders is created."
    (cookie,) = console.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("password").wait_for()
    assert page.get_by_role("heading", name="Topics").count() == 0
    assert console.context.cookies() == []


def test_a_reader_sees_no_button(console: Console) -> None:
    """Neither for topics, groups, delayed messages, connections, schemas nor accounts."""
    console.call(
        "POST", "users", {"name": "ann", "password": "pw", "roles": ["consumer", "monitor"]}, **ROOT
    )
    console.call("POST", "topics", {"name": "seen"}, **ROOT)
    console.call("POST", "topics/seen/groups/g/pause", {"create": True}, **ROOT)
    delayed = {"value": "later", "delay_seconds": 3_600}
    console.call("POST", "topics/seen/records", {"records": [delayed]}, **ROOT)
    page = console.visit("")
    log_in(console, "ann", "pw")
    page.get_by_role("button", name="Log out").wait_for()
    for address, text in [
        ("#/topics", "seen"),
        ("#/topics/seen", "later"),
        ("#/topics/seen/groups/g", "none"),
        ("#/connections", "none"),
        ("#/schemas", "none"),
        ("#/security", "unauthorized"),
    ]:
        console.open(address)
        page.locator("#view").get_by_text(text).first.wait_for()
        names = {one.inner_text() for one in page.locator("button:visible").all()}
        own = {"Change your password …"}
        assert not [name for name in names - own if name.endswith("…")], address


def test_the_next_account_does_not_see_what_the_last_one_saw(console: Console) -> None:
    """The overview of an administrator is gone after the logout, also for an account without it."""
    console.call("POST", "users", {"name": "joe", "password": "pw", "roles": ["guest"]}, **ROOT)
    console.call("POST", "topics", {"name": "secret"}, **ROOT)
    console.call("POST", "topics/secret/groups/hidden/pause", {"create": True}, **ROOT)
    page = console.visit("")
    log_in(console, "admin", "root password")
    page.locator("#groups").get_by_text("hidden").wait_for()
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("password").wait_for()
    assert "hidden" not in page.locator("#groups").inner_text()
    log_in(console, "joe", "pw")
    page.get_by_role("button", name="Log out").wait_for()
    assert "hidden" not in page.locator("#groups").inner_text()


def test_no_page_of_another_origin_learns_which_topics_exist(
    console: Console, other_server: str
) -> None:
    """Whether an ``<object>`` loads is all that it sees. The session's cookie goes to all ports."""
    console.call("POST", "topics", {"name": "probed"}, **ROOT)
    page = console.visit("")
    log_in(console, "admin", "root password")
    page.get_by_role("button", name="Log out").wait_for()
    foreign = console.context.new_page()
    foreign.goto(other_server)
    load = (
        "(data) => new Promise((tell) => { const made = document.createElement('object');"
        " made.onload = () => tell('load'); made.onerror = () => tell('error');"
        " made.data = data; document.body.append(made); })"
    )
    for path in ("api/v1/topics/probed", "api/v1/topics/absent", ""):
        assert foreign.evaluate(load, f"{console.url}{path}") == "error"


def test_the_form_comes_back_when_the_session_ends(console: Console) -> None:
    """The password was changed elsewhere; the page asks by itself."""
    console.call("POST", "users", {"name": "eve", "password": "pw", "roles": ["admin"]}, **ROOT)
    page = console.visit("")
    log_in(console, "eve", "pw")
    page.locator("#phase.ready").wait_for()
    console.call("POST", "users/eve/password", {"password": "other"}, **ROOT)
    page.get_by_label("password").wait_for()
    log_in(console, "eve", "other")
    page.get_by_role("button", name="Log out").wait_for()
    page.locator("#phase.ready").wait_for()


def test_a_page_whose_session_another_tab_replaced_says_so(console: Console) -> None:
    """It does not write as another account than the one that it shows.

    The other tab has the form open from before. So the browser has a session at every moment, and
    no poll of the page brings the form back.
    """
    page = console.visit("#/topics")
    other = console.context.new_page()
    other.goto(console.url)
    other.get_by_label("password").wait_for()
    log_in(console, "admin", "root password")
    page.get_by_role("button", name="Create a topic …").wait_for()
    other.get_by_label("account").fill("admin")
    other.get_by_label("password").fill("root password")
    other.keyboard.press("Enter")
    other.get_by_role("button", name="Log out").wait_for()
    console.choose("Create a topic …")
    console.fill("Name", "unwanted")
    console.press("Create")
    page.get_by_role("alert").get_by_text("another tab of this browser logged in").wait_for()


def test_a_page_of_another_origin_changes_nothing(console: Console, admin: str) -> None:
    """Its requests carry no cookie, and the broker refuses them."""
    page = console.visit("")
    log_in(console, "admin", "root password")
    page.get_by_role("button", name="Log out").wait_for()
    statuses: list[int] = []
    foreign = console.context.new_page()
    foreign.on("response", lambda answer: statuses.append(answer.status))
    foreign.route(
        "http://evil.example/**",
        lambda route: route.fulfill(body="<!doctype html>", content_type="text/html"),
    )
    foreign.goto("http://evil.example/")
    url = f"http://{admin}/api/v1/topics/orders"
    for kind in ("text/plain", "application/json"):
        failed = foreign.evaluate(
            "([url, kind]) => fetch(url, {method: 'POST', credentials: 'include',"
            " headers: {'content-type': kind}, body: '{}'}).then(() => 'read', () => 'failed')",
            [f"{url}/records", kind],
        )
        assert failed == "failed"
    assert not [status for status in statuses[1:] if status < 400]


def test_an_account_changes_its_own_password(console: Console) -> None:
    """A wrong present password is a refusal in the dialog, and not the end of the session."""
    console.call("POST", "users", {"name": "pat", "password": "pw", "roles": ["guest"]}, **ROOT)
    page = console.visit("#/security")
    log_in(console, "pat", "pw")
    console.choose("Change your password …")
    names = {one.inner_text() for one in page.locator("#view button:visible").all()}
    assert names == {"Change your password …"}
    console.fill("Present password", "wrong")
    console.fill("Password", "new one 17")
    console.fill("Password again", "new one 17")
    console.press("Change the password")
    page.get_by_role("dialog").get_by_role("alert").get_by_text("current password").wait_for()
    console.fill("Present password", "pw")
    console.press("Change the password")
    assert console.notice() == "The password of account pat is changed."
    page.get_by_role("button", name="Log out").click()
    page.locator("#login-password").wait_for()
    log_in(console, "pat", "new one 17")
    page.get_by_role("button", name="Change your password …").wait_for()


def test_an_administrator_ends_the_session_of_another_browser(
    console: Console, browser: Any, admin: str
) -> None:
    """That browser shows the login form at its next request; the trail has the end."""
    console.call("POST", "users", {"name": "sam", "password": "pw", "roles": ["monitor"]}, **ROOT)
    other = Console(browser, admin)
    other.visit("#/connections")
    log_in(other, "sam", "pw")
    other.page.get_by_role("heading", name="Connections").wait_for()
    page = console.visit("#/security")
    log_in(console, "admin", "root password")
    sessions = page.get_by_role("region", name="Sessions of browsers")
    sessions.get_by_text("admin (this browser)").wait_for()
    row = sessions.get_by_role("row").filter(has_text="sam")
    row.get_by_role("button", name="end session").click()
    console.press("End the session")
    assert "is ended" in console.notice()
    assert sessions.get_by_text("sam").count() == 0
    other.page.get_by_label("password").wait_for()
    other.context.close()
    events = console.call("GET", "audit?type=session.end", **ROOT)["events"]
    assert events[0]["details"]["ended_user"] == "sam"
