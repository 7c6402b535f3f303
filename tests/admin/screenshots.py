"""Take the screenshots of the console for the documentation, of a broker under load.

``make screenshots`` writes them to ``docs/_static/console``, and the next ``make docs`` shows them.
They are not committed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.process import BrokerProcess
from brokerd.client.mamamia import BatchSettle, MamamiaClient, batch_message
from tests.admin.browser import CHROMIUM, Console, browser_of

DESKTOP = {"width": 1_200, "height": 900}
PHONE = {"width": 390, "height": 844}
CUSTOMERS = ("ada", "grace", "edsger", "barbara")
DEAD_EVERY = 50
BATCH = 20
PAUSE_SECONDS = 0.05
STALL_SECONDS = 2.0
"""Time for which the broker gets no processor, so that a condition shows."""
LOAD_SECONDS = 24.0
"""Load before the first picture, for the charts."""
CHART_SECONDS = 5.0
"""Time for a few samples of the charts."""
GROUP = "#/topics/orders/groups/billing"
VIEWS = {
    "topics": "#/topics",
    "topic": "#/topics/orders?partition=0&offset=0",
    "groups": "#/groups",
    "connections": "#/connections",
    "transactions": "#/transactions",
    "streams": "#/streams",
    "stream": "#/streams/loader",
    "archive": "#/archive",
    "schemas": "#/schemas",
    "schema": "#/schemas/orders/1",
    "security": "#/security",
    "quotas": "#/quotas",
    "audit": "#/audit",
    "clock": "#/clock",
    "configuration": "#/configuration?text=wal",
}
"""The views that need no more than a visit."""


def work(address: str, stopped: threading.Event) -> None:
    """Produce orders and settle most of them, until told to stop."""
    number = 0
    with MamamiaClient(address) as client:
        while not stopped.wait(PAUSE_SECONDS):
            orders = [
                batch_message(
                    {"order": number + one, "customer": CUSTOMERS[one % 4], "items": one % 7 + 1},
                    key=CUSTOMERS[one % 4],
                )
                for one in range(BATCH)
            ]
            number += BATCH
            client.produce_batch("orders", orders)
            leased = client.acquire_batch("orders", "billing", "billing-1", BATCH - 1)
            settles = [
                BatchSettle(one.id, False, reason="no such customer", dead=True)
                if one.id % DEAD_EVERY == 0
                else BatchSettle(one.id, True)
                for one in leased[: BATCH - 2]
            ]
            client.settle_batch("orders", "billing", "billing-1", settles)


@contextmanager
def load(address: str) -> Iterator[None]:
    """Keep a broker busy."""
    stopped = threading.Event()
    thread = threading.Thread(target=work, args=(address, stopped))
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def take(browser: Any, directory: Path, load_seconds: float = LOAD_SECONDS) -> list[Path]:
    """Write the pictures of all views into a directory; return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    pictures: list[Path] = []
    with tempfile.TemporaryDirectory() as place:
        broker = BrokerProcess(Path(place) / "data", Path(place) / "log", formats=("mamamia",))
        with broker:
            broker.start()
            console = Console(browser, broker.admin, viewport=DESKTOP)
            fill(console)
            with load(broker.address):
                pictures += _pictures(console, directory, load_seconds, broker.pid)
    return pictures


def fill(console: Console) -> None:
    """Give each view something to show."""
    for name in ("orders", "invoices", "shipments"):
        console.post("topics", {"name": name, "settings": {"retention_seconds": 604_800}})
    definition = json.dumps({"type": "object", "required": ["order", "customer", "items"]})
    console.post("schemas/orders/versions", {"type": "json", "definition": definition})
    console.call("PUT", "quotas/default/*", {"requests": 5_000})
    position = {"log_id": console.get("archive")["log_id"], "lsn": 0, "topics": ["orders"]}
    console.call(
        "PUT", "streams/loader/position", {**position, "offsets": {"1": [0]}, "holds": True}
    )
    console.post("users", {"name": "ann", "password": "long enough 17", "roles": ["admin"]})
    console.post("users", {"name": "billing", "password": "", "roles": ["consumer"]})
    record = {"value": {"invoice": 7}, "delay_seconds": 900}
    console.post("topics/invoices/records", {"records": [record]})


def _pictures(console: Console, directory: Path, load_seconds: float, pid: int) -> Iterator[Path]:
    page = console.visit("")
    page.wait_for_timeout(load_seconds * 1_000)
    yield from _looks(page, directory / "overview")
    for name, address in VIEWS.items():
        console.visit(address)
        yield from _looks(page, directory / name)
    console.visit(GROUP)
    page.get_by_text("no such customer").first.wait_for()
    yield from _looks(page, directory / "group")
    console.choose("Seek …")
    console.press("Preview")
    page.get_by_role("dialog").get_by_role("table").wait_for()
    yield from _looks(page, directory / "seek")
    console.visit("")
    page.wait_for_timeout(CHART_SECONDS * 1_000)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(STALL_SECONDS)
    os.kill(pid, signal.SIGCONT)
    page.locator("#conditions li").get_by_text("loop-stalled").wait_for()
    yield from _looks(page, directory / "condition")


def _looks(page: Any, place: Path) -> Iterator[Path]:
    """Take a picture of the page for desktops and phones, light and dark."""
    for kind, size in (("", DESKTOP), ("-phone", PHONE)):
        page.set_viewport_size(size)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            path = place.with_name(f"{place.name}{kind}-{scheme}.png")
            page.screenshot(path=path)
            yield path
    page.set_viewport_size(DESKTOP)


def main() -> None:
    """Take the pictures into the directory of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    if CHROMIUM is None:
        parser.exit(
            1, "screenshots: there is no Chromium here (Debian: apt-get install chromium)\n"
        )
    with browser_of() as browser:
        for path in take(browser, arguments.directory):
            print(path)


if __name__ == "__main__":
    main()
