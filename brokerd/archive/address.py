# Tests: tests/archive/test_address.py
"""Where an archive is, from what the option ``archive.uri`` says. Touches no disk, no network.

A `Place` is a directory, or an address on an object store. Either has ``/`` and ``str``, and can be
pickled; `brokerd.archive.store.open_store` reads and writes there.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from brokerd.errors import ConfigError

NAME = "archive"
"""The archive's directory in the data directory, unless the option names another."""
OBJECT_SCHEMES = ("s3", "gs", "az")

_OWN = ("lock", "run", "state", "wal")
"""What in the data directory is the broker's own."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,220}[A-Za-z0-9]")
_KEY = re.compile(r"[A-Za-z0-9=,@+_.-]+")
"""A part of a key between slashes that all stores and libraries write in the same way."""


class ObjectAddress(NamedTuple):
    """An address on an object store: ``s3://bucket/key``."""

    scheme: str
    bucket: str
    key: str
    """What all keys below it begin with, before a slash; "" for all of the bucket."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.key}" if self.key else "")

    def __truediv__(self, name: str) -> ObjectAddress:
        return self._replace(key=f"{self.key}/{name}" if self.key else name)

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]


Place = Path | ObjectAddress


def address(uri: str, data_dir: Path) -> Path:
    """Where ``uri`` says, a directory as an absolute path; "" means the one in ``data_dir``.

    A path, relative to the working directory as that of the data directory is, or a ``file:`` URI
    (RFC 8089). Raises ConfigError for anything else, and for a place that is the broker's own.
    """
    data_dir = Path(os.path.abspath(data_dir))
    if not uri:
        return data_dir / NAME
    found = Path(os.path.abspath(check_uri(uri)))
    for name in _OWN:
        if found.is_relative_to(data_dir / name):
            raise ConfigError(
                f"archive.uri: {uri!r} is in {str(data_dir / name)!r}, which is the broker's own; "
                "name a directory that is not"
            )
    return found


def check_uri(uri: str) -> str:
    """The path that a ``uri`` means. Raises ConfigError if archives cannot be there."""
    if "\0" in uri:
        raise ConfigError(f"archive.uri: {uri!r} holds a zero byte; leave it out")
    scheme = _SCHEME.match(uri)
    if scheme is None:
        return uri
    if scheme[0].lower() != "file:":
        raise ConfigError(
            f"archive.uri: {uri!r} is no local directory, and this version keeps archives in local "
            "directories only: name a path, or a file: URI"
        )
    parts = urlsplit(uri)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise ConfigError(
            f"archive.uri: {uri!r} is no file: URI of this machine, such as file:///srv/archive"
        )
    return path


def object_address(uri: str) -> ObjectAddress:
    """An address on an object store. What it says of one that is none holds no password.

    Raises ConfigError.
    """
    scheme, _, rest = uri.partition(":")
    bucket, _, key = rest.removeprefix("//").partition("/")
    if "@" in bucket:
        raise ConfigError(
            "archive.uri: credentials have no place in the address of a bucket; they come from the "
            "environment (docs/operations.rst)"
        )
    if not rest.startswith("//") or not _BUCKET.fullmatch(bucket):
        raise ConfigError(f"archive.uri: {uri!r} names no bucket, as {scheme}://BUCKET/NAME does")
    parts = key.strip("/").split("/") if key.strip("/") else []
    for part in parts:
        if not _KEY.fullmatch(part) or part in (".", ".."):
            raise ConfigError(
                f"archive.uri: {uri!r} has {part!r} in it: letters, digits and any of =,@+_.- may "
                "stand between two slashes, and something must"
            )
    return ObjectAddress(scheme.lower(), bucket, "/".join(parts))
