# Tests: tests/archive/test_store.py
"""The store in a directory of this machine or of a network file system."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from brokerd.archive.contract.layout import UNFINISHED
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.storage.disk import Disk, RealDisk, Status
from brokerd.archive.storage.store import Entry

REPLACEMENT = ".put-"
"""The prefix of temporary files that replace another file once they are complete."""
READ_ONLY = (errno.EROFS, errno.EINVAL)
"""Errors of fsync on a read-only file system, where no sync is needed."""
_COPY_BYTES = 1 << 20
_REAL_DISK = RealDisk()


class LocalStore:
    """Implements `brokerd.archive.storage.store.Store`."""

    is_local = True
    deltalake_options: dict[str, str] | None = None

    def __init__(self, root: Path, disk: Disk = _REAL_DISK) -> None:
        self.place = root
        self._disk = disk

    def _full(self, path: str) -> str:
        return str(self.place / path)

    def _status(self, path: str | Path) -> Status | None:
        """Return the metadata of a file or directory by its full path, or None if it is absent."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return self._disk.status(str(path))
        return None

    # -- reading ---------------------------------------------------------------------------------

    def read(self, path: str, bytes_max: int) -> bytes:
        full = self._full(path)
        with _unavailable(full, "read"):
            file = self._disk.open(full)
            size = file.size()
            if size > bytes_max:
                raise OSError(errno.EFBIG, f"it has {size} bytes", full)
            return file.pread(size, 0)

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        file = self.open(path)
        return [file.read(position, size) for position, size in ranges]

    def open(self, path: str, ahead_bytes: int = 0) -> LocalInputFile:
        full = self._full(path)
        with _unavailable(full, "read"):
            return LocalInputFile(self._disk, full)

    def stat(self, path: str) -> Entry:
        full = self._full(path)
        with _unavailable(full, "read"):
            return _entry(path, self._disk.status(full))

    def exists(self, path: str) -> bool:
        return self._status(self._full(path)) is not None

    def is_file(self, directory: str) -> bool:
        found = self._status(self._full(directory))
        return found is not None and not found.is_directory

    def names(self, directory: str) -> set[str]:
        full = self._full(directory)
        with _unavailable(full, "read"):
            return set(self._disk.names(full))

    def list(self, directory: str = "", *, hidden: bool = False) -> Iterator[Entry]:
        top = self._full(directory)
        with _unavailable(top, "read"):
            for found, below, names in self._disk.walk(top):
                below[:] = sorted(name for name in below if hidden or name[0] not in "_.")
                for name in sorted(names):
                    full = Path(found, name)
                    with suppress(FileNotFoundError):
                        path = full.relative_to(self.place).as_posix()
                        yield _entry(path, self._disk.status(str(full)))

    def fingerprint(self, directory: str) -> str | None:
        return self.tag(directory) or None

    def is_unchanged(
        self, directory: str, fingerprint: str, last: str, tag: str, following: str
    ) -> bool:
        is_same = self.fingerprint(directory) == fingerprint
        return is_same and not self.exists(f"{directory}/{following}")

    def tag(self, path: str) -> str:
        full = self._full(path)
        with _unavailable(full, "read"):
            found = self._status(full)
        return "" if found is None else _entry(path, found).tag

    def drop_cached(self, path: str) -> None:
        """Drop a file from the page cache. The kernel reads it ahead during decoding."""
        full = self._full(path)
        with _unavailable(full, "read"):
            self._disk.drop_cached(full)

    # -- writing ---------------------------------------------------------------------------------

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        full = self._full(path)
        directory = os.path.dirname(full)
        temporary = f"{directory}/{REPLACEMENT}{secrets.token_hex(8)}.tmp"
        with _unavailable(full, "written"):
            try:
                self._write(temporary, data, durable)
                self._disk.rename(temporary, full)
            except OSError as error:
                error.filename = full
                with suppress(OSError):  # the first error is the cause
                    self._disk.unlink(temporary)
                raise
            if durable:
                sync_directory(directory, self._disk)

    def _write(self, path: str, data: bytes, durable: bool) -> None:
        """Write a file. A crash may lose its name."""
        file = self._disk.create(path)
        try:
            file.pwrite(data, 0)
            if durable:
                file.sync()
        finally:
            file.close()

    def put_if_absent(self, path: str, data: bytes) -> bool:
        full = self._full(path)
        temporary = f"{os.path.dirname(full)}/.commit-{secrets.token_hex(8)}.tmp"
        with _unavailable(full, "written"):
            try:
                self._write(temporary, data, True)
                try:
                    self._disk.link(temporary, full)
                except FileExistsError:
                    return False
            finally:
                with suppress(FileNotFoundError):
                    self._disk.unlink(temporary)
        return True

    def supports_put_if_absent(self, directory: str) -> bool:
        return True  # link(2)

    def create(self, directory: str) -> LocalOutputFile:
        return LocalOutputFile(self._disk, self.place, directory)

    def upload(self, path: str, source: Path) -> None:
        output = self.create(path.rpartition("/")[0])
        try:
            with _unavailable(self._full(path), "written"), open(source, "rb") as file:
                while data := file.read(_COPY_BYTES):
                    output.write(data)
                output.publish(path)
        finally:
            output.discard()

    def make_directory(self, directory: str) -> None:
        with _unavailable(self._full(directory), "written"):
            self._make_directories(self.place / directory)

    def _make_directories(self, path: Path) -> None:
        """Make a directory and its parents durable. A stopped writer may have made them."""
        if self._status(path) is not None:
            with suppress(PermissionError):  # the parent belongs to another user
                sync_directory(str(path.parent), self._disk)
            return
        self._make_directories(path.parent)
        self._disk.mkdir(str(path))
        sync_directory(str(path.parent), self._disk)

    def sync_directory(self, directory: str) -> None:
        full = self._full(directory)
        with _unavailable(full, "read"):
            sync_directory(full, self._disk)

    def sync_file(self, path: str) -> None:
        full = self._full(path)
        with _unavailable(full, "read"):
            self._disk.open(full).sync()

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            full = self._full(path)
            with _unavailable(full, "written"), suppress(FileNotFoundError):
                self._disk.unlink(full)

    def check_writable(self, directories: Iterable[str]) -> None:
        for directory in directories:
            path = self.place / directory
            path = next(one for one in (path, *path.parents) if self._status(one) is not None)
            if not self._disk.is_writable(str(path)):
                raise ArchiveUnavailable(
                    f"{path} cannot be written: check the permissions of user {os.geteuid()}, and "
                    "whether the file system is mounted read-only"
                )

    @contextmanager
    def exclusive(self, directory: str) -> Iterator[bool]:
        full = self._full(directory)
        with ExitStack() as stack:
            with _unavailable(full, "written"):
                is_alone = stack.enter_context(self._disk.lock(full))
            yield is_alone


