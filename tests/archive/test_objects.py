"""The tables of an archive in a bucket: the same promises as in a directory."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from deltalake import DeltaTable

from brokerd.archive.contract.layout import LAYOUTS, RECORDS, Range
from brokerd.archive.contract.view import ArchiveUnavailable, DamagedArchive, ForeignArchive
from brokerd.archive.delta import checkpoints
from brokerd.archive.delta.checkpoints import EVERY_COMMITS
from brokerd.archive.delta.log_files import COMMITS, checkpoint_name, commit_name
from brokerd.archive.delta.log_reader import list_log
from brokerd.archive.delta.table import Table, TableConflict
from brokerd.archive.delta.tables import ensure_tables, open_tables
from brokerd.archive.parquet.writer import FileWriter, verify_written
from brokerd.archive.serve.lazy import LazyArchive
from brokerd.archive.storage import bucket as store_object
from brokerd.archive.storage.address import ObjectAddress
from brokerd.archive.storage.store import open_store
from tests.archive.adding import LOG_ID, NOW_MS, OTHER_LOG_ID, records_file
from tests.archive.s3 import SECRET, bucket, s3_server
from tests.archive.test_delta_archive import World, own, read_all

__all__ = ["bucket", "s3_server"]

APP = "brokerd-rollup"
HOUR_MS = 3_600_000


@pytest.fixture
def world(bucket: ObjectAddress) -> World:
    return World(bucket)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def keys(place: ObjectAddress) -> list[str]:
    return [entry.path for entry in open_store(place).list(hidden=True)]


@contextmanager
def server_gone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stores that are opened meanwhile find nobody."""
    with socket.socket() as unused, monkeypatch.context() as gone:
        unused.bind(("127.0.0.1", 0))
        gone.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
        gone.setattr(store_object, "RETRIES", 0)
        yield


# -- Tables --------------------------------------------------------------------------------------


def test_tables_are_made_once_and_others_read_them(bucket: ObjectAddress) -> None:
    """deltalake does, at the same address."""
    assert open_tables(bucket, LOG_ID) == {}
    tables = ensure_tables(bucket, LOG_ID, NOW_MS)
    assert set(tables) == set(LAYOUTS)
    assert set(keys(bucket)) == {f"{name}/{COMMITS}/{commit_name(0)}" for name in LAYOUTS}
    assert DeltaTable(f"{bucket}/records").version() == 0
    assert {
        name: table.version for name, table in ensure_tables(bucket, LOG_ID, NOW_MS).items()
    } == (dict.fromkeys(LAYOUTS, 0))


def test_what_is_somebody_elses_is_left_alone(bucket: ObjectAddress) -> None:
    """The archive of another log, and a part of a bucket that holds something else."""
    ensure_tables(bucket, OTHER_LOG_ID, NOW_MS)
    with pytest.raises(ForeignArchive, match="archive of log"):
        ensure_tables(bucket, LOG_ID, NOW_MS)
    other = bucket._replace(key="photos")
    open_store(other).put("holiday.jpg", b"")
    with pytest.raises(ForeignArchive, match="holiday"):
        ensure_tables(other, LOG_ID, NOW_MS)
    assert keys(other) == ["holiday.jpg"]


