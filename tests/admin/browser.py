"""Chromium with the console of a broker, driven by Playwright."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.process import BrokerProcess
from brokerd.client.mamamia import MamamiaClient

SECONDS = 120
"""A limit for a busy machine. Waits end as soon as they can."""
CHROMIUM = shutil.which("chromium")
SETTLED = "() => document.body.dataset.shown !== undefined"
"""Whether a view shows."""


@contextmanager
def browser_of() -> Iterator[Any]:
    """Start the system's Chromium; skip the test if Playwright is missing."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install -e '.[test]'"
    )
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Console:
    """A page of the console, and the API of its broker. An error of a script fails the test."""

    def __init__(self, browser: Any, admin: str, scheme: str = "http", **options: Any) -> None:
        self.url = f"{scheme}://{admin}/"
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(SECONDS * 1_000)
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.requests: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))

    def call(
        self, method: str, path: str, body: dict[str, Any] | None = None, **headers: str
    ) -> Any:
        """Send a request to the API as a program does; return its answer."""
        request = urllib.request.Request(
            f"{self.url}api/v1/{path}",
            None if body is None else json.dumps(body).encode(),
            {"content-type": "application/json", **headers},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self.call("POST", path, body)

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def visit(self, address: str) -> Any:
        """Load an address anew; return the page once its view shows."""
        self.page.goto("about:blank")
        self.page.goto(self.url + address)
        self.settle()
        return self.page

    def open(self, address: str) -> str:
        """Return the document of an address, once all requests are answered."""
        self.visit(address).wait_for_load_state("networkidle")
        return str(self.page.content())

    def settle(self) -> None:
        """Wait until a view shows. Nothing came from another server."""
        self.page.wait_for_function(SETTLED)
        assert not self.faults
        assert all(url.startswith(self.url) for url in self.requests if url != "about:blank")

    def choose(self, name: str) -> None:
        """Press a button of the view, and wait for its dialog."""
        self.page.get_by_role("button", name=name, exact=True).click()
        self.page.get_by_role("dialog").wait_for()

    def fill(self, label: str, value: str) -> None:
        """Fill a field of the dialog."""
        self.page.get_by_role("dialog").get_by_label(label, exact=True).fill(value)

    def press(self, name: str) -> None:
        """Press a button of the dialog."""
        self.page.get_by_role("dialog").get_by_role("button", name=name, exact=True).click()

    def notice(self) -> str:
        """Return the notice of a change, once the dialog is closed and the view shows anew."""
        self.page.get_by_role("dialog").wait_for(state="detached")
        self.page.locator("#notice:not(:empty)").wait_for()
        return str(self.page.locator("#notice").inner_text())


@contextmanager
def console_without_retries(directory: Path) -> Iterator[tuple[Console, MamamiaClient]]:
    """Start a broker whose messages are dead after one failure; yield its console and a client."""
    with (
        BrokerProcess(
            directory / "data",
            directory / "log",
            settings=["groups.max_attempts=1"],
            formats=("mamamia",),
        ) as broker,
        browser_of() as browser,
    ):
        broker.start()
        with MamamiaClient(broker.address) as client:
            yield Console(browser, broker.admin), client


def leave_dead_letters(client: MamamiaClient) -> None:
    """Fail two messages of the group ``workers`` in the topic ``orders``, for two reasons."""
    for reason in ("no stock", "no address"):
        leased = client.acquire("orders", "workers", "w1")
        assert leased is not None
        client.settle("orders", "workers", leased.id, "w1", False, reason=reason)
