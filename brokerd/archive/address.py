# Tests: tests/archive/test_address.py
"""Where an archive is, from what the option ``archive.uri`` says. Touches no disk."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from brokerd.errors import ConfigError

NAME = "archive"
"""The archive's directory in the data directory, unless the option names another."""

_OWN = ("lock", "run", "state", "wal")
"""What in the data directory is the broker's own."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def address(uri: str, data_dir: Path) -> Path:
    """The directory, absolute, that ``uri`` means; "" means the one in ``data_dir``.

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