def test_a_server_that_overwrites_all_the_same_is_refused(
    bucket: ObjectAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is made there."""

    def _client(*arguments: Any) -> Any:
        return _Careless(client(*arguments))

    client = store_object._client
    with monkeypatch.context() as patched:
        patched.setattr(store_object, "_client", _client)
        with pytest.raises(ArchiveUnavailable, match="If-None-Match"):
            ensure_tables(bucket, LOG_ID, NOW_MS)
    assert keys(bucket) == []


class _Careless:
    """A client that forgets conditions."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def put(self, path: str, data: bytes, mode: str = "") -> None:
        self._client.put(path, data)


def test_a_folder_that_a_console_made_is_empty(bucket: ObjectAddress, s3_server: str) -> None:
    """It is an object whose name ends in a slash."""
    for key in (bucket.key, f"{bucket.key}/records"):
        url = f"{s3_server}/{bucket.bucket}/{key}/"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT", data=b"")).close()
    world = World(bucket)
    world.add(own(0, 5))
    assert len(read_all(world.view, 1, 0)) == 5


def test_all_of_a_bucket_may_be_an_archive(bucket: ObjectAddress) -> None:
    """Without a name in it."""
    whole = World(bucket._replace(key=""))
    whole.add(own(0, 5))
    assert len(read_all(whole.view, 1, 0)) == 5
    assert DeltaTable(f"{whole.root}/records").version() == 1


def test_a_file_appears_whole_and_is_read_back(world: World, bucket: ObjectAddress) -> None:
    """Nothing is seen of one that was given up."""
    info = world.write(own(0, 10))
    verify_written(world.table.path, info)
    before = keys(bucket)
    with FileWriter(world.table.path, RECORDS, LOG_ID, [own(10, 20)]):
        pass
    assert keys(bucket) == before
    assert f"records/{info.path}" in before
    open_store(bucket).put(f"records/{info.path}", b"something else")
    with pytest.raises(DamagedArchive, match=r"s3://.*has 14 bytes"):
        verify_written(world.table.path, info)


def test_nothing_is_lost_when_two_commit_at_once(bucket: ObjectAddress) -> None:
    """Each version is one's; the other looks, and makes the next."""
    ensure_tables(bucket, LOG_ID, NOW_MS)

    def commit(topic_id: int) -> None:
        table = Table(bucket, RECORDS, LOG_ID)
        for at in range(5):
            table.commit([records_file(topic_id, at, at + 1, number=at)], now_ms=NOW_MS)

    threads = [threading.Thread(target=commit, args=(topic_id,)) for topic_id in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    table = Table(bucket, RECORDS, LOG_ID)
    assert table.version == 15
    wanted = {records_file(t, at, at + 1, number=at).path for t in (1, 2, 3) for at in range(5)}
    assert set(table.paths()) == wanted
    assert len(table.paths()) == 15


def test_one_of_two_takes_a_part_of_the_log(bucket: ObjectAddress) -> None:
    """The other hears of it, and adds nothing."""
    ensure_tables(bucket, LOG_ID, NOW_MS)
    tables = [Table(bucket, RECORDS, LOG_ID) for _ in range(4)]
    done: list[bool] = []
    conflicts: list[TableConflict] = []
    together = threading.Barrier(len(tables))

    def take(table: Table, number: int) -> None:
        file = records_file(1, 0, 10, number=number)
        together.wait()
        try:
            done.append(table.commit([file], (), {APP: 100 + number}, now_ms=NOW_MS))
        except TableConflict as error:
            conflicts.append(error)

    threads = [
        threading.Thread(target=take, args=(table, number)) for number, table in enumerate(tables)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done.count(True) == 1
    assert len(done) + len(conflicts) == 4
    assert len(Table(bucket, RECORDS, LOG_ID).paths()) == 1


def test_a_commit_whose_answer_was_lost_is_made_once(
    bucket: ObjectAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the library tries again, and finds its own, or gives up."""
    table = ensure_tables(bucket, LOG_ID, NOW_MS)["records"]
    for lost in ("first", "all"):
        with monkeypatch.context() as patched:
            client = _Forgetful(table._store._client, lost)  # type: ignore[attr-defined]
            patched.setattr(table._store, "_client", client)
            file = records_file(1, table.version * 10, table.version * 10 + 10)
            assert table.commit([file], now_ms=NOW_MS)
    assert Table(bucket, RECORDS, LOG_ID).version == 2
    assert len(table.paths()) == 2


class _Forgetful:
    """A client that writes and loses the first answer, then tries again; or loses all."""

    def __init__(self, client: Any, lost: str) -> None:
        self._client = client
        self._lost = lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def put(self, path: str, data: bytes, mode: str) -> None:
        self._client.put(path, data, mode=mode)
        if self._lost == "first":
            self._client.put(path, data, mode=mode)
        raise TimeoutError("no answer")


# -- The log of a table --------------------------------------------------------------------------


def test_a_reader_follows_version_by_version(world: World) -> None:
    """The same object while there is nothing new."""
    assert world.view.version == 0
    view = world.view
    assert world.view is view
    for at in range(3):
        world.add(own(10 * at, 10 * at + 10))
        assert world.view is not view
        view = world.view
        assert world.view is view
        assert len(read_all(view, 1, 0)) == 10 * at + 10


@pytest.mark.slow
def test_a_checkpoint_takes_the_place_of_commits(bucket: ObjectAddress) -> None:
    """It is made, proved, and read; one that is not what its sum says is not."""
    table = ensure_tables(bucket, LOG_ID, NOW_MS)["records"]
    for at in range(EVERY_COMMITS + 1):
        table.commit([records_file(1, at, at + 1, number=at)], now_ms=NOW_MS)
    names = list_log(table.path)
    assert names.checksummed == {EVERY_COMMITS - 1}
    version = EVERY_COMMITS - 1
    log = open_store(table.path)
    first = log.read(f"{COMMITS}/{commit_name(0)}", 1 << 20)
    log.delete([f"{COMMITS}/{commit_name(0)}"])
    assert len(Table(bucket, RECORDS, LOG_ID).paths()) == EVERY_COMMITS + 1
    assert DeltaTable(str(table.path)).version() == EVERY_COMMITS + 1
    log.put(f"{COMMITS}/{checkpoint_name(version)}", b"something else")
    with pytest.raises(ArchiveUnavailable, match=r"s3://.*0.json is missing"):
        Table(bucket, RECORDS, LOG_ID)
    log.put(f"{COMMITS}/{commit_name(0)}", first)
    assert len(Table(bucket, RECORDS, LOG_ID).paths()) == EVERY_COMMITS + 1


@pytest.mark.slow
def test_a_checkpoint_that_another_job_took_away_fails_nothing(
    bucket: ObjectAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no lock; whoever removes it as unfinished makes one."""
    table = ensure_tables(bucket, LOG_ID, NOW_MS)["records"]
    log = open_store(table.path)
    made = checkpoints._write_checkpoint

    def make_and_lose(place: ObjectAddress, version: int) -> None:
        made(place, version)
        log.delete([f"{COMMITS}/{checkpoint_name(version)}"])

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "_write_checkpoint", make_and_lose)
        for at in range(EVERY_COMMITS + 2):
            table.commit([records_file(1, at, at + 1, number=at)], now_ms=NOW_MS)
    assert list_log(table.path).checksummed == frozenset()
    table.commit([records_file(2, 0, 1)], now_ms=NOW_MS)
    assert list_log(table.path).checksummed == {EVERY_COMMITS + 2}
    assert len(Table(bucket, RECORDS, LOG_ID).paths()) == EVERY_COMMITS + 3


def test_a_commit_that_was_changed_is_found(world: World, bucket: ObjectAddress) -> None:
    """With its address."""
    world.add(own(0, 10))
    assert world.view.version == 1
    path = f"records/{COMMITS}/{commit_name(1)}"
    store = open_store(bucket)
    data = store.read(path, 1 << 20)
    store.put(path, data.replace(b'"size":', b'"size":1', 1))
    with pytest.raises(ArchiveUnavailable, match=rf"{bucket}/{path} is damaged"):
        world.archive.refresh()
    store.put(path, data)
    assert world.view.version == 1


def test_an_older_copy_that_was_brought_back_is_seen(world: World, bucket: ObjectAddress) -> None:
    """The reader begins anew."""
    world.add(own(0, 10))
    world.add(own(10, 20))
    assert world.view.version == 2
    open_store(bucket).delete([f"records/{COMMITS}/{commit_name(2)}"])
    assert world.view.version == 1
    assert len(read_all(world.view, 1, 0)) == 10


# -- Vacuum --------------------------------------------------------------------------------------


def test_what_a_killed_run_left_is_removed_by_age(world: World, bucket: ObjectAddress) -> None:
    """A file that was uploaded, and that no commit names; also one that a commit took out."""
    old = world.add(own(0, 10))
    world.replace([old], own(0, 10), without=frozenset({3}))
    left = world.write(own(10, 20))
    soon, later = wall_ms(), wall_ms() + 25 * HOUR_MS
    assert world.table.vacuum(24, soon) == []
    assert sorted(world.table.vacuum(24, later)) == sorted([old.path, left.path])
    assert len(read_all(world.view, 1, 0)) == 9
    assert not any(left.path in key for key in keys(bucket))
    again = world.add(own(10, 20))
    assert again.path != left.path
    assert len(read_all(world.view, 1, 0)) == 19


def test_old_parts_of_the_log_go(bucket: ObjectAddress) -> None:
    """Behind a checkpoint that is a week old."""
    table = ensure_tables(bucket, LOG_ID, NOW_MS)["records"]
    for at in range(EVERY_COMMITS + 2):
        table.commit([records_file(1, at, at + 1, number=at)], now_ms=NOW_MS)
    table.vacuum(24, wall_ms() + 6 * 24 * HOUR_MS)
    assert min(list_log(table.path).commits) == 0
    table.vacuum(24, wall_ms() + 8 * 24 * HOUR_MS)
    assert min(list_log(table.path).commits) == EVERY_COMMITS - 1
    assert len(Table(bucket, RECORDS, LOG_ID).paths()) == EVERY_COMMITS + 2


# -- The broker's side ---------------------------------------------------------------------------


def test_every_record_is_read_back(world: World) -> None:
    """From files of one partition and of several, in many row groups."""
    world.add(own(0, 20_000))
    world.add(Range(1, 0, 20_000, 20_010), Range(1, 1, 0, 5), Range(17, 0, 0, 5))
    view = world.view
    assert view.covers(1, 0, 0, 20_010)
    assert not view.covers(1, 0, 0, 20_011)
    assert read_all(view, 1, 0) == {at: f"1/0/{at}".encode() for at in range(20_010)}
    assert read_all(view, 17, 0) == {at: f"17/0/{at}".encode() for at in range(5)}
    assert view.offset_at_time(1, 0, 15_000) == 15_000


def test_a_file_that_is_gone_is_waited_for(world: World, bucket: ObjectAddress) -> None:
    """Whether it was open before or not; it is read again when it is back."""
    info = world.add(own(0, 10))
    view = world.view
    store = open_store(bucket)
    path = f"records/{info.path}"
    data = store.read(path, 1 << 20)
    assert view.covers(1, 0, 0, 10)
    store.delete([path])
    for _ in range(2):
        with pytest.raises(ArchiveUnavailable, match=r"s3://.*cannot be read"):
            view.covers(1, 0, 0, 10)
        with pytest.raises(ArchiveUnavailable, match=r"s3://.*cannot be read"):
            view.read(1, 0, 0, 100)
        view = World(bucket).view
    store.put(path, data)
    assert len(read_all(view, 1, 0)) == 10


def test_flipped_bytes_are_found_before_they_are_decoded(
    world: World, bucket: ObjectAddress
) -> None:
    """A reader hears which offsets cannot be read."""
    info = world.add(own(5, 10))
    store = open_store(bucket)
    data = bytearray(store.read(f"records/{info.path}", 1 << 20))
    for at in (20, len(data) - 40):
        flipped = bytes(data[:at]) + bytes([data[at] ^ 1]) + bytes(data[at + 1 :])
        store.put(f"records/{info.path}", flipped)
        with pytest.raises(DamagedArchive, match=r"s3://.*checksum") as caught:
            World(bucket).view.read(1, 0, 5, 100)
        assert (caught.value.first, caught.value.end) == (5, 10)


def test_there_is_nothing_before_the_first_rollup(bucket: ObjectAddress) -> None:
    """Then it is there."""
    archive = LazyArchive(bucket, LOG_ID)
    assert archive.refresh() is None
    ensure_tables(bucket, LOG_ID, NOW_MS)
    found = archive.refresh()
    assert found is not None
    assert found.version == 0


def test_a_server_that_is_down_takes_nothing_away(
    world: World, bucket: ObjectAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looks meanwhile hears so, without retries; then all is as it was."""
    world.add(own(0, 10))
    with server_gone(monkeypatch):
        began = time.monotonic()
        archive = LazyArchive(bucket, LOG_ID)
        with pytest.raises(ArchiveUnavailable, match="no connection to the server") as caught:
            archive.refresh()
        with pytest.raises(ArchiveUnavailable, match="no connection to the server"):
            ensure_tables(bucket, LOG_ID, NOW_MS)
        assert time.monotonic() - began < store_object.RETRY_SECONDS
        assert SECRET not in str(caught.value)
    found = archive.refresh()
    assert found is not None
    assert len(read_all(found, 1, 0)) == 10


def test_a_missing_bucket_is_told(bucket: ObjectAddress) -> None:
    """Never as an archive that is empty."""
    missing = bucket._replace(bucket="no-such-bucket")
    for look in (lambda: LazyArchive(missing, LOG_ID).refresh(), lambda: open_tables(missing, "")):
        with pytest.raises(ArchiveUnavailable, match=r"s3://no-such-bucket.*NoSuchBucket"):
            look()


def test_wrong_credentials_are_told(world: World, bucket: ObjectAddress, s3_server: str) -> None:
    """In the server's words, without them."""
    with authenticating(s3_server):
        for look in (lambda: LazyArchive(bucket, LOG_ID).refresh(), lambda: world.view):
            with pytest.raises(ArchiveUnavailable, match=r"the server says InvalidAcc") as caught:
                look()
            assert SECRET not in str(caught.value)
            assert "somebody" not in str(caught.value)
    assert world.view.version == 0


@contextmanager
def authenticating(server: str) -> Iterator[None]:
    """The server, which knows nobody, looks at credentials meanwhile."""

    def allow(count: str) -> None:
        asked = urllib.request.Request(
            f"{server}/moto-api/reset-auth",
            data=count.encode(),
            headers={"Content-Type": "text/plain"},
        )
        urllib.request.urlopen(asked, timeout=60).close()

    allow("0")
    try:
        yield
    finally:
        allow("inf")


def test_who_has_no_library_for_it_is_told_what_to_install() -> None:
    """A broker without it begins, and goes on with its log."""
    script = (
        "import sys; sys.modules['obstore'] = None;"
        "from brokerd.archive.serve.lazy import LazyArchive;"
        "from brokerd.archive.storage.address import object_address;"
        "LazyArchive(object_address('s3://bucket/a'), 'x').refresh()"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "s3://bucket needs a library that is not installed" in run.stderr
    assert "pip install 'brokerd[archive]'" in run.stderr.splitlines()[-1]
