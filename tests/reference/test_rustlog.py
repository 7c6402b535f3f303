"""RustLog's own programs, as its notes describe them, against a real broker."""

from __future__ import annotations

import json

import pytest

from benchmarks.process import BrokerProcess
from tests.reference import rustlog


@pytest.fixture
def address(broker: BrokerProcess) -> str:
    """Where RustLog listens, which is where FlyMQ does."""
    return broker.address_of("rustlog")


class Shell:
    """Runs a program and gives its exit code and what it printed."""

    def __init__(self, address: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._address = address
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str]:
        """The last stream that has anything: an error stands alone."""
        code = rustlog.main(["--address", self._address, *arguments])
        printed = self._capsys.readouterr()
        return code, printed.out + printed.err


@pytest.fixture
def shell(address: str, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A shell whose programs dial the broker."""
    return Shell(address, capsys)


def test_ping_prints_pong(shell: Shell) -> None:
    """The smallest program."""
    assert shell("ping") == (0, "Pong\n")


def test_producer_and_consumer_before_and_after_the_topic_exists(shell: Shell) -> None:
    """The producer fails until the admin program has made ``demo``; then a consumer sees all."""
    refused = "error 10: Topic or partition does not exist: topic=demo, partition=0\n"
    assert shell("producer") == (1, refused)
    assert shell("consumer") == (1, refused)
    created = {"partitions": 2, "success": True, "topic": "demo"}
    code, printed = shell("admin", "create-topic", "demo", "--partitions", "2")
    assert (code, json.loads(printed)) == (0, created)

    assert shell("consumer") == (0, "")
    assert shell("producer") == (0, "produced 3 records at offset 0\n")
    everything = "0: hello\n1: from\n2: rustlog\n"
    assert shell("consumer") == (0, everything)
    # A new group gets all of it in its first run, by the rule of the protocol document.
    assert shell("consumer", "--group", "g") == (0, everything + "committed 3\n")
    assert shell("consumer", "--group", "g") == (0, "committed 3\n")
    assert shell("producer") == (0, "produced 3 records at offset 3\n")
    assert shell("consumer", "--group", "g") == (
        0,
        "3: hello\n4: from\n5: rustlog\ncommitted 6\n",
    )
    assert shell("consumer", "--group", "other")[1].startswith(everything)

    described = {
        "topic": "demo",
        "partition_count": 2,
        "partitions": [
            {"partition": 0, "high_watermark": 6},
            {"partition": 1, "high_watermark": 0},
        ],
    }
    code, printed = shell("admin", "describe-topic", "demo")
    assert (code, json.loads(printed)) == (0, described)
    code, printed = shell("admin", "describe-partition", "demo", "0")
    assert (code, json.loads(printed)["high_watermark"]) == (0, 6)


def test_simple_client_goes_on_after_errors(shell: Shell) -> None:
    """It fails on nothing: without its topic two errors, with it three records."""
    refused = "error 10: Topic or partition does not exist: topic=events, partition=0\n"
    assert shell("simple-client") == (0, f"Pong\n{refused}{refused}")
    shell("admin", "create-topic", "events", "--partitions", "1")
    assert shell("simple-client") == (
        0,
        "Pong\n(0, 3)\n[b'event-1', b'event-2', b'event-3']\n",
    )


def test_metrics_client_prints_prometheus_text(shell: Shell) -> None:
    """The names that the reference broker has."""
    code, printed = shell("metrics-client")
    assert code == 0
    for name in ("messages_produced_total", "messages_fetched_total", "active_connections"):
        assert f"# TYPE {name} " in printed


def test_admin_lists_topics_sorted_by_name(shell: Shell) -> None:
    """Those it made among them, with their partitions."""
    for name, partitions in (("z-listed", "3"), ("a-listed", "1")):
        assert shell("admin", "create-topic", name, "--partitions", partitions)[0] == 0
    code, printed = shell("admin", "list-topics")
    topics = json.loads(printed)
    assert code == 0
    assert {"name": "z-listed", "partitions": 3} in topics
    assert {"name": "a-listed", "partitions": 1} in topics
    names = [topic["name"] for topic in topics]
    assert names == sorted(names)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("create-topic", "taken", "--partitions", "1"), "error 11: Topic 'taken' already exists"),
        (("create-topic", "none", "--partitions", "0"), "error 12: Invalid partition count: 0"),
        (
            ("describe-topic", "absent"),
            "error 13: DescribeTopic failed: Topic 'absent' not found",
        ),
        (
            ("describe-partition", "taken", "5"),
            "error 14: DescribePartition failed: Partition 5 not found in topic 'taken'",
        ),
    ],
)
def test_admin_leaves_with_1_on_an_error_answer(
    shell: Shell, arguments: tuple[str, ...], error: str
) -> None:
    """Codes and texts of the reference broker."""
    shell("admin", "create-topic", "taken", "--partitions", "1")
    assert shell("admin", *arguments) == (1, error + "\n")
