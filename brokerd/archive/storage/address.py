# Tests: tests/archive/test_address.py
"""Parses the address of an archive: the option ``archive.uri``. Uses neither disk nor network.

A `Place` is a directory or an address in a bucket. Both support ``/``, ``str`` and pickle.
`brokerd.archive.storage.store.open_store` opens them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from brokerd.errors import ConfigError

NAME = "archive"
"""The default directory of the archive, in the data directory."""
OBJECT_SCHEMES = ("s3", "gs", "az")

_OWN = ("event-index", "lock", "run", "state", "wal")
"""Directories of the data directory that belong to the broker."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,220}[A-Za-z0-9]")
_KEY = re.compile(r"[A-Za-z0-9=,@+_.-]+")
"""A part of a key between slashes. No store or library escapes these characters."""


class ObjectAddress(NamedTuple):
    """An address in a bucket: ``s3://bucket/key``."""

    scheme: str
    bucket: str
    key: str
    """The prefix of all its keys, without the slash; "" for the whole bucket."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.key}" if self.key else "")

    def __truediv__(self, name: str) -> ObjectAddress:
        return self._replace(key=f"{self.key}/{name}" if self.key else name)

    @property
    def name(self) -> str:
        """Return the last part of the key."""
        return self.key.rpartition("/")[2]


Place = Path | ObjectAddress


def address(uri: str, data_dir: Path) -> Place:
    """Parse the option ``archive.uri``. Return an absolute path or an address in a bucket.

    :param uri: a path relative to the working directory, a ``file:`` URI (RFC 8089), or
        ``s3://bucket/key``. "" is the default directory in ``data_dir``.
    :raises ConfigError: ``uri`` has another form, or is in a directory of the broker.
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
                f"archive.uri: {uri!r} is in {str(data_dir / name)!r}, which belongs to the "
                "broker; name another directory"
            )
    return found


def place_of(text: str) -> Place:
    """Return the place whose ``str`` is a text."""
    return object_address(text) if _is_object(text) else Path(text)


def check_uri(uri: str) -> str | ObjectAddress:
    """Parse a URI into a path or an address in a bucket.

    Raises ConfigError if an archive cannot have this URI.
    """
    if "\0" in uri:
        raise ConfigError(f"archive.uri: {uri!r} contains a zero byte; remove it")
    scheme = _SCHEME.match(uri)
    if scheme is None:
        return uri
    if _is_object(uri):
        return object_address(uri)
    if scheme[0].lower() != "file:":
        raise ConfigError(
            f"archive.uri: {uri!r} is neither a local directory nor an object store that brokerd "
            "supports: name a path, a file: URI, or s3://BUCKET/NAME"
        )
    parts = urlsplit(uri)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise ConfigError(
            f"archive.uri: {uri!r} is not a file: URI of this machine, such as file:///srv/archive"
        )
    return path


def _is_object(uri: str) -> bool:
    """Return whether a URI has the scheme of an object store. ``./s3:a`` is a path."""
    scheme = _SCHEME.match(uri)
    return scheme is not None and scheme[0][:-1].lower() in OBJECT_SCHEMES


def object_address(uri: str) -> ObjectAddress:
    """Parse an address in a bucket. Raises ConfigError, whose text holds no password."""
    scheme, _, rest = uri.partition(":")
    bucket, _, key = rest.removeprefix("//").partition("/")
    if "@" in bucket:
        raise ConfigError(
            "archive.uri: remove the credentials from the address of the bucket; they come from "
            "the environment (docs/archive.rst)"
        )
    if not rest.startswith("//") or not _BUCKET.fullmatch(bucket):
        raise ConfigError(f"archive.uri: {uri!r} names no bucket, as {scheme}://BUCKET/NAME does")
    parts = key.strip("/").split("/") if key.strip("/") else []
    for part in parts:
        if not _KEY.fullmatch(part) or part in (".", ".."):
            raise ConfigError(
                f"archive.uri: {uri!r} contains {part!r}: between two slashes there must be "
                "letters, digits or =,@+_.-"
            )
    return ObjectAddress(scheme.lower(), bucket, "/".join(parts))
