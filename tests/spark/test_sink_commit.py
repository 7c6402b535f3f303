"""The commit of micro-batches: killed anywhere, repeated with other rows, each row once."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.archive.storage.address import ObjectAddress
from brokerd.archive.storage.disk import RealDisk, RealFile
from brokerd.archive.storage.store import open_store
from brokerd.broker import BrokerSettings
from brokerd.spark.sink.blocks import Block
from brokerd.spark.sink.commit import (
    ForgottenProducer,
    abort_epoch,
    number_blocks,
    send_directly,
)
from brokerd.spark.sink.sender import NotReachable, SequenceTaken
from brokerd.spark.sink.staging import BadStaging, Staging
from tests.house import House
from tests.spark.sink_desk import NAME, Desk, Killed, block, stage, staging_of


def cut(values: list[str], *sizes: int) -> list[Block]:
    """Return values as blocks of these sizes, again and again."""
    blocks = []
    while values:
        size = sizes[len(blocks) % len(sizes)]
        blocks.append(block("orders", *values[:size]))
        values = values[size:]
    return blocks


def values_of(epoch: int, count: int = 20) -> list[str]:
    return [f"{epoch}-{number}" for number in range(count)]


def encoded(*epochs: int) -> list[bytes]:
    return sorted(value.encode() for epoch in epochs for value in values_of(epoch))


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_micro_batches_are_stored_once_each(desk: Desk, tmp_path: Path) -> None:
    for epoch in range(3):
        values = values_of(epoch)
        files = stage(tmp_path, epoch, cut(values[:7], 2), cut(values[7:], 3), [])
        assert desk.commit(staging_of(tmp_path), epoch, files)
    assert sorted(desk.values("orders")) == encoded(0, 1, 2)


def test_a_micro_batch_that_is_done_is_not_sent_again(desk: Desk, tmp_path: Path) -> None:
    """Spark repeats it if it was killed before it noted that. What it staged again goes."""
    desk.commit(staging_of(tmp_path), 0, stage(tmp_path, 0, cut(values_of(0), 3)))
    sent = len(desk.sent)
    again = stage(tmp_path, 0, cut(values_of(0), 7))
    assert not desk.commit(staging_of(tmp_path), 0, again)
    assert len(desk.sent) == sent
    assert again[0] is not None
    assert not (tmp_path / "staging" / NAME / "rows" / again[0].name).exists()


def test_a_repetition_that_is_cut_differently_sends_what_the_first_one_staged(
    desk: Desk, tmp_path: Path
) -> None:
    """The broker compares no contents: other rows with the same sequences would be lost."""
    desk.faults = ["killed 2"]
    values = values_of(0)
    with pytest.raises(Killed):
        desk.commit(staging_of(tmp_path), 0, stage(tmp_path, 0, cut(values, 3)))
    again = stage(tmp_path, 0, cut(values[::-1], 4), cut(values[:0], 1))
    assert desk.commit(staging_of(tmp_path), 0, again)
    assert sorted(desk.values("orders")) == encoded(0)


KILLS = st.lists(
    st.sampled_from(
        ["", "", "killed 0", "killed 1", "killed 3", "lost 1", "answered 1", "full 0", "full 1"]
    ),
    max_size=8,
)


@given(
    KILLS,
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=8, max_size=8),
    st.integers(1, 4),
    st.booleans(),
)
def test_killed_anywhere_each_row_is_there_once(
    tmp_path_factory: pytest.TempPathFactory,
    faults: list[str],
    sizes: list[tuple[int, int]],
    lanes: int,
    crashes: bool,
) -> None:
    """Each attempt cuts the rows differently, and has another number of lanes."""
    with mock.patch.object(RealFile, "sync"), mock.patch.object(RealDisk, "sync_directory"):
        check_kills(tmp_path_factory, faults, sizes, lanes, crashes)


def check_kills(
    tmp_path_factory: pytest.TempPathFactory,
    faults: list[str],
    sizes: list[tuple[int, int]],
    lanes: int,
    crashes: bool,
) -> None:
    path = tmp_path_factory.mktemp("kills")
    desk = Desk()
    desk.faults = faults
    attempt = 0
    for epoch in range(2):
        while True:
            attempt += 1
            values = values_of(epoch)[:: -1 if attempt % 2 else 1]
            files = stage(path, epoch, cut(values, *sizes[attempt % 8]))
            try:
                desk.commit(staging_of(path), epoch, files, lanes + attempt % 3)
                break
            except Killed:
                if crashes:
                    desk.house = desk.house.crash()
    assert sorted(desk.values("orders")) == encoded(0, 1)


def test_a_block_that_is_refused_is_not_overtaken_in_its_lane(desk: Desk, tmp_path: Path) -> None:
    """Else the broker would call it older than its newest, and it would never be stored."""
    desk.faults = ["full 0", "full 1", "", "full 1"]
    desk.commit(staging_of(tmp_path), 0, stage(tmp_path, 0, cut(values_of(0), 1)), 3)
    assert sorted(desk.values("orders")) == encoded(0)


def test_a_bucket_keeps_the_rows_as_well(desk: Desk, bucket: ObjectAddress) -> None:
    """Killed in the first micro-batch; each attempt is a process of its own."""

    def staging() -> Staging:
        return Staging(f"{bucket}/brokerd", NAME)

    desk.faults = ["", "killed 1"]
    with pytest.raises(Killed):
        desk.commit(staging(), 0, [staging().stage(0, cut(values_of(0), 2))])
    assert desk.commit(staging(), 0, [staging().stage(0, cut(values_of(0), 3))])
    for epoch in (1, 2):
        files = staging().stage(epoch, cut(values_of(epoch), 4))
        assert desk.commit(staging(), epoch, [files])
    assert not desk.commit(staging(), 2, [])
    assert sorted(desk.values("orders")) == encoded(0, 1, 2)
    names = open_store(bucket).names(f"brokerd/{NAME}/rows")
    assert [name[:10] for name in names] == ["0000000002"]


def test_progress_spares_what_the_broker_has(desk: Desk, tmp_path: Path) -> None:
    desk.faults = ["", "", "killed 0"]
    files = stage(tmp_path, 0, cut(values_of(0), 1))
    with pytest.raises(Killed):
        desk.commit(staging_of(tmp_path), 0, files, 5)
    desk.sent.clear()
    desk.commit(staging_of(tmp_path), 0, stage(tmp_path, 0, cut(values_of(0), 1)), 5)
    assert [one.sequence for one in desk.sent] == list(range(10, 20))


def test_progress_that_is_lost_costs_only_time(desk: Desk, tmp_path: Path) -> None:
    """A stop of the machine may lose it. The broker then calls old what it has."""
    desk.faults = ["", "", "", "killed 1"]
    with pytest.raises(Killed):
        desk.commit(staging_of(tmp_path), 0, stage(tmp_path, 0, cut(values_of(0), 1)), 2)
    (tmp_path / "staging" / NAME / "progress" / "0000000000.json").unlink()
    desk.commit(staging_of(tmp_path), 0, [])
    assert sorted(desk.values("orders")) == encoded(0)


def test_an_abort_keeps_what_a_manifest_names(desk: Desk, tmp_path: Path) -> None:
    """Spark aborts a micro-batch when its commit fails; the next attempt sends the manifest."""
    files = [file for file in stage(tmp_path, 0, cut(values_of(0), 3)) if file is not None]
    desk.faults = ["refused"]
    with pytest.raises(NotReachable):
        commit = desk.sender(retry_seconds=0)
        staging = staging_of(tmp_path)
        staging.identity()
        desk.sender = lambda producer="p", retry_seconds=0.0: commit  # type: ignore[method-assign]
        desk.commit(staging, 0, files)
    abort_epoch(staging_of(tmp_path), 0, files)
    del desk.sender
    desk.faults = []
    desk.commit(staging_of(tmp_path), 0, [])
    assert sorted(desk.values("orders")) == encoded(0)


def test_an_abort_without_a_manifest_deletes_what_was_staged(tmp_path: Path) -> None:
    files = [file for file in stage(tmp_path, 0, cut(values_of(0), 3)) if file is not None]
    abort_epoch(staging_of(tmp_path), 0, files)
    assert list((tmp_path / "staging" / NAME / "rows").iterdir()) == []


def test_a_checkpoint_that_has_gone_back_is_refused(desk: Desk, tmp_path: Path) -> None:
    for epoch in (5, 6):
        desk.commit(staging_of(tmp_path), epoch, stage(tmp_path, epoch, cut(values_of(epoch), 3)))
    with pytest.raises(BadStaging, match="6 is stored, and Spark commits micro-batch 5"):
        desk.commit(staging_of(tmp_path), 5, [])


def test_a_copy_of_a_checkpoint_is_noticed(desk: Desk, tmp_path: Path) -> None:
    """Whether the other one runs on, or this one goes back. It stays an error, with any rows."""
    desk.commit(staging_of(tmp_path), 0, stage(tmp_path, 0, cut(values_of(0), 3)))
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "staging", copy / "staging")
    for epoch in range(1, 4):
        desk.commit(staging_of(tmp_path), epoch, stage(tmp_path, epoch, cut(values_of(epoch), 3)))
    for size in (3, 2):
        with pytest.raises(SequenceTaken, match="has batches of micro-batch 1 already"):
            desk.commit(staging_of(copy), 1, stage(copy, 1, cut(["lost"] * 20, size)))
    assert sorted(desk.values("orders")) == encoded(0, 1, 2, 3)


def test_another_process_that_finishes_meanwhile_is_no_error(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose driver was killed may live on for a moment, and clean up."""
    (file,) = stage(tmp_path, 0, cut(values_of(0), 3))
    read = Staging.read

    def late(self: Staging, *arguments: object) -> object:
        monkeypatch.setattr(Staging, "read", read)
        desk.commit(staging_of(tmp_path), 0, [file])
        desk.commit(staging_of(tmp_path), 1, [])
        return read(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Staging, "read", late)
    assert not desk.commit(staging_of(tmp_path), 0, [file])
    assert sorted(desk.values("orders")) == encoded(0)


