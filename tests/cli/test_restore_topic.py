"""``brokerctl archive restore-topic``: the records of an archive are in a new topic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import pytest

from brokerd.archive.contract.layout import RECORDS
from brokerd.archive.delta.table import Table
from brokerd.archive.run import Settings
from brokerd.cli.server import Answer, Server
from brokerd.errors import BrokerdError
from tests.archive.data import MIB, Data
from tests.archive.inline import ingest_inline
from tests.archive.making import LOG_ID
from tests.archive.test_erase import erase, rows
from tests.cli.shell import Shell


@pytest.fixture
def data(tmp_path: Path) -> Data:
    """Records with everything that a record may have, in two partitions of two topics."""
    data = Data(tmp_path / "data")
    odd = msgpack.packb({b"h": b"\xff"})
    for turn in range(3):
        for topic_id in (1, 17):
            values = [msgpack.packb({"turn": turn}), b"text", b"\xff\x00", b""]
            data.append(
                *(topic_id, 0, *values),
                keys=[b"customer-7", None, b"\xff", b""],
                metadata=[msgpack.packb({"trace": turn}), None, odd, None],
                encodings=[2, 1, 0, 0],
                producer_time=[turn, None, -5, None],
            )
            data.append(topic_id, 1, b"%d" % turn)
        data.log.seal()
        data.roll_up()
    data.publish()
    return data


def restore(shell: Shell, data: Data, *more: str) -> Any:
    archive = f"--archive={data.root}"
    return shell.json("archive", "restore-topic", "--topic", "topic-1", archive, *more)


def read(shell: Shell, topic: str, partition: int) -> list[Answer]:
    path = f"/topics/{topic}/records?partition={partition}&offset=0&limit=100"
    found: list[Answer] = shell.caller.get(path)[1]["records"]
    return found


def test_a_copy_has_all_but_the_offsets(shell: Shell, data: Data) -> None:
    """Keys, values, metadata and times, in order; erased records leave no holes."""
    erase(data, data.root)
    answer = restore(shell, data, "--into", "copy")
    assert (answer["records"], answer["topic_id"]) == (12, 1)
    assert answer["partitions"] == [
        {"partition": 0, "records": 9, "first": 1, "last": 11, "skipped": 0},
        {"partition": 1, "records": 3, "first": 0, "last": 2, "skipped": 0},
    ]
    found = read(shell, "copy", 0)
    assert [one["offset"] for one in found] == list(range(9))
    first, second, third = found[:3]
    assert (first["value"], first["key"], first["encoding"]) == ("text", None, "text")
    assert (second["value_base64"], second["key_base64"]) == ("/wA=", "/w==")
    assert (second["producer_time"], second["metadata"]) == (-5, None)
    assert second["metadata_base64"] == "gcQBaMQB/w=="
    assert (third["value"], third["key"], third["metadata"]) == ("", "", None)
    archived = [row for row in rows(data.root) if row[1] == 1 and row[2] == 0]
    times = sorted(int(row[4].timestamp() * 1_000_000) for row in archived)
    assert first["producer_time"] == times[0]
    assert [one["value"] for one in read(shell, "copy", 1)] == ["0", "1", "2"]


def test_offsets_are_mapped(shell: Shell, data: Data, tmp_path: Path) -> None:
    """A line for each run of offsets without a hole."""
    erase(data, data.root)
    path = tmp_path / "offsets.csv"
    restore(shell, data, "--into", "copy", "--offsets", str(path))
    assert path.read_text().splitlines() == [
        "partition,old_offset,new_offset,records",
        "0,1,0,3",
        "0,5,3,3",
        "0,9,6,3",
        "1,0,0,3",
    ]


@pytest.mark.parametrize("as_json", [False, True])
def test_offsets_on_stdout_stand_alone(shell: Shell, data: Data, as_json: bool) -> None:
    verb = ("archive", "restore-topic", f"--archive={data.root}", "--topic", "topic-1")
    options = ("--into", "copy", "--offsets", "-", *(["--json"] if as_json else []))
    result = shell.run(*verb, *options)
    head, *rows = result.stdout.splitlines()
    assert head == "partition,old_offset,new_offset,records"
    assert all(len(row.split(",")) == 4 and row.replace(",", "").isdigit() for row in rows)
    assert rows and ("copied" in result.stderr or json.loads(result.stderr)["into"] == "copy")


def test_an_interrupted_copy_goes_on(
    shell: Shell, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record is in the new topic once."""
    monkeypatch.setattr("brokerd.cli.verbs.restore_topic.BATCH_RECORDS", 5)
    post = Server.post
    calls: list[Any] = []

    def dying(server: Server, *parts: str | int, **body: Any) -> Answer:
        calls.append(parts)
        if len(calls) == 3:  # the topic, five records, and then
            raise BrokerdError("the connection is lost")
        return post(server, *parts, **body)

    with monkeypatch.context() as patch:
        patch.setattr(Server, "post", dying)
        text = shell.refused(
            *("archive", "restore-topic", "--topic", "topic-1", f"--archive={data.root}"),
            *("--into", "copy"),
        )
    assert text == "the connection is lost"
    assert len(read(shell, "copy", 0)) == 5
    text = shell.refused(
        *("archive", "restore-topic", "--topic", "topic-1", f"--archive={data.root}"),
        *("--into", "copy"),
    )
    assert "there is a topic 'copy' already" in text
    answer = restore(shell, data, "--into", "copy", "--resume")
    assert answer["partitions"][0]["skipped"] == 5
    restore(shell, data, "--into", "whole")
    for partition in (0, 1):
        both = [read(shell, name, partition) for name in ("copy", "whole")]
        for one in (*both[0], *both[1]):
            del one["append_time"]
        assert both[0] == both[1]


