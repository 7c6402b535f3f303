"""``brokerctl produce``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.errors import NoSpace
from brokerd.values import ADMIN_RECORD_BYTES
from tests.cli.shell import Shell


def records(shell: Shell) -> list[dict[str, object]]:
    return [json.loads(line) for line in shell.lines("--json", "tail", "orders")]


def test_a_value_is_produced_with_all_that_goes_with_it(shell: Shell) -> None:
    options = ("--key", "k", "--partition", "0", "--ttl", "1h", "--metadata", '{"n": [1]}')
    assert shell.lines("produce", "orders", "hello", *options) == ["partition 0 offset 0"]
    (record,) = records(shell)
    told = {name: record[name] for name in ("value", "encoding", "key", "metadata")}
    assert told == {"value": "hello", "encoding": "text", "key": "k", "metadata": {"n": [1]}}
    assert record["expires_at"] is not None
    assert shell.json("produce", "orders", "x") == {
        "topic": "orders",
        "records": [{"partition": 0, "offset": 1}],
    }


@pytest.mark.parametrize("never", ["none", "0"])
def test_a_record_may_never_expire_whatever_its_topic_says(shell: Shell, never: str) -> None:
    shell.run("topic", "create", "orders", "--ttl", "1h")
    for options in (["--ttl", never], ["--ttl", "default"], []):
        shell.lines("produce", "orders", "x", *options)
    assert [one["expires_at"] is None for one in records(shell)] == [True, False, False]


def test_a_record_that_expires_before_it_appears_is_refused(shell: Shell) -> None:
    text = shell.misused("produce", "orders", "x", "--delay", "10m", "--ttl", "5m")
    assert "--delay is not shorter than --ttl" in text
    assert "id 0" in shell.lines("produce", "orders", "x", "--delay", "10m", "--ttl", "0")[0]


@pytest.mark.parametrize(
    ("raw", "options", "value", "encoding"),
    [
        ("häß".encode(), [], "häß", "text"),
        (b"\xff\x00", [], None, "bytes"),
        (b"plain", ["--as", "bytes"], "plain", "bytes"),
        (b'{"n": 1}', ["--as", "json"], {"n": 1}, "msgpack"),
        (b'{"n": 1}', [], '{"n": 1}', "text"),
        (b'"text"', ["--as", "json"], "text", "msgpack"),
        (b"two\nlines\n", [], "two\nlines\n", "text"),
        (b"", [], "", "text"),
    ],
)
def test_a_file_is_one_value(
    shell: Shell, tmp_path: Path, raw: bytes, options: list[str], value: object, encoding: str
) -> None:
    """Text if it is UTF-8, else bytes, unless --as says otherwise; - is stdin."""
    path = tmp_path / "value"
    path.write_bytes(raw)
    shell.lines("produce", "orders", "--file", str(path), *options)
    shell.lines("produce", "orders", "--file", "-", *options, input=raw)
    assert [(one["value"], one["encoding"]) for one in records(shell)] == [(value, encoding)] * 2


def test_lines_are_a_record_each(shell: Shell) -> None:
    assert shell.lines("produce", "orders", "--lines", input=b"a\r\n\nc") == ["3 records"]
    assert [record["value"] for record in records(shell)] == ["a", "", "c"]
    assert shell.lines("produce", "orders", "--lines", input=b"") == ["0 records"]


def test_many_lines_are_a_few_requests(shell: Shell) -> None:
    """Each is told as it is done, in JSON."""
    lines = "".join(f"{number}\n" for number in range(2_500))
    told = shell.lines("--json", "produce", "orders", "--lines", input=lines)
    assert [len(json.loads(line)["records"]) for line in told] == [1_000, 1_000, 500]
    assert [record["value"] for record in records(shell)] == [str(n) for n in range(2_500)]


def test_requests_are_small_and_a_large_record_goes_alone(shell: Shell) -> None:
    """Whatever it holds: escaped as JSON, control characters take six times their size."""
    large = "\x01" * 3_000_000
    lines = f"a\n{large}\nb\n" + "x" * 600_000 + "\n" + "y" * 600_000 + "\n"
    told = shell.lines("--json", "produce", "orders", "--lines", input=lines)
    assert [len(json.loads(line)["records"]) for line in told] == [1, 1, 2, 1]
    found = records(shell)
    assert [record["value"] for record in found][:3] == ["a", large, "b"]
    assert {record["encoding"] for record in found} == {"text"}
    many = "".join(f"{number}\n" for number in range(300))
    metadata = json.dumps({"note": "z" * 10_000})
    told = shell.lines("--json", "produce", "t", "--lines", "--metadata", metadata, input=many)
    assert len(told) == 3


def test_a_failure_in_the_middle_says_how_far_it_came(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = shell.caller.house.broker
    append_rows, done = broker.appender.append_rows, []

    def fail_late(*arguments: object) -> int:
        if done:
            raise NoSpace("the disk is full; free some space")
        done.append(0)
        return append_rows(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(broker.appender, "append_rows", fail_late)
    lines = "".join(f"{number}\n" for number in range(1_500))
    text = shell.refused("produce", "orders", "--lines", input=lines)
    assert text == "1000 records are in; then: the disk is full; free some space"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "name a VALUE"),
        (["x", "--lines"], "name a VALUE"),
        (["x", "--metadata", "[]"], "must be a JSON object"),
        (["x", "--metadata", "{"], "is not JSON"),
        (["x", "--delay", "soon"], "not a duration"),
        (["x", "--partition", "-1"], "not a number"),
        (["--file", "/not/there"], "/not/there"),
    ],
)
def test_wrong_usage_is_2(shell: Shell, arguments: list[str], part: str) -> None:
    assert part in shell.misused("produce", "orders", *arguments)


@pytest.mark.parametrize(
    ("raw", "kind", "part"),
    [(b"{", "json", "not JSON"), (b"\xff", "text", "not UTF-8"), (b"\xff", "json", "not JSON")],
)
def test_a_value_that_is_not_what_it_should_be_is_refused(
    shell: Shell, raw: bytes, kind: str, part: str
) -> None:
    text = shell.refused("produce", "orders", "--file", "-", "--as", kind, input=raw)
    assert part in text


def test_what_no_broker_takes_is_not_read(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a file nor a line without end fills memory."""
    monkeypatch.setattr("brokerd.cli.verbs.produce.ADMIN_RECORD_BYTES", 10)
    assert "longer than a record" in shell.refused("produce", "t", "--file", "-", input=b"x" * 11)
    assert "longer than a record" in shell.refused("produce", "t", "--lines", input=b"x" * 11)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_line_may_be_as_long_as_a_record(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    """Its end does not count."""
    monkeypatch.setattr("brokerd.cli.verbs.produce.ADMIN_RECORD_BYTES", 10)
    lines = (b"x" * 10 + end, b"y" * 11 + end)
    shell.run("produce", "orders", "--lines", input=lines[0])
    assert [record["value"] for record in records(shell)] == ["x" * 10]
    assert "longer than a record" in shell.refused("produce", "t", "--lines", input=lines[1])


def test_the_largest_record_that_is_read_is_taken(shell: Shell) -> None:
    """What is read here and what the broker takes have one limit."""
    raw = b"x" * ADMIN_RECORD_BYTES
    assert shell.run("produce", "orders", "--file", "-", input=raw).exit_code == 0
    text = shell.refused("produce", "orders", "--file", "-", input=raw + b"x")
    assert f"the file is longer than a record may be, {ADMIN_RECORD_BYTES} bytes" in text


def test_a_wrong_line_tells_how_many_records_are_in(shell: Shell) -> None:
    """Somebody who produces the whole file again stores these twice."""
    lines = b"x\n" * 1_500 + b"\xff\n"
    text = shell.refused("produce", "orders", "--lines", "--as", "text", input=lines)
    assert text.startswith("1000 records are in; then: a value is not UTF-8 text")
    assert shell.json("topic", "describe", "orders")["next_offsets"] == [1_000]
    text = shell.refused("produce", "orders", "--lines", "--as", "text", input=b"x\n\xff\n")
    assert text.startswith("a value is not UTF-8 text")


def test_an_interrupted_produce_tells_how_many_records_are_in(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines(source: object) -> Iterator[bytes]:
        yield from [b"x"] * 1_001
        raise KeyboardInterrupt

    monkeypatch.setattr("brokerd.cli.verbs.produce._lines", lines)
    text = shell.refused("produce", "orders", "--lines", input="")
    assert text == "1000 records are in; then: interrupted"