class LocalInputFile:
    """Implements `brokerd.archive.storage.store.InputFile`. It survives deletion of the file."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._path = path
        self._file = disk.open(path)
        self.size = self._file.size()

    def read(self, position: int, size: int) -> bytes:
        with _unavailable(self._path, "read"):
            return self._file.pread(size, position)

    def read_tail(self, size: int) -> bytes:
        return self.read(max(0, self.size - size), size)

    def drop_tail(self) -> None:
        """Do nothing: the page cache belongs to the kernel."""


class LocalOutputFile:
    """Implements `brokerd.archive.storage.store.OutputFile`: a temporary file in the directory."""

    def __init__(self, disk: Disk, root: Path, directory: str) -> None:
        self._disk = disk
        self._root = root
        self._directory = root / directory
        self._make_directories(self._directory)
        self._path = str(self._directory / f"{UNFINISHED}{os.urandom(8).hex()}.parquet")
        self._file = disk.create(self._path, 0o644)
        self._position = 0
        self._is_open = True

    def _make_directories(self, path: Path) -> None:
        """Make a directory and its parents, which `publish` syncs."""
        try:
            self._disk.mkdir(str(path))
        except FileNotFoundError:
            self._make_directories(path.parent)
            self._disk.mkdir(str(path))

    def write(self, data: bytes | memoryview) -> None:
        with self._named():
            self._file.pwrite(data, self._position)
        self._position += len(data)

    def publish(self, path: str) -> None:
        with self._named():
            self._file.sync()
        self._disk.rename(self._path, str(self._root / path))
        self._close()
        # The writer that made a directory may have died before it synced the parent.
        directory = self._directory
        self._disk.sync_directory(str(directory))
        while directory != self._root:
            directory = directory.parent
            self._disk.sync_directory(str(directory))

    def discard(self) -> None:
        if self._is_open:
            with suppress(FileNotFoundError):
                self._disk.unlink(self._path)
            self._close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add the path to an OSError."""
        try:
            yield
        except OSError as error:
            error.filename = self._path
            raise

    def _close(self) -> None:
        self._is_open = False
        self._file.close()


def sync_directory(path: Path | str, disk: Disk = _REAL_DISK) -> None:
    """Make the names in a directory durable. Accept a read-only file system. Raises OSError."""
    try:
        disk.sync_directory(str(path))
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise


def sync_strictly(path: Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    _REAL_DISK.sync_directory(str(path))


def _entry(path: str, status: Status) -> Entry:
    identity = (status.device, status.inode, status.size, status.changed_ns)
    changed_ms = status.changed_ns // 1_000_000
    return Entry(path, status.size, changed_ms, "-".join(map(str, identity)))


@contextmanager
def _unavailable(path: str, what: str) -> Iterator[None]:
    """Convert an OSError to an ArchiveUnavailable. The text says: ``path`` cannot be ``what``."""
    try:
        yield
    except OSError as error:
        if what == "read" and isinstance(error, FileNotFoundError):
            raise
        text = f"{error.filename or path} cannot be {what}: {error.strerror or error}"
        raise ArchiveUnavailable(text) from error