@pytest.mark.parametrize("count", [5, 6, 7, 8])
def test_a_copy_goes_on_with_its_version_alone(
    shell: Shell, data: Data, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a removal from the archive the places of its records are others."""
    version = Table(data.root, RECORDS, LOG_ID).version
    post = Server.post

    def dying(server: Server, *parts: str | int, **body: Any) -> Answer:
        if "records" in body and read(shell, "copy", 0):
            raise BrokerdError("the connection is lost")
        return post(server, *parts, **body)

    arguments = ("archive", "restore-topic", "--topic", "topic-1", f"--archive={data.root}")
    with monkeypatch.context() as patch:
        patch.setattr(Server, "post", dying)
        patch.setattr("brokerd.cli.verbs.restore_topic.BATCH_RECORDS", count)
        assert shell.refused(*arguments, "--into", "copy") == "the connection is lost"
    erase(data, data.root, deletes_now=False)
    text = shell.refused(*arguments, "--into", "copy", "--resume")
    assert text.startswith("the last record of partition 0 of topic 'copy' is not the one at its")
    answer = restore(shell, data, "--into", "copy", "--resume", f"--version={version}")
    assert answer["records"] == 15
    restore(shell, data, "--into", "whole", f"--version={version}")
    both = [read(shell, name, 0) for name in ("copy", "whole")]
    for one in (*both[0], *both[1]):
        del one["append_time"]
    assert both[0] == both[1]


def test_an_earlier_version_has_what_was_erased(shell: Shell, data: Data) -> None:
    """While its files exist."""
    version = Table(data.root, RECORDS, LOG_ID).version
    erase(data, data.root, deletes_now=False)
    answer = restore(shell, data, "--into", "copy", f"--version={version}")
    assert (answer["records"], answer["version"]) == (15, version)
    erase(data, data.root)
    arguments = ("archive", "restore-topic", "--topic", "topic-1", f"--archive={data.root}")
    text = shell.refused(*arguments, "--into", "late", f"--version={version}")
    assert "cannot be read" in text
    text = shell.refused(*arguments, "--into", "late", "--version=99")
    assert "has no version 99; the newest is" in text


def test_a_topic_that_is_not_there_is_refused(shell: Shell, data: Data, tmp_path: Path) -> None:
    """Nothing is created."""
    arguments = ("archive", "restore-topic", "--into", "copy")
    text = shell.refused(*arguments, "--topic", "t", f"--archive={data.root}")
    assert text.endswith("has no records of a topic 't'")
    text = shell.refused(*arguments, "--topic", "t", "--topic-id=5", f"--archive={data.root}")
    assert text.endswith("has no records of topic 't' with the id 5")
    text = shell.refused(*arguments, "--topic", "t", f"--archive={tmp_path / 'none'}")
    assert text.endswith("does not exist: nothing was archived there")
    assert shell.json("topic", "list")["topics"] == []


def test_a_name_that_two_topics_had_needs_an_id(shell: Shell, data: Data) -> None:
    """The refusal names the ids."""
    data.append(33, 0, b"newer")
    data.log.seal()
    bounds = data.bounds()
    index = next(at for at, one in enumerate(bounds.topics) if one.id == 33)
    renamed = type(bounds.topics[index])(33, "topic-1", 0, False, bounds.topics[index].partitions)
    bounds.topics[index] = renamed
    ingest_inline(data.root, data.wal, bounds, Settings(file_bytes=MIB))
    arguments = ("archive", "restore-topic", "--topic", "topic-1", f"--archive={data.root}")
    text = shell.refused(*arguments, "--into", "copy")
    assert "with the ids 1, 33: give one by --topic-id" in text
    assert restore(shell, data, "--into", "copy", "--topic-id=33")["records"] == 1
