"""Where ``archive.uri`` says that the archive is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brokerd.archive.address import address
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


def test_a_relative_path_begins_where_that_of_the_data_begins() -> None:
    """In the working directory."""
    assert address("old", Path("data")) == Path(os.getcwd()) / "old"
    assert address("", Path("data")) == Path(os.getcwd()) / "data" / "archive"


@pytest.mark.parametrize(
    ("uri", "part"),
    [
        ("s3://bucket/archive", "local directories only"),
        ("hdfs:/archive", "local directories only"),
        ("file://other/archive", "no file: URI of this machine"),
        ("file:archive", "no file: URI of this machine"),
        ("file:///a%00b", "no file: URI of this machine"),
        ("/a\0b", "zero byte"),
        ("/var/lib/brokerd/wal", "the broker's own"),
        ("/var/lib/brokerd/state/archive", "the broker's own"),
    ],
)
def test_anything_else_is_refused(uri: str, part: str) -> None:
    """With what to name instead."""
    with pytest.raises(ConfigError, match=part):
        address(uri, DATA)
