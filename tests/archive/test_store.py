"""Files of an archive, on a disk and on an object store, by the same rules."""

from __future__ import annotations

import os
import pickle
import resource
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.storage import bucket as store_object
from brokerd.archive.storage.address import ObjectAddress, Place
from brokerd.archive.storage.store import Store, open_store
from tests.archive.s3 import SECRET, environment

MANY = 1 << 20


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "directory":
        return tmp_path / "archive"
    found: ObjectAddress = request.getfixturevalue("bucket")
    return found


@pytest.fixture
def store(place: Place) -> Store:
    found = open_store(place)
    found.make_directory("a/b")
    found.make_directory("a/_hidden")
    return found


def paths(store: Store, directory: str = "", hidden: bool = False) -> list[str]:
    return sorted(entry.path for entry in store.list(directory, hidden=hidden))


# -- what both do --------------------------------------------------------------------------------


def test_what_was_put_is_there_whole(store: Store) -> None:
    """And takes the place of what was there."""
    store.put("a/b/1", b"before")
    store.put("a/b/1", b"after that")
    assert store.read("a/b/1", MANY) == b"after that"
    assert store.read_ranges("a/b/1", [(0, 5), (6, 4), (8, 10), (20, 3)]) == [
        b"after",
        b"that",
        b"at",
        b"",
    ]
    assert paths(store) == ["a/b/1"]


def test_a_file_is_never_read_beyond_its_bound(store: Store) -> None:
    """Nothing is allocated for one that is larger."""
    store.put("a/b/1", b"12345")
    assert store.read("a/b/1", 5) == b"12345"
    with pytest.raises(ArchiveUnavailable, match="a/b/1 cannot be read: it has 5 bytes"):
        store.read("a/b/1", 4)


