"""Where records were removed, and records too large to be read: docs/cross-format.rst, `Gaps`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from brokerd.protocols.base.connection import Limits
from brokerd.values import Record
from tests.broker.colddesk import archive_all, cold_house
from tests.broker.fakearchive import FakeArchive
from tests.cross.format_clients import FORMAT_CLIENTS, Reply, records
from tests.cross.talk import TOPIC, Talk
from tests.house import House

MIB = 1 << 20
RECORDS = [b"%d" % number for number in range(6)]


def with_records(name: str) -> Talk:
    """A topic with records 0 to 5, which a BlipMQ subscription has not read."""
    talk = Talk(FORMAT_CLIENTS[name]())
    talk.make()
    for data in RECORDS:
        talk.append(data)
    return talk


def remove(talk: Talk, *offsets: int) -> None:
    """Have records 0 to 5 in the archive alone, but for these, which compaction removed."""
    archive = FakeArchive()
    talk.begin(cold_house(archive))
    talk.make()
    for data in RECORDS:
        talk.append(data)
    archive_all(talk.house, archive)
    archive.remove((1, 0), offsets)
    talk.begin(talk.house.crash())  # which forgets what was in memory
    talk.house.run()


def expire(talk: Talk, *offsets: int) -> None:
    """Have these of the records 0 to 5 expired."""
    now_us = talk.house.broker.time.time_us()
    for number, data in enumerate(RECORDS):
        talk.append(data, expires_at_us=now_us + 1_000_000 if number in offsets else None)
    talk.house.pass_time(2)


TRIMMED = {
    "Mamamia": records(b"3"),
    "FlyMQ": records(b"3", next_offset=4),
    "BlipMQ": records(b"3"),
    "RustLog JSON": Reply("Error offset out of range"),
    "RustLog binary": records(next_offset=3),
    "MEGA": records(b"3", next_offset=4),
}


@pytest.mark.parametrize("name", FORMAT_CLIENTS)
def test_records_below_the_start_are_passed_over_or_refused(name: str) -> None:
    """Offsets 0 to 2 were trimmed, and the reader asks for 0."""
    talk = with_records(name)
    talk.house.broker.topics.trim(TOPIC, 0, 3)
    told = talk.read_one(0)
    assert (told.words.split(":")[0], *told[1:]) == TRIMMED[name]


EXPIRED = {
    "Mamamia": [records(b"0"), records(b"3")],
    "FlyMQ": [records(b"0", b"3", b"4", next_offset=5), records(b"3", b"4", b"5", next_offset=6)],
    "BlipMQ": [records(b"0"), records(b"3")],
    "RustLog JSON": [
        records(b"0", b"3", b"4", next_offset=5),
        records(b"3", b"4", b"5", next_offset=6),
    ],
    "RustLog binary": [records(b"0", next_offset=1), records(next_offset=3)],
    "MEGA": [records(b"0", next_offset=1), records(b"3", next_offset=4)],
}
"""What is told of offset 0, and of 1, while 1 and 2 are expired; three are asked for."""


GONE = pytest.mark.parametrize("go", [expire, remove])


@GONE
@pytest.mark.parametrize("name", FORMAT_CLIENTS)
def test_records_that_expired_or_were_removed_are_gaps(name: str, go: Callable[..., None]) -> None:
    """Records 1 and 2 of 0 to 5; the reader asks for three from 0, then from 1."""
    talk = Talk(FORMAT_CLIENTS[name]())
    talk.make()
    go(talk, 1, 2)
    assert [talk.read_one(0, most=3), talk.read_one(1, most=3)] == EXPIRED[name]


@GONE
@pytest.mark.parametrize("name", FORMAT_CLIENTS)
def test_a_reader_that_goes_on_from_what_it_is_told_gets_every_record_that_is_there(
    name: str, go: Callable[..., None]
) -> None:
    """Whatever is missing: the records come in order, each once, and then there are no more."""
    talk = Talk(FORMAT_CLIENTS[name]())
    talk.make()
    go(talk, 0, 2, 3, 5)
    talk.append(b"last")
    got: list[bytes] = []
    offset = 0
    for _ in range(20):
        told = talk.read_one(offset, most=2)
        got += told.values
        if told.next_offset is not None:
            offset = told.next_offset
    assert got == [b"1", b"4", b"last"]


@pytest.mark.parametrize("name", FORMAT_CLIENTS)
def test_a_reader_is_behind_a_hole_of_any_length_at_once(name: str) -> None:
    """Two billion records were removed between the first and the last."""
    archive = FakeArchive()
    talk = Talk(FORMAT_CLIENTS[name](), cold_house(archive))
    talk.make()
    talk.append(b"first")
    last = 2_000_000_000
    topic = talk.house.broker.topics.find(TOPIC)
    assert topic is not None
    topic.partitions[0].restore(last)
    topic.partitions[0].archived_end = last
    talk.append(b"last")
    archive.cover((1, 0), 0, last, [Record(0, b"first")])
    talk.house.broker.archive_refresher.refresh()
    talk.house.run()
    got: list[bytes] = []
    offset = 0
    for _ in range(4):
        told = talk.read_one(offset)
        got += told.values
        offset = told.next_offset or offset
    assert got == [b"first", b"last"]


TOO_LARGE = {
    "RustLog JSON": 3 * MIB,
    "RustLog binary": 11 * MIB,
    "MEGA": 2 * MIB,
}
"""Values of 0xff that a format of offsets cannot show."""


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_record_too_large_for_a_reader_is_told_apart_and_can_be_passed(name: str) -> None:
    """The records before it come; then the error, which names its offset unless it is a code."""
    talk = Talk(FORMAT_CLIENTS[name]())
    talk.make()
    for data in (b"before", b"\xff" * TOO_LARGE[name], b"after"):
        talk.append(data)
    assert talk.read_one(0, most=50 * MIB).values == (b"before",)
    refused = talk.read_one(1, most=50 * MIB)
    assert refused.words == "3" if name == "MEGA" else "offset 1" in refused.words
    assert talk.read_one(2).values == (b"after",)


LARGEST = {
    "Mamamia": (10 << 20) - 56,
    "FlyMQ": (32 << 20) - 28,
    "BlipMQ": (16 << 20) - 13,
    "RustLog JSON": 5_242_800,
    "RustLog binary": (10 << 20) - 17,
    "MEGA": 1 << 20,
}
"""Bytes of zeros that a format can show, in a topic with a name of one letter."""

NOT_SHOWN = {
    "Mamamia": "nothing there",
    "BlipMQ": "done",  # a PONG, and nothing before it
    "RustLog JSON": "Error fetch failed: the record at offset 0",
    "RustLog binary": "error 4 Fetch failed: the record at offset 0",
    "MEGA": "3",
}


@pytest.mark.parametrize("writer", FORMAT_CLIENTS)
def test_the_largest_record_of_each_format_is_read_by_all_that_can_show_it(writer: str) -> None:
    """The writer reads it too; what is too large for another is told as the page says."""
    house = House(limits=Limits(frame_bytes=32 * MIB))
    talks = {name: Talk(client(), house) for name, client in FORMAT_CLIENTS.items()}
    house.broker.topics.create(TOPIC)
    talks["BlipMQ"].make()
    size = LARGEST[writer]
    assert [told.words for told in talks[writer].write(bytes(size))] == ["done"]
    for name, talk in talks.items():
        told = talk.read_one()
        if size <= LARGEST[name]:
            assert told.values == (bytes(size),), name
        else:
            assert told.words.startswith(NOT_SHOWN[name]), name


@pytest.mark.parametrize("name", ["Mamamia", "BlipMQ"])
def test_a_record_too_large_for_a_leasing_format_is_a_dead_letter(name: str) -> None:
    """Once; and the records around it are delivered."""
    talk = Talk(FORMAT_CLIENTS[name]())
    talk.make()
    for data in (b"before", bytes(17 * MIB), b"after"):
        talk.append(data)
    assert [talk.read_one().values for _ in range(3)] == [(b"before",), (b"after",), ()]
    topic = talk.house.broker.topics.find(TOPIC)
    assert topic is not None
    (group,) = topic.groups
    letters = [letter for _, letter in talk.house.broker.leases.dead_letters(TOPIC, group)]
    assert [(letter.offset, letter.reason) for letter in letters] == [(1, "too_large")]


@pytest.mark.parametrize("name", sorted(FORMAT_CLIENTS.keys() - {"MEGA"}))
def test_offsets_beyond_four_bytes_are_read(name: str) -> None:
    """A topic that has had 2^31 records is one like others."""
    talk = Talk(FORMAT_CLIENTS[name]())
    talk.make()
    far_along(talk)
    assert talk.write(b"beyond")[0].words == "done"
    assert talk.read_one(1 << 31).values == (b"beyond",)


def far_along(talk: Talk, next_offset: int = 1 << 31) -> None:
    """Let the topic have had so many records, all removed."""
    if talk.house.broker.topics.find(TOPIC) is None:
        talk.house.broker.topics.create(TOPIC)
    talk.house.run()
    topic = talk.house.broker.topics.find(TOPIC)
    assert topic is not None
    partition = topic.partitions[0]
    partition.restore(next_offset)
    talk.house.broker.topics.trim(TOPIC, 0, next_offset)
    talk.house.run()


def test_mega_refuses_offsets_that_four_bytes_cannot_say() -> None:
    """The last offset is used; PRODUCE is refused then, and CONSUME finds nothing behind it."""
    talk = Talk(FORMAT_CLIENTS["MEGA"]())
    talk.make()
    far_along(talk, (1 << 31) - 1)
    assert talk.write(b"last") == [Reply("done")]
    assert talk.write(b"beyond") == [Reply("9")]
    assert talk.read_one((1 << 31) - 1) == records(b"last", next_offset=-(1 << 31))
    assert talk.read_one(-1) == Reply("6")


def test_mega_sees_the_records_that_others_have_beyond_its_offsets_as_none() -> None:
    talk = Talk(FORMAT_CLIENTS["MEGA"]())
    talk.make()
    far_along(talk)
    talk.append(b"beyond")
    assert talk.read_one((1 << 31) - 1) == Reply("6")
