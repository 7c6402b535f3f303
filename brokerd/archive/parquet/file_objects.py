# Tests: tests/archive/test_plain_file.py, tests/archive/test_writer.py
"""File objects through which pyarrow reads and writes the files of a store.

pyarrow's file systems support neither `OutputFile.publish` nor brokerd's checksums.
"""

from __future__ import annotations

import os

from xxhash import xxh3_64

from brokerd.archive.storage.store import InputFile, OutputFile


class _Reader:
    """The common part of readable file objects."""

    closed = False

    def __init__(self, end: int) -> None:
        self._end = end
        self._position = 0

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._end}[whence]
        self._position = base + position
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


class FileReader(_Reader):
    """Reads a whole file of a store."""

    def __init__(self, file: InputFile) -> None:
        super().__init__(file.size)
        self._file = file

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._end - self._position)
        data = self._file.read(self._position, left if size < 0 else min(size, left))
        self._position += len(data)
        return data


class PieceReader(_Reader):
    """Reads one verified piece of a file from memory. Raises ValueError for earlier positions.

    :param position: the position of the piece in the file.
    """

    def __init__(self, data: bytes, position: int) -> None:
        super().__init__(position + len(data))
        self._data = memoryview(data)
        self._first = position

    def read(self, size: int = -1) -> memoryview:
        start = self._position - self._first
        end = len(self._data) if size < 0 else start + size
        if start < 0:
            raise ValueError(f"nothing was read at {self._position}")
        piece = self._data[start:end]
        self._position += len(piece)
        return piece


class FileSink:
    """Writes a file of a store, and hashes the bytes since `begin`."""

    def __init__(self, file: OutputFile) -> None:
        self._file = file
        self._hash = xxh3_64()
        self._is_discarding = False
        self.position = 0
        self.closed = False

    def begin(self) -> int:
        """Begin a new checksum, and return the position."""
        self._hash.reset()
        return self.position

    def checksum(self) -> int:
        """Return the checksum of all bytes since `begin`."""
        return self._hash.intdigest()

    def write(self, data: bytes) -> int:
        """Append bytes. Raises an OSError that names the file."""
        if not self._is_discarding:
            self._hash.update(data)
            self._file.write(data)
        self.position += len(data)
        return len(data)

    def ignore_writes(self) -> None:
        """Drop all later bytes. pyarrow writes a footer when its writer is closed."""
        self._is_discarding = True

    def publish(self, path: str) -> None:
        """Give the file its path. Raises OSError and `ArchiveUnavailable`."""
        self._file.publish(path)
        self.closed = True

    def close(self) -> None:
        """Close the file, and delete it unless it was published."""
        self.closed = True
        self._file.discard()

    def flush(self) -> None:
        """Do nothing: the file has no buffer."""

    def tell(self) -> int:
        return self.position

    def writable(self) -> bool:
        return True