def forget(desk: Desk) -> None:
    """Let other producers displace the sink's."""
    for number in range(4):
        desk.sender(f"other {number}").send(list(number_blocks([block("other", "x")], 0, 0, 1)))


@pytest.mark.parametrize("fails", [True, False])
def test_a_broker_that_has_forgotten_the_sink_is_told(tmp_path: Path, fails: bool) -> None:
    """Only a batch that it may have already is in doubt. It may be stored twice, if wanted."""
    desk = Desk(House(settings=BrokerSettings(max_producers=3)))
    desk.commit(staging_of(tmp_path), 0, stage(tmp_path, 0, cut(values_of(0), 10)), 1)
    forget(desk)
    desk.commit(staging_of(tmp_path), 1, stage(tmp_path, 1, cut(values_of(1), 10)), 1)
    desk.faults = ["killed 1"]
    with pytest.raises(Killed):
        desk.commit(staging_of(tmp_path), 2, stage(tmp_path, 2, cut(values_of(2), 10)), 1)
    forget(desk)
    if fails:
        with pytest.raises(ForgottenProducer, match=r"limits.producers.*failOnForgottenProducer"):
            desk.commit(staging_of(tmp_path), 2, [], 1)
        assert len(desk.values("orders")) == 50
    else:
        desk.commit(staging_of(tmp_path), 2, [], 1, fails=False)
        assert sorted(set(desk.values("orders"))) == encoded(0, 1, 2)
        assert len(desk.values("orders")) == 70


def test_rows_without_staging_are_sent_as_they_come(desk: Desk) -> None:
    desk.faults = ["lost 2", "", "answered 1"]
    assert send_directly(desk.sender(), cut(values_of(0), 3), 4) == 20
    assert sorted(desk.values("orders")) == encoded(0)
