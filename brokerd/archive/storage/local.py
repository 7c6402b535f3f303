# Tests: tests/archive/test_store.py
"""The store in a directory of this machine or of a network file system."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from brokerd.archive.contract.layout import UNFINISHED
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.storage.regular_file import open_regular, read_regular
from brokerd.archive.storage.store import Entry

REPLACEMENT = ".put-"
"""Begins the names of files that replace another file once they are complete."""
READ_ONLY = (errno.EROFS, errno.EINVAL)
"""Errors of fsync on a read-only file system, which has nothing to sync."""
_COPY_BYTES = 1 << 20


class LocalStore:
    """Implements `brokerd.archive.storage.store.Store`."""

    is_local = True
    deltalake_options: dict[str, str] | None = None

    def __init__(self, root: Path) -> None:
        self.place = root

    # -- reading ---------------------------------------------------------------------------------

    def read(self, path: str, bytes_max: int) -> bytes:
        full = self.place / path
        with _unavailable(full, "read"):
            return read_regular(full, bytes_max)

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        file = self.open(path)
        return [file.read(position, size) for position, size in ranges]

    def open(self, path: str, ahead_bytes: int = 0) -> LocalInputFile:
        full = self.place / path
        with _unavailable(full, "read"):
            return LocalInputFile(full)

    def stat(self, path: str) -> Entry:
        full = self.place / path
        with _unavailable(full, "read"):
            return _entry(path, os.stat(full))

    def exists(self, path: str) -> bool:
        return (self.place / path).exists()

    def is_file(self, directory: str) -> bool:
        full = self.place / directory
        return full.exists() and not full.is_dir()

    def names(self, directory: str) -> set[str]:
        full = self.place / directory
        with _unavailable(full, "read"), suppress(FileNotFoundError, NotADirectoryError):
            return set(os.listdir(full))
        return set()

    def list(self, directory: str = "", *, hidden: bool = False) -> Iterator[Entry]:
        def fail(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise error

        top = self.place / directory
        with _unavailable(top, "read"):
            for found, below, names in os.walk(top, onerror=fail):
                below[:] = sorted(name for name in below if hidden or name[0] not in "_.")
                for name in sorted(names):
                    full = Path(found, name)
                    with suppress(FileNotFoundError):
                        path = full.relative_to(self.place).as_posix()
                        yield _entry(path, os.stat(full))

    def fingerprint(self, directory: str) -> str | None:
        return self.tag(directory) or None

    def is_unchanged(
        self, directory: str, fingerprint: str, last: str, tag: str, following: str
    ) -> bool:
        is_same = self.fingerprint(directory) == fingerprint
        return is_same and not self.exists(f"{directory}/{following}")

    def tag(self, path: str) -> str:
        full = self.place / path
        with _unavailable(full, "read"), suppress(FileNotFoundError, NotADirectoryError):
            return _entry(path, os.stat(full)).tag
        return ""

    def drop_cached(self, path: str) -> None:
        """The kernel also reads the whole file ahead, while its first bytes are decoded."""
        full = self.place / path
        with _unavailable(full, "read"):
            descriptor = os.open(full, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)

    # -- writing ---------------------------------------------------------------------------------

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        full = self.place / path
        temporary = full.with_name(f"{REPLACEMENT}{secrets.token_hex(8)}.tmp")
        with _unavailable(full, "written"):
            try:
                if durable:
                    _write_durably(temporary, data)
                else:
                    temporary.write_bytes(data)
                os.replace(temporary, full)
            except OSError as error:
                error.filename = str(full)
                with suppress(OSError):  # the first error is the cause
                    temporary.unlink()
                raise
            if durable:
                sync_directory(full.parent)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        full = self.place / path
        temporary = full.with_name(f".commit-{secrets.token_hex(8)}.tmp")
        with _unavailable(full, "written"):
            try:
                _write_durably(temporary, data)
                try:
                    os.link(temporary, full)
                except FileExistsError:
                    return False
            finally:
                with suppress(FileNotFoundError):
                    temporary.unlink()
        return True

    def supports_put_if_absent(self, directory: str) -> bool:
        return True  # link(2)

    def create(self, directory: str) -> LocalOutputFile:
        return LocalOutputFile(self.place, directory)

    def upload(self, path: str, source: Path) -> None:
        output = self.create(path.rpartition("/")[0])
        try:
            with _unavailable(self.place / path, "written"), open(source, "rb") as file:
                while data := file.read(_COPY_BYTES):
                    output.write(data)
                output.publish(path)
        finally:
            output.discard()

    def make_directory(self, directory: str) -> None:
        full = self.place / directory
        with _unavailable(full, "written"):
            _make_directories(full)

    def sync_directory(self, directory: str) -> None:
        full = self.place / directory
        with _unavailable(full, "read"):
            sync_directory(full)

    def sync_file(self, path: str) -> None:
        full = self.place / path
        with _unavailable(full, "read"):
            _sync(full, os.O_RDONLY)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            full = self.place / path
            with _unavailable(full, "written"):
                full.unlink(missing_ok=True)

    def check_writable(self, directories: Iterable[str]) -> None:
        for directory in directories:
            path = self.place / directory
            path = next(found for found in (path, *path.parents) if found.exists())
            if not os.access(path, os.W_OK | os.X_OK):
                raise ArchiveUnavailable(
                    f"{path} cannot be written: check the permissions of user {os.geteuid()}, and "
                    "whether the file system is mounted read-only"
                )

    @contextmanager
    def exclusive(self, directory: str) -> Iterator[bool]:
        with _unavailable(self.place / directory, "written"):
            descriptor = os.open(self.place / directory, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)


class LocalInputFile:
    """Implements `brokerd.archive.storage.store.InputFile`. It survives deletion of the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = io.FileIO(open_regular(path))
        self.size = os.fstat(self._file.fileno()).st_size

    def read(self, position: int, size: int) -> bytes:
        with _unavailable(self._path, "read"):
            return os.pread(self._file.fileno(), size, position)

    def read_tail(self, size: int) -> bytes:
        return self.read(max(0, self.size - size), size)

    def drop_tail(self) -> None:
        """No effect: the page cache belongs to the kernel."""


