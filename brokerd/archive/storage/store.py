# Tests: tests/archive/test_store.py
"""The interface to the files of an archive: in a directory or in a bucket.

Paths are relative to the archive's address, with ``/`` between names. A file is complete or absent.
It is durable when the call that writes it returns. `open_store` takes a `Place`, which can be
pickled. Open the store in the process that uses it.

Errors name the file's address and hold no credentials. Reading an absent file raises
FileNotFoundError. Every other error of disk or server, and a late answer, raises
`ArchiveUnavailable`. An `OutputFile` also raises OSError, for the disk it writes to.

Tests cover S3 and compatible object stores, but not the object stores of Google and Azure.
Endpoint, region and credentials come from the environment: ``AWS_ENDPOINT_URL``, ``AWS_REGION``,
``AWS_ACCESS_KEY_ID`` and so on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from brokerd.archive.storage.address import ObjectAddress, Place, place_of

__all__ = ["Entry", "InputFile", "OutputFile", "Place", "Store", "open_store"]


class Entry(NamedTuple):
    """A file in a listing."""

    path: str
    size: int
    changed_ms: int
    """Time of the last write by the clock of disk or server: milliseconds since the Unix epoch."""
    tag: str
    """An opaque value that changes with the content of the file."""


class InputFile(Protocol):
    """A file open for reading, by any number of threads. A local file keeps a descriptor."""

    @property
    def size(self) -> int: ...

    def read(self, position: int, size: int) -> bytes:
        """Read ``size`` bytes, fewer at the end of the file. Raises the errors of the store."""

    def read_tail(self, size: int) -> bytes:
        """Read the last ``size`` bytes. Opening an object has already fetched a part of them."""

    def drop_tail(self) -> None:
        """Free the memory that `read_tail` uses."""


class OutputFile(Protocol):
    """A file open for writing."""

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes. Raises OSError with the file's name, for example ENOSPC."""

    def publish(self, path: str) -> None:
        """Give the file its path, complete and durable, and close it.

        The path begins with the directory of `Store.create`. The names of all directories up to the
        store's address become durable, too.
        """

    def discard(self) -> None:
        """Delete the file; no effect after `publish`."""


class Store(Protocol):
    """The files below one address, for any number of threads."""

    @property
    def place(self) -> Place: ...

    @property
    def is_local(self) -> bool:
        """Return whether the address is a directory."""

    @property
    def deltalake_options(self) -> dict[str, str] | None:
        """Return storage options for deltalake, which takes other options from the environment."""

    # -- reading ---------------------------------------------------------------------------------

    def read(self, path: str, bytes_max: int) -> bytes:
        """Read a whole file. Raises ArchiveUnavailable if it is larger than ``bytes_max``."""

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read pieces of a file by position and size. The end of the file cuts a piece short."""

    def open(self, path: str, ahead_bytes: int = 0) -> InputFile:
        """Open a file.

        :param ahead_bytes: fetch at least so much of an object at once, for sequential reading.
        """

    def stat(self, path: str) -> Entry: ...

    def exists(self, path: str) -> bool:
        """Return whether a file exists."""

    def is_file(self, directory: str) -> bool:
        """Return whether a file takes the name of a directory. A bucket allows both."""

    def names(self, directory: str) -> set[str]:
        """Return the names of files and directories in a directory; none if it is absent."""

    def list(self, directory: str = "", *, hidden: bool = False) -> Iterator[Entry]:
        """Yield every file below a directory.

        :param hidden: include directories whose names begin with ``_`` or ``.``.
        """

    def fingerprint(self, directory: str) -> str | None:
        """Return the state of a directory for `is_unchanged`, or None if it is absent."""

    def is_unchanged(
        self, directory: str, fingerprint: str, last: str, tag: str, following: str
    ) -> bool:
        """Return True if a directory of numbered files has no new file; False if unknown.

        The check is cheap.

        :param fingerprint: of the directory, taken before its files were read.
        :param last: the name of the last numbered file.
        :param tag: the tag of that file; "" if it is absent.
        :param following: the name of the next file.
        """

    def tag(self, path: str) -> str:
        """Return the tag of a file; "" if it is absent."""

    def drop_cached(self, path: str) -> None:
        """Drop caches of a file, so that the next read comes from the disk."""

    # -- writing ---------------------------------------------------------------------------------

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file, or replace it.

        :param durable: False: the file may be lost when the machine stops.
        """

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write a file and return True; return False if its path exists.

        At most one of several concurrent callers with different data gets True. On a local disk the
        name is durable after `sync_directory`.
        """

    def supports_put_if_absent(self, directory: str) -> bool:
        """Try out `put_if_absent` in a directory; return whether it works. Leave no file."""

    def create(self, directory: str) -> OutputFile:
        """Begin a file in a directory, and make the directory if absent. Raises OSError."""

    def upload(self, path: str, source: Path) -> None:
        """Copy a complete local file to a path, and replace an existing file."""

    def make_directory(self, directory: str) -> None:
        """Make a directory and its parents, durably. A bucket does nothing."""

    def sync_directory(self, directory: str) -> None:
        """Make the names in a directory durable."""

    def sync_file(self, path: str) -> None:
        """Make the content of another library's file durable. A crash may still lose its name."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files. Ignore absent files."""

    def check_writable(self, directories: Iterable[str]) -> None:
        """Raise ArchiveUnavailable if permissions forbid writing. A bucket never raises."""

    def exclusive(self, directory: str) -> AbstractContextManager[bool]:
        """Hold the lock of a directory. Yield False if another process holds it.

        A bucket has no lock and yields True.
        """


def open_store(place: Place | str) -> Store:
    """Return the store at an address, or at its ``str``. Read nothing yet.

    Raises ArchiveUnavailable if a library or a setting is missing.
    """
    place = place_of(place) if isinstance(place, str) else place
    if isinstance(place, ObjectAddress):
        from brokerd.archive.storage.bucket import open_bucket

        return open_bucket(place)
    from brokerd.archive.storage.local import LocalStore

    return LocalStore(place)
