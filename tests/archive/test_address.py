"""Where ``archive.uri`` says that the archive is."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from brokerd.archive.storage.address import ObjectAddress, address, place_of
from brokerd.errors import ConfigError

DATA = Path("/var/lib/brokerd")


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("", "/var/lib/brokerd/archive"),
        ("/srv/a", "/srv/a"),
        ("/srv/../srv/a/", "/srv/a"),
        ("file:/srv/a", "/srv/a"),
        ("file:///srv/a%20b", "/srv/a b"),
        ("FILE://localhost/srv/a", "/srv/a"),
        ("/srv/100%25", "/srv/100%25"),
        ("/srv/s3:a", "/srv/s3:a"),
    ],
)
def test_a_directory_of_this_machine(uri: str, path: str) -> None:
    """By path or as a file: URI, in which alone % begins a code."""
    assert address(uri, DATA) == Path(path)


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("s3://bucket", ObjectAddress("s3", "bucket", "")),
        ("S3://my.bucket-1/", ObjectAddress("s3", "my.bucket-1", "")),
        ("s3://bucket/some/archive/", ObjectAddress("s3", "bucket", "some/archive")),
        ("gs://bucket/a=1,b@c+d_e.f-g", ObjectAddress("gs", "bucket", "a=1,b@c+d_e.f-g")),
        ("az://container/archive", ObjectAddress("az", "container", "archive")),
    ],
)
def test_an_object_store(uri: str, place: ObjectAddress) -> None:
    """A bucket, or what begins with a name in it; wherever the data is."""
    assert address(uri, DATA) == place
    assert address(str(place), DATA) == place
    assert place_of(str(place)) == place
    assert place_of("/srv/a") == Path("/srv/a")
    assert pickle.loads(pickle.dumps(place)) == place


def test_credentials_in_an_address_are_refused_and_not_told() -> None:
    """They would get into logs."""
    with pytest.raises(ConfigError, match="environment") as caught:
        address("s3://somebody:password@bucket/a", DATA)
    assert "password" not in str(caught.value)


def test_what_is_below_a_place() -> None:
    """As with directories."""
    place = ObjectAddress("s3", "bucket", "")
    assert str(place / "records" / "_delta_log") == "s3://bucket/records/_delta_log"
    assert (place / "records" / "_delta_log").name == "_delta_log"


def test_a_relative_path_begins_where_that_of_the_data_begins() -> None:
    """In the working directory."""
    assert address("old", Path("data")) == Path(os.getcwd()) / "old"
    assert address("", Path("data")) == Path(os.getcwd()) / "data" / "archive"


@pytest.mark.parametrize(
    ("uri", "part"),
    [
        ("hdfs:/archive", "neither a local directory nor an object store"),
        ("s3:bucket/archive", "names no bucket"),
        ("s3:///archive", "names no bucket"),
        ("s3://b/archive", "names no bucket"),
        ("s3://bucket:80/archive", "names no bucket"),
        ("s3://bucket/a//b", "letters, digits"),
        ("s3://bucket/a/../b", "letters, digits"),
        ("s3://bucket/a?region=x", "letters, digits"),
        ("s3://bucket/a%20b", "letters, digits"),
        ("file://other/archive", "not a file: URI of this machine"),
        ("file:archive", "not a file: URI of this machine"),
        ("file:///a%00b", "not a file: URI of this machine"),
        ("/a\0b", "zero byte"),
        ("/var/lib/brokerd/wal", "belongs to the broker"),
        ("/var/lib/brokerd/state/archive", "belongs to the broker"),
    ],
)
def test_anything_else_is_refused(uri: str, part: str) -> None:
    """With what to name instead."""
    with pytest.raises(ConfigError, match=part):
        address(uri, DATA)
