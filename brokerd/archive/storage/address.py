# Tests: tests/archive/test_address.py
"""Where an archive is, from what the option ``archive.uri`` says. Touches no disk, no network.

A `Place` is a directory, or an address on an object store. Either has ``/`` and ``str``, and can be
pickled; `brokerd.archive.storage.store.open_store` reads and writes there.
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


def address(uri: str, data_dir: Path) -> Place:
    """Where ``uri`` says, a directory as an absolute path; "" means the one in ``data_dir``.

    A path, relative to the working directory as that of the data directory is, a ``file:`` URI
    (RFC 8089), or ``s3://bucket/key``. Raises ConfigError for anything else, and for a place that
    is the broker's own.
    """
    data_dir = Path(os.path.abspath(data_dir))
    if not uri:
        return data_dir / NAME
    place = check_uri(uri)
    if isinstance(place, ObjectAddress):
        return place
    found = Path(os.path.abspath(place))
    for name in _OWN:
        if found.is_relative_to(data_dir / name):
            raise ConfigError(
                f"archive.uri: {uri!r} is in {str(data_dir / name)!r}, which is the broker's own; "
                "name a directory that is not"
            )
    return found


def place_of(text: str) -> Place:
    """The place of which this is the ``str``."""
    return object_address(text) if _is_object(text) else Path(text)


def check_uri(uri: str) -> str | ObjectAddress:
    """The path or the address that a ``uri`` means.

    Raises ConfigError if archives cannot be there.
    """
    if "\0" in uri:
        raise ConfigError(f"archive.uri: {uri!r} holds a zero byte; leave it out")
    scheme = _SCHEME.match(uri)
    if scheme is None:
        return uri
    if _is_object(uri):
        return object_address(uri)
    if scheme[0].lower() != "file:":
        raise ConfigError(
            f"archive.uri: {uri!r} is no local directory, and on no object store that brokerd "
            "knows: name a path, a file: URI, or s3://BUCKET/NAME"
        )
    parts = urlsplit(uri)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise ConfigError(
            f"archive.uri: {uri!r} is no file: URI of this machine, such as file:///srv/archive"
        )
    return path


def _is_object(uri: str) -> bool:
    """Whether it begins with a scheme of object stores. A path that does is written ``./s3:a``."""
    scheme = _SCHEME.match(uri)
    return scheme is not None and scheme[0][:-1].lower() in OBJECT_SCHEMES


def object_address(uri: str) -> ObjectAddress:
    """An address on an object store. What it says of one that is none holds no password.

    Raises ConfigError.
    """
    scheme, _, rest = uri.partition(":")
    bucket, _, key = rest.removeprefix("//").partition("/")
    if "@" in bucket:
        raise ConfigError(
            "archive.uri: credentials have no place in the address of a bucket; they come from the "
            "environment (docs/archive.rst)"
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