@pytest.mark.parametrize("size", [0, 1, 1000, 200_000])
def test_an_open_file_gives_any_piece(store: Store, size: int) -> None:
    """Its end first, as readers of Parquet want it."""
    data = os.urandom(size)
    store.put("a/b/1", data)
    file = store.open("a/b/1")
    assert file.size == size
    for end in (0, 8, 999, 70_000, 300_000):
        assert file.read_tail(end) == data[max(0, size - end) :]
    assert file.read(size // 2, 70_000) == data[size // 2 :][:70_000]
    assert file.read(size, 5) == b""


def test_who_reads_all_of_a_file_asks_seldom(
    bucket: ObjectAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces come from what was read ahead, wherever they begin."""
    data = os.urandom(100_000)
    store = open_store(bucket)
    store.put("1", data)
    asked: list[tuple[int, int]] = []
    ask = store_object.BucketStore._range

    def count(self: store_object.BucketStore, path: str, position: int, size: int) -> bytes:
        asked.append((position, size))
        return ask(self, path, position, size)

    monkeypatch.setattr(store_object.BucketStore, "_range", count)
    file = store.open("1", ahead_bytes=30_000)
    pieces = [file.read(at, 1_000) for at in range(0, 100_000, 1_000)]
    assert b"".join(pieces) == data
    assert asked == [(at, 30_000) for at in (0, 30_000, 60_000, 90_000)]
    assert file.read(5_500, 50_000) == data[5_500:55_500]
    assert file.read(99_999, 5) == data[99_999:]


def test_a_killed_writer_leaves_nothing_on_the_machine(
    bucket: ObjectAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temporary file has no name."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    draft = open_store(bucket).create("a")
    draft.write(b"x" * 100_000)
    assert list(tmp_path.iterdir()) == []
    draft.discard()


def test_a_file_that_is_not_there_is_named(store: Store) -> None:
    """By whatever reads it."""
    reads: list[Callable[[], object]] = [
        lambda: store.read("a/b/1", MANY),
        lambda: store.open("a/b/1"),
        lambda: store.stat("a/b/1"),
        lambda: store.read_ranges("a/b/1", [(0, 1)]),
    ]
    for read in reads:
        with pytest.raises(FileNotFoundError, match=f"{store.place}/a/b/1"):
            read()
    assert not store.exists("a/b/1")
    store.put("a/b/1", b"")
    assert store.exists("a/b/1")


def test_a_name_is_given_once(store: Store) -> None:
    """Whoever comes later hears that it is taken, and changes nothing."""
    assert store.put_if_absent("a/b/1", b"first") is True
    assert store.put_if_absent("a/b/1", b"second") is False
    assert store.read("a/b/1", MANY) == b"first"
    assert store.names("a/b") == {"1"}


def test_of_many_at_once_one_wins(store: Store) -> None:
    """Each time, and what it wrote is what is there."""
    wins: list[bytes] = []

    def take(name: str, data: bytes) -> None:
        if store.put_if_absent(f"a/b/{name}", data):
            wins.append(data)

    for name in "12345":
        wins.clear()
        threads = [threading.Thread(target=take, args=(name, b"%d" % n)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wins == [store.read(f"a/b/{name}", MANY)]


def test_a_draft_is_seen_when_it_is_published(store: Store) -> None:
    """Whole, under its name; one that was discarded leaves nothing."""
    draft, other = store.create("a/c"), store.create("a/c")
    for piece in (b"one ", b"two ", b"three"):
        draft.write(piece)
        other.write(piece)
    assert paths(store) == [] or all("unfinished-" in path for path in paths(store))
    draft.publish("a/c/1")
    draft.discard()
    other.discard()
    other.discard()
    assert paths(store) == ["a/c/1"]
    assert store.read("a/c/1", MANY) == b"one two three"


@pytest.mark.parametrize("durable", [False, True])
def test_what_does_not_fit_on_the_disk_leaves_what_was_there(tmp_path: Path, durable: bool) -> None:
    """And nothing else, which would take up the room that is left."""
    store = open_store(tmp_path)
    store.put("a", b"before", durable=durable)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(ArchiveUnavailable, match="a cannot be written: File too large"):
            store.put("a", bytes(1000), durable=durable)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert paths(store) == ["a"]
    assert store.read("a", MANY) == b"before"


@pytest.mark.parametrize("made", ["archive", "archive/records", "archive/records/_delta_log"])
def test_a_directory_that_another_one_made_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    """A job was killed between mkdir and fsync. The next one syncs the entry of its directory."""
    (tmp_path / made).mkdir(parents=True)
    synced: list[str] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    open_store(tmp_path / "archive").make_directory("records/_delta_log")
    assert str((tmp_path / made).parent) in synced
    assert str(tmp_path / "archive/records") in synced


def test_two_jobs_that_write_one_file_do_not_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is done last has its bytes there."""
    real = os.fsync

    def other_first(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", real)
        open_store(tmp_path).put("a", b"other")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", other_first)
    store = open_store(tmp_path)
    store.put("a", b"one")
    assert store.read("a", MANY) == b"one"
    assert paths(store) == ["a"]


def test_a_finished_file_is_copied(store: Store, tmp_path: Path) -> None:
    """However large: in parts."""
    data = os.urandom(17 << 20)
    (tmp_path / "source").write_bytes(data)
    store.upload("a/c/1", tmp_path / "source")
    assert store.read("a/c/1", 1 << 30) == data
    assert (tmp_path / "source").exists()


def test_what_is_there_is_listed(store: Store) -> None:
    """All files below, with sizes and times; names right there; hidden ones when asked for."""
    before_ms = int(time.time() * 1000) - 2000
    files = ["top", "a/1", "a/b/2", "a/b=3/4", "a/_hidden/5", "a/.6", "ab/7"]
    for path in files:
        store.make_directory(path.rpartition("/")[0])
        store.put(path, path.encode())
    assert paths(store) == sorted(path for path in files if path != "a/_hidden/5")
    assert paths(store, "a") == ["a/.6", "a/1", "a/b/2", "a/b=3/4"]
    assert paths(store, "a/_hidden") == ["a/_hidden/5"]
    assert paths(store, hidden=True) == sorted(files)
    assert store.names("a") == {"1", "b", "b=3", "_hidden", ".6"}
    assert store.names("") == {"top", "a", "ab"}
    assert store.names("nothing") == set()
    assert paths(store, "nothing") == []
    for entry in store.list():
        assert entry.size == len(entry.path)
        assert before_ms <= entry.changed_ms <= time.time() * 1000 + 1000
        assert entry == store.stat(entry.path)


def test_a_tag_changes_with_the_content(store: Store) -> None:
    """Also when the size stays."""
    store.put("a/b/1", b"one")
    tag = store.stat("a/b/1").tag
    assert store.stat("a/b/1").tag == tag
    store.put("a/b/1", b"two")
    assert store.stat("a/b/1").tag != tag


def test_what_is_deleted_is_gone(store: Store) -> None:
    """What was gone already is no error."""
    for name in "123":
        store.put(f"a/b/{name}", b"")
    store.delete(["a/b/1", "a/b/nothing", "a/b/3"])
    store.delete([])
    assert paths(store) == ["a/b/2"]


def test_that_nothing_is_new_is_seen_quickly(store: Store) -> None:
    """Until the next name, or another file under the last, is there."""

    def look() -> tuple[str, str]:
        found = store.fingerprint("a/b")
        assert found is not None
        return found, store.tag("a/b/02.json")

    def is_unchanged(seen: tuple[str, str]) -> bool:
        return store.is_unchanged("a/b", seen[0], "02.json", seen[1], "03.json")

    store.put("a/b/01.json", b"1")
    store.put("a/b/02.json", b"2")
    store.put("a/b/_last", b"")
    seen = look()
    assert is_unchanged(seen)
    store.put("a/b/03.json", b"3")
    assert not is_unchanged(seen)
    store.delete(["a/b/03.json"])
    seen = look()
    assert is_unchanged(seen)
    store.put("a/b/02.json", b"4")
    assert not is_unchanged(seen)
    seen = look()
    store.delete(["a/b/02.json"])
    assert not is_unchanged(seen)
    seen = look()
    assert seen[1] == ""
    assert is_unchanged(seen)


def test_the_place_goes_to_other_processes(place: Place) -> None:
    """By pickle; who gets it opens it."""
    open_store(place).make_directory("a")
    open_store(place).put("a/1", b"here")
    there = pickle.loads(pickle.dumps(place))
    assert there == place
    assert open_store(there / "a").read("1", MANY) == b"here"


# -- what a store on a network does besides ------------------------------------------------------


def test_a_missing_bucket_is_named(bucket: ObjectAddress) -> None:
    """By all that is done there: it is no empty one."""
    store = open_store(bucket._replace(bucket="no-such-bucket"))
    calls: list[Callable[[], object]] = [
        lambda: store.names(""),
        lambda: list(store.list()),
        lambda: store.read("1", MANY),
        lambda: store.put("1", b""),
        lambda: store.put_if_absent("1", b""),
    ]
    for call in calls:
        with pytest.raises(ArchiveUnavailable, match=r"s3://no-such-bucket/.*NoSuchBucket"):
            call()


def test_a_server_that_is_down_is_given_up_and_found_again(
    bucket: ObjectAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked then says so, soon, and without credentials."""
    open_store(bucket).put("1", b"here")
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(ArchiveUnavailable, match="no connection to the server") as caught:
            open_store(bucket).read("1", MANY)
    assert str(bucket) in str(caught.value)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    assert open_store(bucket).read("1", MANY) == b"here"


def test_a_server_that_says_nothing_is_given_up(
    bucket: ObjectAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some tries."""
    monkeypatch.setattr(store_object, "SILENCE_SECONDS", 0.1)
    monkeypatch.setattr(store_object, "RETRIES", 1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        for name, value in environment(f"http://127.0.0.1:{silent.getsockname()[1]}").items():
            monkeypatch.setenv(name, value)
        for call in (open_store(bucket).names, open_store(bucket).stat):
            with pytest.raises(ArchiveUnavailable, match="the server does not answer"):
                call("a")


def test_a_key_that_was_changed_is_tried_at_once(
    bucket: ObjectAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is opened later takes what the environment says then."""
    first = store_object._client(bucket, (), 1)
    assert store_object._client(bucket, (), 1) is first
    assert store_object._client(bucket, (("AWS_REGION", "x"),), 1) is not first
    assert store_object._client(bucket, (), 2) is not first


def test_an_endpoint_without_tls_has_to_be_allowed(
    bucket: ObjectAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the variable that others want, too."""
    for value in ("false", ""):
        monkeypatch.setenv("AWS_ALLOW_HTTP", value)
        with pytest.raises(ArchiveUnavailable, match="AWS_ALLOW_HTTP"):
            open_store(bucket).names("")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (
            "403 Forbidden: <Error><Code>InvalidAccessKeyId</Code><Message>No such key.</Message>"
            "<AWSAccessKeyId>somebody</AWSAccessKeyId></Error>\n\nDebug: somebody",
            "the server says InvalidAccessKeyId: No such key",
        ),
        (
            "x - Server returned non-2xx status code: 403 Forbidden: ",
            "the server says 403 Forbidden",
        ),
        ("Generic error at http://u:p@host/bucket\nDebug", "Generic error at ..."),
        (
            "Generic S3 error: Error getting list response body: HTTP error: request or response "
            "body error\n\nDebug source:\n...",
            "the server's answer ends too early",
        ),
        (
            "Kernel error -> Generic S3 error\n\x1b[31m\u21b3\x1b[0m Error performing GET "
            "http://u:p@host/bucket in 5ms - HTTP error\n \x1b[31m\u21b3\x1b[0m client error "
            "(Connect)\n  \x1b[31m\u21b3\x1b[0m Connection refused (os error 111)",
            "no connection to the server: Connection refused (os error 111)",
        ),
        (
            "Kernel error -> Generic S3 error\n\x1b[31m\u21b3\x1b[0m Error performing GET "
            "http://u:p@host/bucket\n \x1b[31m\u21b3\x1b[0m invalid length",
            "invalid length",
        ),
    ],
)
def test_of_an_error_only_the_problem_is_told(answer: str, problem: str) -> None:
    """Requests and credentials are not."""
    assert store_object.problem_of(Exception(answer)) == problem
