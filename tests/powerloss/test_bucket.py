"""A bucket has at each power loss the objects that the server had then."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.powerloss.bucket import ADDRESS, Bucket
from brokerd.archive.storage.bucket import BucketStore, open_bucket


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    with Bucket() as bucket:
        yield bucket


def store_of(bucket: Bucket, position: int = 0) -> BucketStore:
    bucket.position = lambda: position
    return open_bucket(ADDRESS)


def test_a_power_loss_leaves_the_changes_before_it(bucket: Bucket) -> None:
    store_of(bucket, 3).put("a b=c", b"1")
    store_of(bucket, 5).put("a b=c", b"2")
    store_of(bucket, 5).put("d", b"")
    store_of(bucket, 9).delete(["a b=c", "d"])
    key = "archive/a b=c"
    at = {point: bucket.objects_at(point) for point in (2, 3, 4, 5, 8, 9)}
    assert at[2] == at[9] == {}
    assert at[3] == at[4] == {key: b"1"}
    assert at[5] == at[8] == {key: b"2", "archive/d": b""}


def test_a_refused_request_changes_nothing(bucket: Bucket) -> None:
    assert store_of(bucket, 1).put_if_absent("a", b"1")
    assert not store_of(bucket, 2).put_if_absent("a", b"2")
    assert bucket.objects_at(9) == {"archive/a": b"1"}
    assert [change.position for change in bucket.changes] == [1]


def test_a_file_of_several_parts_is_one_object(bucket: Bucket, tmp_path: Path) -> None:
    data = os.urandom(17 << 20)
    (tmp_path / "file").write_bytes(data)
    store_of(bucket, 4).upload("a", tmp_path / "file")
    assert bucket.objects_at(4) == {"archive/a": data}


def test_a_filled_bucket_has_these_objects_alone(bucket: Bucket) -> None:
    """Filling it is no change."""
    store = store_of(bucket, 1)
    store.put("old", b"1")
    bucket.fill({"archive/_log/new": b"2", "archive/other": b"3"})
    assert store.names("") == {"_log", "other"}
    assert store.read("_log/new", 10) == b"2"
    bucket.fill({})
    assert store.names("") == set()
    assert bucket.objects_at(9) == {"archive/old": b"1"}


def test_the_changes_can_be_read_again(bucket: Bucket, tmp_path: Path) -> None:
    store_of(bucket, 1).put("a", b"1")
    bucket.save(tmp_path / "changes")
    again = Bucket()
    again.load(tmp_path / "changes")
    assert again.objects_at(1) == {"archive/a": b"1"}


def test_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "somewhere")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with Bucket():
        assert os.environ["AWS_ENDPOINT_URL"].startswith("http://127.0.0.1:")
    assert os.environ["AWS_REGION"] == "somewhere"
    assert "AWS_ENDPOINT_URL" not in os.environ
