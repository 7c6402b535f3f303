"""A real browser shows the console of a real broker: its views, and names that look like HTML."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from benchmarks.process import BrokerProcess
from brokerd.cli import output
from brokerd.client.mamamia import MamamiaClient
from brokerd.codecs.mamamia import Acquire, Produce
from tests.admin.browser import CHROMIUM, Console, browser_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="there is no Chromium here (Debian: apt-get install chromium)"
    ),
]

TOPIC = "<img src=x onerror=\"document.title='broken'\">/1"
GROUP = "<i>workers</i>"
VALUE = "</pre><script>document.title='broken'</script>"
ESCAPED = "&lt;/pre&gt;&lt;script&gt;document.title='broken'&lt;/script&gt;"
SCHEMA = "orders"
LARGE = 2**64 - 1
BROWSE = f"#/topics/{quote(TOPIC, safe='')}"
IN_GROUP = f"{BROWSE}/groups/{quote(GROUP, safe='')}"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """A broker with a topic, a group and records whose texts look like HTML."""
    directory = tmp_path_factory.mktemp("console")
    with (
        BrokerProcess(directory / "data", directory / "log", formats=("mamamia",)) as broker,
        browser_of() as browser,
    ):
        broker.start()
        console = Console(browser, broker.admin)
        topic = f"topics/{quote(TOPIC, safe='')}"
        console.post("topics", {"name": TOPIC, "partitions": 2})
        records = [
            {"value": VALUE, "key": "<b>k</b>", "partition": 0},
            {"value": {"order": 17}, "partition": 0},
            {"value_base64": "AP/+gA==", "partition": 0},
            {"value": '{"id": 12345678901234567890}', "partition": 0},
            {"value": {"id": LARGE, "ratio": 1.0}, "partition": 0},
        ]
        console.post(f"{topic}/records", {"records": records})
        console.post(f"{topic}/groups/{quote(GROUP, safe='')}/pause", {"create": True})
        delayed = {"value": "<u>later</u>", "delay_seconds": 3_600, "partition": 0}
        console.post(f"{topic}/records", {"records": [delayed]})
        console.post(
            "users", {"name": "<em>ann</em>", "password": "long enough 17", "roles": ["monitor"]}
        )
        console.post("keys", {"user": "<em>ann</em>", "label": "<em>laptop</em>"})
        schema = {"type": "json", "definition": '{"title": "<s>x</s>"}'}
        console.post(f"schemas/{SCHEMA}/versions", schema)
        for number in range(120):
            console.post("topics", {"name": f"other-{number}"})
        yield console


def test_the_overview_draws_charts(console: Console) -> None:
    """After two samples, each of the four charts has its lines."""
    page = console.visit("")
    page.locator("svg").nth(3).wait_for()
    page.locator("polyline[points]").nth(7).wait_for(state="attached")
    document = page.content()
    assert document.count("<svg") == 4
    assert document.count('<polyline class="line line-0" points="') == 4
    assert 'aria-label="records in groups: lag 5, leased 0, dead 0"' in document


def test_the_overview_shows_the_memory_of_clients(console: Console) -> None:
    """The whole budget, and each kind with its use and its limit."""
    page = console.visit("")
    page.get_by_text("memory of clients").wait_for()
    shown = page.locator("#facts").inner_text()
    memory = console.get("status")["memory"]
    assert f"0 B of {output.size(memory['budget_bytes'])}" in shown
    for kind, limit in memory["kind_limit_bytes"].items():
        assert f"… of {kind}\n0 B of at most {output.size(limit)}" in shown


def test_topics_come_in_pages(console: Console) -> None:
    """A page has 100 topics and links the next one."""
    first = console.open("#/topics")
    assert "other-98</a>" in first and "other-99<" not in first
    assert 'href="#/topics?first=100"' in first
    second = console.open("#/topics?first=100")
    assert "other-99</a>" in second and "other-119</a>" in second and "next page" not in second


def test_a_topic_shows_its_records_as_text(console: Console) -> None:
    """Text, MessagePack and other bytes; no text becomes an element."""
    document = console.open(f"{BROWSE}?partition=0&offset=0")
    assert "offsets 0 to 5 (exclusive): 5 records shown" in document
    assert f"<pre>{ESCAPED}</pre>" in document and "&lt;b&gt;k&lt;/b&gt;" in document
    assert '"order": 17' in document and "0000  00 ff fe 80" in document
    assert '"id": 12345678901234567890\n' in document
    assert f'"id": {LARGE},\n "ratio": 1.0\n' in document
    assert "onerror=" in document and "<img" not in document


def test_the_search_shows_only_records_that_match(console: Console) -> None:
    """Keys and values are searched; with hex, a match shows its bytes."""
    document = console.open(f"{BROWSE}?partition=0&offset=0&text=order&hex=yes")
    assert "offsets 0 to 5 (exclusive): 1 records shown" in document
    assert "81 a5 6f 72 64 65 72 11" in document


def test_a_topic_shows_its_delayed_messages(console: Console) -> None:
    """The beginning of the value shows as text."""
    document = console.open(BROWSE)
    assert 'aria-label="delayed messages"' in document
    assert '<td class="">&lt;u&gt;later&lt;/u&gt;</td>' in document


def test_a_schema_shows_the_text_of_its_versions(console: Console) -> None:
    """The list links the last version."""
    assert f'href="#/schemas/{SCHEMA}/1"' in console.open("#/schemas")
    document = console.open(f"#/schemas/{SCHEMA}/1")
    assert '<pre>{"title": "&lt;s&gt;x&lt;/s&gt;"}</pre>' in document


def test_a_group_shows_its_position(console: Console) -> None:
    """State, lag, leases and dead letters."""
    document = console.open(IN_GROUP)
    assert "<dt>state</dt><dd>paused</dd>" in document
    assert "<dt>lag</dt><dd>5</dd>" in document
    assert 'aria-label="leases"' in document and 'aria-label="dead letters"' in document
    assert "<i>" not in document


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("#/groups", "&lt;i&gt;workers&lt;/i&gt;</a>"),
        ("#/connections", 'aria-label="connections"'),
        ("#/archive", "<dt>usable</dt>"),
        ("#/security", "<dt>security</dt><dd>off</dd>"),
        ("#/security", "&lt;em&gt;laptop&lt;/em&gt;</td>"),
        (
            "#/security",
            '&lt;em&gt;ann&lt;/em&gt;</td><td class="">monitor</td><td class="">yes</td>',
        ),
        ("#/audit", 'role="alert">the audit trail is off'),
        ("#/transactions", "<dt>open</dt><dd>0</dd>"),
        ("#/clock", "<dt>broker time is trusted</dt><dd>yes</dd>"),
        ("#/configuration?text=data_dir", ">data_dir</td>"),
        ("#/configuration?given=yes", ">--admin</td>"),
        ("#/topics/absent", 'role="alert">there is no topic'),
        ("#/nonsense", 'role="alert">this page does not exist'),
    ],
)
def test_the_other_views(console: Console, address: str, text: str) -> None:
    """Each view appears, or says why it cannot."""
    assert text in console.open(address)


def test_topics_and_groups_with_names_that_browsers_drop_from_paths(console: Console) -> None:
    """``.`` and ``..``, to look at and to change."""
    dots, group = {"path.topic": ".."}, {"path.topic": "..", "path.group": "."}
    console.post("topics", {"name": ".."})
    console.post(f"topics/-/records?{urlencode(dots)}", {"records": [{"value": "dotted"}]})
    console.post(f"topics/-/groups/-/pause?{urlencode(group)}", {"create": True})
    document = console.open("#/topics/..?partition=0&offset=0")
    assert "<pre>dotted</pre>" in document and 'href="#/topics/../groups/."' in document
    page = console.visit("#/topics/../groups/.")
    console.choose("Resume …")
    console.press("Resume")
    assert console.notice() == "Group . is resumed."
    console.visit("#/topics/..")
    console.choose("delete topic ..")
    console.fill("Type .. to confirm", "..")
    console.press("Delete the topic")
    assert console.notice() == "Topic .. is deleted."
    assert page.url.endswith("#/topics")


def test_ten_thousand_topics_with_a_group_each(console: Console, tmp_path: Path) -> None:
    """Each page has a part of them; the overview has the groups with the largest lag."""
    with BrokerProcess(tmp_path / "data", tmp_path / "log", formats=("mamamia",)) as broker:
        broker.start()
        with MamamiaClient(broker.address) as client:
            for first in range(0, 10_000, 500):
                topics = [f"topic-{number}" for number in range(first, first + 500)]
                client.send_many([Produce(topic, b"x") for topic in topics])
                client.send_many([Acquire(topic, "g", "w") for topic in topics])
        console = Console(console.context.browser, broker.admin)
        page = console.visit("#/topics?first=9900")
        rows = page.locator("#view tbody tr")
        assert rows.count() == 100 and "topic-9999" in rows.last.inner_text()
        page = console.visit("#/groups?first=9900")
        assert rows.count() == 100 and "topic-9999" in rows.last.inner_text()
        page = console.visit("")
        page.get_by_text("and 9,950 more with less lag").wait_for()
        assert page.locator("#groups tr").count() == 51
