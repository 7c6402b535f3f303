# Tests: tests/archive/test_store.py
"""What the tables of an archive need of the place where they are: a directory or an object store.

Paths are relative to the place, with ``/`` between names. A file is there whole or not at all, and
durable once a call that wrote it returned. `open_store` takes a `Place`, which can be pickled: open
a store where it is used.

What it raises, all of it with the address of the file: FileNotFoundError from what reads a file
that is not there, and `ArchiveUnavailable` for whatever else the disk or the server said, or when
the server did not answer in time. A `OutputFile` raises OSError, too: what the disk said that it is
written to. No text holds credentials.

Object stores are S3 and those that speak like it; Google's and Azure's are not tried. Endpoint,
region and credentials come from the environment: ``AWS_ENDPOINT_URL``, ``AWS_REGION``,
``AWS_ACCESS_KEY_ID`` and so on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from brokerd.archive.storage.address import ObjectAddress, Place, place_of

__all__ = ["OutputFile", "Entry", "Place", "Store", "InputFile", "open_store"]


class Entry(NamedTuple):
    """A file as it is now."""

    path: str
    size: int
    changed_ms: int
    """When it was written, in milliseconds since the Unix epoch by the clock of the disk or server.
    """
    tag: str
    """Differs from that of any other content under the same path."""


class InputFile(Protocol):
    """A file that is read in pieces, by any number of threads. A local one stays open."""

    @property
    def size(self) -> int: ...

    def read(self, position: int, size: int) -> bytes:
        """So many bytes, or less where the file ends. Raises as the store does."""

    def read_tail(self, size: int) -> bytes:
        """The last bytes, all of them if there are less; quickly, right after it was opened."""

    def drop_tail(self) -> None:
        """Keep nothing in memory for `read_tail`."""


class OutputFile(Protocol):
    """A file that is being written."""

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes. Raises OSError, a full disk for instance, with the file's name."""

    def publish(self, path: str) -> None:
        """Have the file there, whole and durable, and be done. Its path begins with the directory
        that the draft was made for."""

    def discard(self) -> None:
        """Leave nothing; after `publish` nothing happens."""


class Store(Protocol):
    """The files below one place. For any number of threads."""

    @property
    def place(self) -> Place: ...

    @property
    def is_local(self) -> bool:
        """Whether the place is a directory."""

    # -- reading ---------------------------------------------------------------------------------

    def read(self, path: str, bytes_max: int) -> bytes:
        """All of a file. ArchiveUnavailable if it has more bytes than that."""

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Pieces of a file, each by position and size; a piece is short where the file ends."""

    def open(self, path: str, ahead_bytes: int = 0) -> InputFile:
        """Open a file.

        :param ahead_bytes: read at least so much at once of an object, and keep it for the next
            read: for those who read a file from its beginning to its end.
        """

    def stat(self, path: str) -> Entry: ...

    def exists(self, path: str) -> bool:
        """Whether a file is there."""

    def names(self, directory: str) -> set[str]:
        """Names of files and directories right in a directory; none if it is not there."""

    def list(self, directory: str = "", *, hidden: bool = False) -> Iterator[Entry]:
        """Every file below a directory.

        :param hidden: also in directories whose name begins with ``_`` or ``.``.
        """

    def fingerprint(self, directory: str) -> str | None:
        """Describe the state of a directory for `is_unchanged`; None: there is no directory."""

    def is_unchanged(
        self, directory: str, fingerprint: str, last: str, tag: str, following: str
    ) -> bool:
        """Whether it is plain, from little, that a directory has nothing new.

        :param fingerprint: of the directory before its files were read.
        :param last: the name of the last of those that are numbered.
        :param tag: its tag; "" if it is not there.
        :param following: the name that the next would have.
        """

    def tag(self, path: str) -> str:
        """The tag of a file; "" if it is not there."""

    def drop_cached(self, path: str) -> None:
        """Have what is read next come from the disk."""

    # -- writing ---------------------------------------------------------------------------------

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file, in place of another if there is one.

        :param durable: False: it may be lost when the machine stops.
        """

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write a file unless one of this path is there: then return False.

        Of any number of callers one at most gets True, but for those whose bytes are the same. On a
        local disk the name is durable once `sync_directory` returned.
        """

    def supports_put_if_absent(self, directory: str) -> bool:
        """Try `put_if_absent` in a directory, and leave no file; False: it does not work."""

    def create(self, directory: str) -> OutputFile:
        """Begin a file in a directory, which is made if it is not there. Raises OSError."""

    def upload(self, path: str, source: Path) -> None:
        """Copy a finished local file, in place of another if there is one."""

    def make_directory(self, directory: str) -> None:
        """Make a directory and those above it, durably, where there are such things."""

    def sync_directory(self, directory: str) -> None:
        """Have the names in a directory on the disk."""

    def sync_file(self, path: str) -> None:
        """Have a file on the disk that another program wrote; its name may still be lost."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; those that are not there any more are no error."""

    def check_writable(self, directories: Iterable[str]) -> None:
        """Look whether files can be written in directories, as far as that is told beforehand."""

    def exclusive(self, directory: str) -> AbstractContextManager[bool]:
        """Be the only one who does what is done now, as far as the store can tell.

        False: another process is at it. On an object store always True.
        """


def open_store(place: Place | str) -> Store:
    """The files at a place, or at the one that has this ``str``; nothing is looked at yet.

    Raises ArchiveUnavailable if what is needed to come there is not installed, or not set.
    """
    place = place_of(place) if isinstance(place, str) else place
    if isinstance(place, ObjectAddress):
        from brokerd.archive.storage.bucket import open_bucket

        return open_bucket(place)
    from brokerd.archive.storage.local import LocalStore

    return LocalStore(place)
