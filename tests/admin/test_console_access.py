"""The console suits all people and screens: the rules of axe-core, phones, the keyboard alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.process import BrokerProcess
from brokerd.client.mamamia import BatchSettle, MamamiaClient
from tests.admin.browser import CHROMIUM, Console, browser_of
from tests.admin.screenshots import take

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="there is no Chromium here (Debian: apt-get install chromium)"
    ),
]

CONSOLE = Path(__file__).resolve().parents[2] / "brokerd" / "admin" / "static"
MONITORING = Path(__file__).resolve().parents[2] / "docs" / "monitoring.rst"
PHONE = {"width": 360, "height": 640}
LONG = "orders-" + "x" * 200
ADDRESSES = [
    "",
    "#/topics",
    f"#/topics/{LONG}?partition=0&offset=0",
    f"#/topics/{LONG}/groups/workers",
    "#/groups",
    "#/connections",
    "#/transactions",
    "#/streams",
    "#/streams/loader",
    "#/archive",
    "#/schemas",
    "#/schemas/orders/1",
    "#/security",
    "#/quotas",
    "#/audit",
    "#/clock",
    "#/configuration?text=wal",
    "#/nonsense",
]
DIALOGS = {
    "#/topics": "Create a topic …",
    f"#/topics/{LONG}": f"delete topic {LONG}",
    "#/streams/loader": "Drop the stream …",
    f"#/topics/{LONG}/groups/workers": "Seek …",
    "#/schemas": "Register a schema …",
    "#/security": "Set an access list …",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browser_of() as browser:
        yield browser


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Iterator[str]:
    """A broker with long names and values, leases, dead letters, a schema and a quota."""
    directory = tmp_path_factory.mktemp("access")
    with BrokerProcess(directory / "data", directory / "log", formats=("mamamia",)) as broker:
        broker.start()
        console = Console(browser, broker.admin)
        value = {"note": "y" * 2_000, "lines": [*range(40)]}
        records = [{"value": value, "key": "k" * 100} for _ in range(5)]
        console.post(f"topics/{LONG}/records", {"records": records})
        console.post(
            f"topics/{LONG}/records", {"records": [{"value": value, "delay_seconds": 900}]}
        )
        console.post("schemas/orders/versions", {"type": "json", "definition": "{}"})
        console.call("PUT", "quotas/default/*", {"requests": 5_000})
        position = {"log_id": console.get("archive")["log_id"], "lsn": 0, "topics": [LONG]}
        console.call("PUT", "streams/loader/position", {**position, "offsets": {"1": [1]}})
        console.post("users", {"name": "ann", "password": "long enough 17"})
        with MamamiaClient(broker.address) as client:
            leased = client.acquire_batch(LONG, "workers", "worker-1", 3, 3_600)
            reason = "the warehouse has none " * 10
            items = [BatchSettle(one.id, False, reason=reason, dead=True) for one in leased[:2]]
            client.settle_batch(LONG, "workers", "worker-1", items)
            yield broker.admin
        console.context.close()


def axe_source() -> str:
    """Return the script of axe-core, of which a package of PyPI has a copy."""
    pytest.importorskip(
        "axe_playwright_python", reason="axe-core is not installed: pip install -e '.[test]'"
    )
    file = resources.files("axe_playwright_python").joinpath("axe.min.js")
    return file.read_text(encoding="utf-8")


def findings(page: Any, source: str) -> list[str]:
    """Return the rules of axe-core that a page violates, light or dark, with the elements."""
    page.evaluate(source)
    found = []
    for scheme, options in [("light", {}), ("dark", {"runOnly": ["color-contrast"]})]:
        page.emulate_media(color_scheme=scheme)
        result = page.evaluate("(options) => axe.run(options)", options)
        assert result["passes"], "axe-core found nothing to check"
        found += [
            f"{scheme}: {one['impact']}: {one['id']}: {node['html'][:200]}"
            for one in result["violations"]
            for node in one["nodes"]
        ]
    page.emulate_media(color_scheme="light")
    return found


def excess(page: Any) -> int:
    """Return the pixels by which the page, or its dialog, is wider than a phone."""
    before = page.viewport_size
    page.set_viewport_size(PHONE)
    wide = page.evaluate(
        "() => Math.max(...[document.documentElement, ...document.querySelectorAll('dialog')]"
        ".map((one) => one.scrollWidth - one.clientWidth))"
    )
    for dialog in page.get_by_role("dialog").all():
        box = dialog.bounding_box()
        wide = max(wide, box["x"] + box["width"] - PHONE["width"], -box["x"])
        wide = max(wide, box["y"] + box["height"] - PHONE["height"], -box["y"])
    page.set_viewport_size(before)
    return int(wide)


class Survey(NamedTuple):
    """What was found in each view and dialog; empty: nothing."""

    findings: dict[str, list[str]]
    excess: dict[str, int]


@pytest.fixture(scope="module")
def survey(browser: Any, admin: str) -> Survey:
    """Look at every view and at some dialogs, once for all tests."""
    source = axe_source()
    console = Console(browser, admin)
    survey = Survey({}, {})
    for address in ADDRESSES:
        console.open(address)
        survey.findings[address] = findings(console.page, source)
        survey.excess[address] = excess(console.page)
    for address, name in DIALOGS.items():
        console.visit(address)
        console.choose(name)
        survey.findings[name] = findings(console.page, source)
        survey.excess[name] = excess(console.page)
    console.context.close()
    return survey


def test_axe_finds_nothing(survey: Survey) -> None:
    """In no view and no dialog, neither light nor dark."""
    assert not {place: found for place, found in survey.findings.items() if found}


def test_a_phone_needs_no_sideways_scrolling(survey: Survey) -> None:
    """Tables scroll by themselves; everything else fits, dialogs too."""
    assert not {place: wide for place, wide in survey.excess.items() if wide > 0}


def test_axe_finds_nothing_in_the_login_form(browser: Any, tmp_path: Path) -> None:
    source = axe_source()
    (tmp_path / "password").write_text("root password\n")
    settings = ["security.auth=on", f"security.admin_password_file={tmp_path / 'password'}"]
    with BrokerProcess(
        tmp_path / "data", tmp_path / "log", settings, formats=("mamamia",)
    ) as broker:
        broker.start()
        console = Console(browser, broker.admin)
        page = console.visit("")
        page.get_by_label("password").fill("wrong")
        page.get_by_label("account").fill("admin")
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("alert").get_by_text("invalid").wait_for()
        assert findings(page, source) == []
        console.context.close()


def test_the_keyboard_reaches_every_control(browser: Any, admin: str) -> None:
    """Tab goes through all links, buttons and fields, each with a visible focus."""
    console = Console(browser, admin)
    address = f"#/topics/{LONG}/groups/workers"
    console.open(address)
    page = console.page
    controls = page.locator("a:visible, button:visible, input:visible, select:visible").count()
    reached = set()
    page.evaluate("document.activeElement.blur()")
    for _ in range(controls + 20):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "() => { const one = document.activeElement; const style = getComputedStyle(one);"
                " return [one.tagName, one.textContent, one.getAttribute('aria-label'), one.id,"
                " style.outlineStyle !== 'none' || one === document.body].join('|'); }"
            )
        )
    assert not [one for one in reached if one.endswith("|false")]
    names = " ".join(reached)
    for wanted in ("Topics", "Pause …", "Seek …", "Replay …", "end the lease", "INPUT"):
        assert wanted in names
    page.get_by_role("link", name="Groups").focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Groups, by topic").wait_for()
    assert page.evaluate("document.activeElement.id") == "view"
    console.context.close()


def test_screenshots_of_a_broker_under_load(browser: Any, tmp_path: Path) -> None:
    """Those of the documentation, of each view: desktop and phone, light and dark."""
    pictures = take(browser, tmp_path / "pictures", load_seconds=5)
    text = MONITORING.read_text().partition("\n.. screenshots::\n\n")[2].partition("\n\n")[0]
    names = re.findall(r"^   (\w+): ", text, re.MULTILINE)
    looks = ("-light.png", "-dark.png", "-phone-light.png", "-phone-dark.png")
    assert {path.name for path in pictures} == {name + look for name in names for look in looks}
    views = (CONSOLE / "console.js").read_text().partition("const VIEWS = [")[2].partition("];")[0]
    assert len(names) == len(views.strip().splitlines()) + len(("overview", "seek", "condition"))
    for path in pictures:
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000
