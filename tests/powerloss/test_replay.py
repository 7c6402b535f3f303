"""What a power loss leaves of a recording, by each of the three models."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from benchmarks.powerloss.recording import (
    ROOT,
    Kind,
    Operation,
    Position,
    Recorder,
    read_recording,
)
from benchmarks.powerloss.replay import Model, replay_to

DIRECTORY, FILE, OTHER = 2, 3, 4
SECTOR = 512


def create(number: int, name: str, directory: int = ROOT) -> Operation:
    return Operation(Kind.CREATE, number, directory, name)


def mkdir(number: int, name: str, directory: int = ROOT) -> Operation:
    return Operation(Kind.MKDIR, number, directory, name)


def write(number: int, data: bytes, position: int = 0) -> Operation:
    return Operation(Kind.WRITE, number, position=position, data=data)


def rename(number: int, old: tuple[int, str], new: tuple[int, str]) -> Operation:
    return Operation(Kind.RENAME, number, *old, new_directory=new[0], new_name=new[1])


def unlink(number: int, name: str, directory: int = ROOT) -> Operation:
    return Operation(Kind.UNLINK, number, directory, name)


def recorded(*steps: Operation | int) -> list[Operation]:
    """A recording in which a bare number is a sync that covers all before it."""
    found: list[Operation] = []
    for step in steps:
        sync = isinstance(step, int)
        found.append(Operation(Kind.SYNC, step, position=len(found)) if sync else step)  # type: ignore[arg-type]
    return found


def left(tmp_path: Path, steps: list[Operation], model: Model, seed: int = 0) -> dict[str, bytes]:
    """The files after a power loss at the end, and directories as names that end with a slash."""
    replay = replay_to(steps, len(steps))
    path = tmp_path / f"{model}-{seed}"
    replay.write(replay.lose_power(model, Random(seed)), path)
    found = {f"{one.relative_to(path)}": one for one in path.rglob("*")}
    return {
        name + "/" * one.is_dir(): b"" if one.is_dir() else one.read_bytes()
        for name, one in found.items()
    }


SYNCED_FILES = [
    pytest.param(recorded(create(FILE, "a"), write(FILE, b"x"), FILE), {}, id="name not synced"),
    pytest.param(
        recorded(create(FILE, "a"), write(FILE, b"x"), ROOT), {"a": b""}, id="bytes not synced"
    ),
    pytest.param(
        recorded(create(FILE, "a"), write(FILE, b"x"), FILE, ROOT), {"a": b"x"}, id="both synced"
    ),
    pytest.param(
        recorded(mkdir(DIRECTORY, "d"), create(FILE, "a", DIRECTORY), DIRECTORY),
        {},
        id="parent not synced",
    ),
    pytest.param(
        recorded(mkdir(DIRECTORY, "d"), create(FILE, "a", DIRECTORY), DIRECTORY, ROOT),
        {"d/": b"", "d/a": b""},
        id="parent synced",
    ),
    pytest.param(
        recorded(create(FILE, "a"), ROOT, rename(FILE, (ROOT, "a"), (ROOT, "b"))),
        {"a": b""},
        id="rename not synced",
    ),
    pytest.param(
        recorded(
            create(FILE, "a"),
            mkdir(DIRECTORY, "d"),
            ROOT,
            rename(FILE, (ROOT, "a"), (DIRECTORY, "a")),
            DIRECTORY,
        ),
        {"a": b"", "d/": b"", "d/a": b""},
        id="the new directory of a rename synced",
    ),
    pytest.param(
        recorded(
            create(FILE, "a"),
            write(FILE, b"x"),
            FILE,
            Operation(Kind.LINK, FILE, ROOT, "b"),
            unlink(FILE, "a"),
            ROOT,
        ),
        {"b": b"x"},
        id="linked and unlinked",
    ),
    pytest.param(
        recorded(create(FILE, "a"), ROOT, unlink(FILE, "a")), {"a": b""}, id="unlink not synced"
    ),
    pytest.param(
        recorded(
            create(FILE, "a"),
            write(FILE, b"xyz"),
            FILE,
            ROOT,
            Operation(Kind.RESIZE, FILE, position=1),
        ),
        {"a": b"xyz"},
        id="truncation not synced",
    ),
]


@pytest.mark.parametrize(("steps", "expected"), SYNCED_FILES)
def test_only_synced_names_and_bytes_are_left(
    tmp_path: Path, steps: list[Operation], expected: dict[str, bytes]
) -> None:
    assert left(tmp_path, steps, Model.SYNCED) == expected


def test_a_sync_covers_what_came_before_it_began(tmp_path: Path) -> None:
    """Bytes written while a sync runs stay unsynced."""
    steps = [
        create(FILE, "a"),
        Operation(Kind.SYNC, ROOT, position=1),
        write(FILE, b"x"),
        write(FILE, b"y", 1),
        Operation(Kind.SYNC, FILE, position=3),
    ]
    assert left(tmp_path, steps, Model.SYNCED) == {"a": b"x"}


def test_sectors_are_whole_and_arrive_in_any_order(tmp_path: Path) -> None:
    steps = recorded(
        create(FILE, "a"),
        write(FILE, bytes(4 * SECTOR)),
        FILE,
        ROOT,
        write(FILE, b"x" * 4 * SECTOR),
    )
    seen = {left(tmp_path, steps, Model.SECTORS, seed)["a"] for seed in range(60)}
    parts = {tuple(data[at : at + SECTOR] for at in range(0, 4 * SECTOR, SECTOR)) for data in seen}
    assert {part for some in parts for part in some} == {bytes(SECTOR), b"x" * SECTOR}
    assert any(some[0] != b"x" * SECTOR and some[3] == b"x" * SECTOR for some in parts)


def test_sectors_keep_the_first_changes_of_each_directory(tmp_path: Path) -> None:
    steps = recorded(create(FILE, "a"), create(OTHER, "b"), rename(FILE, (ROOT, "a"), (ROOT, "c")))
    seen = {frozenset(left(tmp_path, steps, Model.SECTORS, seed)) for seed in range(40)}
    assert seen == {frozenset(names) for names in ("", "a", "ab", "bc")}


def test_all_metadata_is_left_without_all_data(tmp_path: Path) -> None:
    """Names and sizes as they were last; sectors as written, or zeros, and synced ones stay."""
    steps = recorded(
        create(FILE, "a"),
        write(FILE, b"s" * SECTOR),
        FILE,
        write(FILE, b"x" * 2 * SECTOR, SECTOR),
        rename(FILE, (ROOT, "a"), (ROOT, "b")),
        mkdir(DIRECTORY, "d"),
    )
    seen = set()
    for seed in range(40):
        found = left(tmp_path, steps, Model.METADATA, seed)
        assert found.keys() == {"b", "d/"}
        assert found["b"].startswith(b"s" * SECTOR)
        seen.add(found["b"][SECTOR:])
    sectors = (bytes(SECTOR), b"x" * SECTOR)
    assert seen == {first + second for first in sectors for second in sectors}


def test_metadata_of_a_file_that_was_cut_and_grew_again(tmp_path: Path) -> None:
    """Bytes past the cut do not return."""
    steps = recorded(
        create(FILE, "a"),
        write(FILE, b"s" * SECTOR),
        FILE,
        Operation(Kind.RESIZE, FILE, position=0),
        write(FILE, b"x", SECTOR - 1),
    )
    seen = {left(tmp_path, steps, Model.METADATA, seed)["a"] for seed in range(20)}
    assert seen == {bytes(SECTOR), bytes(SECTOR - 1) + b"x"}


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Also names that are no UTF-8; others see the position while it is written."""
    steps = recorded(create(FILE, "\udcff"), write(FILE, b"\x00\xff", 7), FILE)
    recorder = Recorder(tmp_path / "recording")
    position = Position(tmp_path / "recording")
    for count, step in enumerate(steps, 1):
        recorder.append(step)
        assert position() == count
    recorder.close()
    assert list(read_recording(tmp_path / "recording")) == steps


def test_the_same_seed_leaves_the_same(tmp_path: Path) -> None:
    steps = recorded(create(FILE, "a"), write(FILE, b"x" * 4000), create(OTHER, "b"))
    for model in Model:
        (tmp_path / "one").mkdir(exist_ok=True)
        (tmp_path / "two").mkdir(exist_ok=True)
        assert left(tmp_path / "one", steps, model, 5) == left(tmp_path / "two", steps, model, 5)