class LocalOutputFile:
    """Implements `brokerd.archive.storage.store.OutputFile`: a temporary file in the directory."""

    def __init__(self, root: Path, directory: str) -> None:
        self._root = root
        self._directory = root / directory
        self._directory.mkdir(parents=True, exist_ok=True)
        self._path = self._directory / f"{UNFINISHED}{os.urandom(8).hex()}.parquet"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        self._descriptor = os.open(self._path, flags, 0o644)
        self._is_open = True

    def write(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        with self._named():
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]

    def publish(self, path: str) -> None:
        with self._named():
            os.fsync(self._descriptor)
        os.rename(self._path, self._root / path)
        self._close()
        # The writer that made a directory may have died before it synced the parent.
        directory = self._directory
        sync_strictly(directory)
        while directory != self._root:
            directory = directory.parent
            sync_strictly(directory)

    def discard(self) -> None:
        if self._is_open:
            self._path.unlink(missing_ok=True)
            self._close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add the path to an OSError."""
        try:
            yield
        except OSError as error:
            error.filename = str(self._path)
            raise

    def _close(self) -> None:
        self._is_open = False
        os.close(self._descriptor)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable; a read-only one is. Raises OSError."""
    try:
        sync_strictly(path)
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise


def sync_strictly(path: Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_directories(path: Path) -> None:
    """Make a directory and its parents durable. The newest may be that of a writer that died."""
    if path.exists():
        with suppress(PermissionError):  # of a parent that is not ours
            sync_directory(path.parent)
        return
    _make_directories(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def _write_durably(path: Path, data: bytes) -> None:
    """Write a file and sync it; its name may be lost."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _entry(path: str, status: os.stat_result) -> Entry:
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    return Entry(
        path, status.st_size, status.st_mtime_ns // 1_000_000, "-".join(map(str, identity))
    )


@contextmanager
def _unavailable(path: Path, what: str) -> Iterator[None]:
    """Turn an OSError into an ArchiveUnavailable: ``path`` cannot be ``what``."""
    try:
        yield
    except OSError as error:
        if what == "read" and isinstance(error, FileNotFoundError):
            raise
        text = f"{error.filename or path} cannot be {what}: {error.strerror or error}"
        raise ArchiveUnavailable(text) from error
