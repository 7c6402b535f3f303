"""``brokerctl tail``."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgpack
import pytest

from brokerd.cli.records import record_line
from brokerd.cli.verbs import tail
from simulator.machine.bare import FORGETFUL
from tests.admin.caller import Caller
from tests.broker.desk import produce
from tests.broker.test_state import entries, is_records, rot
from tests.cli.shell import Shell
from tests.house import House


@pytest.fixture
def full(shell: Shell) -> Shell:
    """Two partitions with three records each."""
    shell.run("topic", "create", "orders", "--partitions", "2")
    for partition in ("0", "1"):
        shell.run("produce", "orders", "--lines", "--partition", partition, input="a\nb\nc\n")
    return shell


def test_a_long_key_or_value_is_cut_for_people(shell: Shell) -> None:
    """A terminal would be busy with it for minutes."""
    shell.run("produce", "orders", "x" * 4_000, "--key", "k" * 4_000)
    shell.run("produce", "orders", "x" * 1_234_567, "--key", "k" * 4_001)
    whole, cut = shell.lines("tail", "orders")
    assert whole.endswith(f"  key={'k' * 4_000}  {'x' * 4_000}")
    tail = "... (1,234,567 characters; --json has all)"
    key = f"key={'k' * 4_000}... (4,001 characters; --json has all)"
    assert cut.endswith(f"  {key}  {'x' * 4_000}{tail}")
    _, line = shell.lines("--json", "tail", "orders")
    assert len(json.loads(line)["value"]) == 1_234_567


def places(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines]


def test_records_are_printed_one_a_line(full: Shell) -> None:
    lines = full.lines("tail", "orders")
    assert places(lines) == ["0:0", "0:1", "0:2", "1:0", "1:1", "1:2"]
    assert lines[0] == "0:0  2023-11-14 22:13:20.000Z  a"
    first = json.loads(full.lines("--json", "tail", "orders")[0])
    assert (first["partition"], first["offset"], first["value"]) == (0, 0, "a")


@pytest.mark.parametrize(
    ("options", "shows"),
    [
        (["--partition", "1"], ["1:0", "1:1", "1:2"]),
        (["--from", "2"], ["0:2", "1:2"]),
        (["--from", "end"], []),
        (["--from", "start", "--max", "2"], ["0:0", "0:1"]),
        (["--max", "0"], []),
    ],
)
def test_some_of_them_are_printed(full: Shell, options: list[str], shows: list[str]) -> None:
    assert places(full.lines("tail", "orders", *options)) == shows


def test_it_begins_at_a_time(shell: Shell) -> None:
    """In each partition with its first record from then on."""
    shell.run("topic", "create", "orders", "--partitions", "2")
    for value in "ab":
        for partition in ("0", "1"):
            shell.run("produce", "orders", value, "--partition", partition)
        shell.caller.house.pass_time(60, 1)
    time_of_b = json.loads(shell.lines("--json", "tail", "orders", "--from", "1")[0])["append_time"]
    assert places(shell.lines("tail", "orders", "--from-time", time_of_b)) == ["0:1", "1:1"]
    assert len(shell.lines("tail", "orders", "--from-time", "2023-01-01")) == 4
    assert shell.lines("tail", "orders", "--from-time", "2024-01-01") == []
    assert "not both" in shell.misused("tail", "orders", "--from", "1", "--from-time", "10m")
    assert "is not a time" in shell.misused("tail", "orders", "--from-time", "soon")


def test_records_are_chosen_by_key_and_value(shell: Shell) -> None:
    for value, *rest in (
        ("apple pie", "--key", "k1"),
        ("apple", "--key", "k10"),
        ("pear", "--key", "k1"),
        ("pie",),
        ('{"kind": "apple", "n": 7}', "--as", "json", "--key", "k1"),
        ("tab\tapple",),
    ):
        shell.run("produce", "orders", value, *rest)
    for options, expected in (
        (("--key", "k1"), ["0:0", "0:2", "0:4"]),
        (("--filter", "apple"), ["0:0", "0:1", "0:4", "0:5"]),
        (("--filter", "^p"), ["0:2", "0:3"]),
        (("--filter", '"n": [0-9]'), ["0:4"]),
        (("--filter", "tab\t"), ["0:5"]),
        (("--key", "k1", "--filter", "apple", "--max", "1"), ["0:0"]),
        (("--key", "none"), []),
    ):
        assert places(shell.lines("tail", "orders", *options)) == expected, options
    assert "not a regular expression" in shell.misused("tail", "orders", "--filter", "(")


def test_following_prints_what_comes(full: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the end on, unless told otherwise, and asks again after a while."""
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        full.caller.post("/topics/orders/records", {"records": [{"value": "new", "partition": 1}]})

    monkeypatch.setattr(tail, "sleep", sleep)
    assert places(full.lines("tail", "orders", "--follow", "--max", "2")) == ["1:3", "1:4"]
    assert waited == [0.5, 0.5]


