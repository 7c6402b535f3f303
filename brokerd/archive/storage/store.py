# Tests: tests/archive/test_store.py
"""The interface to the files of an archive: in a directory or in a bucket.

Paths are relative to the archive's address, with ``/`` between names. A file is complete or absent,
and durable once the call that wrote it returned. `open_store` takes a `Place`, which can be
pickled: open a store where it is used.

Errors name the file's address and hold no credentials: FileNotFoundError for a file that is read
and does not exist, `ArchiveUnavailable` for every other error of disk or server, also when the
server does not answer in time. An `OutputFile` also raises OSError, for the disk it writes to.

Tested object stores are S3 and compatible ones; those of Google and Azure are not. Endpoint, region
and credentials come from the environment: ``AWS_ENDPOINT_URL``, ``AWS_REGION``,
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
    """Changes with the content of the file."""


class InputFile(Protocol):
    """A file open for reading, by any number of threads. A local one keeps a descriptor."""

    @property
    def size(self) -> int: ...

    def read(self, position: int, size: int) -> bytes:
        """Read ``size`` bytes, fewer at the end of the file. Raises as the store does."""

    def read_tail(self, size: int) -> bytes:
        """Read the last bytes, of which opening an object has fetched some already."""

    def drop_tail(self) -> None:
        """Free the memory that `read_tail` uses."""


class OutputFile(Protocol):
    """A file open for writing."""

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes. Raises OSError, such as ENOSPC, with the file's name."""

    def publish(self, path: str) -> None:
        """Give the file its path, complete and durable, and close it.

        The path begins with the directory that the file was created in. The names of the
        directories above it, up to the store's address, are durable too.
        """

    def discard(self) -> None:
        """Delete the file; no effect after `publish`."""


class Store(Protocol):
    """The files below one address, for any number of threads."""

    @property
    def place(self) -> Place: ...

    @property
    def is_local(self) -> bool:
        """Tell whether the address is a directory."""

    @property
    def deltalake_options(self) -> dict[str, str] | None:
        """The storage options for deltalake; it takes all others from the environment."""

    # -- reading ---------------------------------------------------------------------------------

    def read(self, path: str, bytes_max: int) -> bytes:
        """Read a whole file. Raises ArchiveUnavailable if it is larger than ``bytes_max``."""

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read pieces of a file, each by position and size; a piece ends where the file ends."""

    def open(self, path: str, ahead_bytes: int = 0) -> InputFile:
        """Open a file.

        :param ahead_bytes: fetch at least so much of an object at once, for sequential reading.
        """

    def stat(self, path: str) -> Entry: ...

    def exists(self, path: str) -> bool:
        """Tell whether a file exists."""

    def is_file(self, directory: str) -> bool:
        """Tell whether a file has the name that a directory needs; a bucket allows both."""

    def names(self, directory: str) -> set[str]:
        """List files and directories right in a directory; empty if the directory is absent."""

    def list(self, directory: str = "", *, hidden: bool = False) -> Iterator[Entry]:
        """List every file below a directory.

        :param hidden: include directories whose names begin with ``_`` or ``.``.
        """

    def fingerprint(self, directory: str) -> str | None:
        """Describe the state of a directory for `is_unchanged`; None: it is absent."""

    def is_unchanged(
        self, directory: str, fingerprint: str, last: str, tag: str, following: str
    ) -> bool:
        """Tell cheaply that a directory of numbered files has no new file; False: unknown.

        :param fingerprint: of the directory, from before its files were read.
        :param last: the name of the last numbered file.
        :param tag: the tag of that file; "" if it is absent.
        :param following: the name that the next file gets.
        """

    def tag(self, path: str) -> str:
        """Return the tag of a file; "" if it is absent."""

    def drop_cached(self, path: str) -> None:
        """Make the next read of a file come from the disk."""

    # -- writing ---------------------------------------------------------------------------------

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file, or replace it.

        :param durable: False: the file may be lost when the machine stops.
        """

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write a file; return False if its path exists.

        Of all concurrent callers with different data, at most one gets True. On a local disk the
        name is durable after `sync_directory`.
        """

    def supports_put_if_absent(self, directory: str) -> bool:
        """Try out `put_if_absent` in a directory, and leave no file."""

    def create(self, directory: str) -> OutputFile:
        """Begin a file in a directory, which is made if it is absent. Raises OSError."""

    def upload(self, path: str, source: Path) -> None:
        """Copy a complete local file, or replace the existing one."""

    def make_directory(self, directory: str) -> None:
        """Make a directory and its parents durable; no effect in a bucket."""

    def sync_directory(self, directory: str) -> None:
        """Make the names in a directory durable."""

    def sync_file(self, path: str) -> None:
        """Make the content of a file durable that another library wrote; its name may be lost."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; absent ones are no error."""

    def check_writable(self, directories: Iterable[str]) -> None:
        """Raise ArchiveUnavailable if permissions forbid writing; a bucket does not tell."""

    def exclusive(self, directory: str) -> AbstractContextManager[bool]:
        """Lock a directory meanwhile; False: another process holds it. A bucket gives True."""


def open_store(place: Place | str) -> Store:
    """Return the store at an address, or at the ``str`` of one; reads nothing yet.

    Raises ArchiveUnavailable if a library or a setting is missing.
    """
    place = place_of(place) if isinstance(place, str) else place
    if isinstance(place, ObjectAddress):
        from brokerd.archive.storage.bucket import open_bucket

        return open_bucket(place)
    from brokerd.archive.storage.local import LocalStore

    return LocalStore(place)