def test_an_interrupt_ends_it_quietly(full: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is how following ends."""

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tail, "sleep", interrupt)
    result = full.run("tail", "orders", "--follow", "--from", "2")
    assert (result.exit_code, result.stderr) == (0, "")
    assert places(result.stdout.splitlines()) == ["0:2", "1:2"]


def test_more_than_a_page_is_printed(shell: Shell) -> None:
    values = "\n".join(map(str, range(1_201)))
    shell.run("produce", "orders", "--lines", input=values)
    assert [line.split()[-1] for line in shell.lines("tail", "orders")] == values.split()


def test_it_goes_on_behind_what_is_gone(shell: Shell) -> None:
    """Records that expired, those that were removed, and those at the end too."""
    shell.run("produce", "orders", "--lines", "--ttl", "5", input="a\nb\n")
    shell.run("produce", "orders", "c")
    shell.run("produce", "orders", "d", "--ttl", "5")
    shell.caller.house.pass_time(6, 1)
    assert places(shell.lines("tail", "orders")) == ["0:2"]
    shell.run("topic", "trim", "orders", "--offset", "3", "--yes")
    assert places(shell.lines("tail", "orders", "--from", "0")) == []


def test_it_goes_on_behind_damage_and_says_so(shell: Shell) -> None:
    """The damage stands on stderr, where no program reads records."""
    house = House(settings=FORGETFUL)
    for number in range(3):
        produce(house, "orders", b"%d" % number)
        house.run()
    house.pass_time(0.5)
    house.disk.crash()
    hit = is_records(1, 1)
    [(name, _, entry)] = [place for place in entries(house) if hit(place[2].entry)]
    rot(house, name, entry.position + 48)
    shell.caller = Caller(house.again())
    result = shell.run("tail", "orders")
    assert places(result.stdout.splitlines()) == ["0:0", "0:2"]
    assert result.stderr.startswith("brokerctl: ") and name in result.stderr


def test_what_is_not_there_is_refused(full: Shell) -> None:
    assert "no topic 'none'" in full.refused("tail", "none")
    assert "2 partitions" in full.misused("tail", "orders", "--partition", "2")
    text = full.misused("tail", "orders", "--from", "middle")
    assert "'middle' is neither start nor end nor an offset" in text


def test_following_has_a_short_name(full: Shell) -> None:
    assert full.lines("tail", "orders", "-f", "--from", "2", "--max", "2")[0].endswith("  c")


def record(**given: Any) -> dict[str, Any]:
    shown = {
        "partition": 0,
        "offset": 5,
        "append_time": "2023-11-14T22:13:20.250000Z",
        "encoding": "bytes",
        "value": None,
        "value_base64": None,
        "key": None,
        "key_base64": None,
    }
    return shown | given


def b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def packed(value: Any) -> dict[str, Any]:
    return {"encoding": "msgpack", "value_base64": b64(msgpack.packb(value))}


@pytest.mark.parametrize(
    ("given", "shows"),
    [
        ({"value": "two\nlines\x1b[2J"}, "two\\nlines\\x1b[2J"),
        ({"value": "häß"}, "häß"),
        ({"value_base64": b64(b"\xff\x00a")}, "b'\\xff\\x00a'"),
        ({"encoding": "msgpack", "value": {"n": [1, "ü\n"]}}, '{"n": [1, "ü\\n"]}'),
        (packed(None), "null"),
        (packed({"blob": b"\xff"}), '{"blob": "b\'\\\\xff\'"}'),
        (packed({1: [2.5, None]}), '{"1": [2.5, null]}'),
        ({"encoding": "msgpack", "value_base64": b64(b"\xc1")}, "b'\\xc1'"),
        ({"value": "v", "key": "k\t"}, "key=k\\t  v"),
        ({"value": "v", "key_base64": b64(b"\xff")}, "key=b'\\xff'  v"),
    ],
)
def test_a_record_is_one_line_that_drives_no_terminal(given: dict[str, Any], shows: str) -> None:
    """Binary and control characters are escaped, whoever produced them."""
    assert record_line(record(**given)) == f"0:5  2023-11-14 22:13:20.250Z  {shows}"


def test_a_new_topic_of_the_same_name_is_not_read_on(
    full: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first records were left out, up to the offset of the deleted one."""

    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) > 1:
            raise KeyboardInterrupt
        full.run("topic", "delete", "orders", "--yes")
        full.run("topic", "create", "orders", "--partitions", "2")
        full.run("produce", "orders", "new", "--partition", "0")

    monkeypatch.setattr(tail, "sleep", sleep)
    result = full.run("tail", "orders", "--follow")
    assert result.exit_code == 1 and result.stdout == ""
    assert "topic 'orders' was deleted, and another one" in str(result.exception)
