# Tests: tests/archive/test_store.py
"""The store in a bucket, or below a prefix in a bucket. It uses the library obstore.

Time is bounded: the store fails after about a minute without an answer. Errors of the library
contain whole requests and answers. `problem_of` keeps only the cause.

`BucketStore.put_if_absent` uses If-None-Match (RFC 9110, section 13.1.2), which Amazon S3 supports
since August 2024.
"""

from __future__ import annotations

import builtins
import errno
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.storage.address import ObjectAddress
from brokerd.archive.storage.store import Entry
from brokerd.errors import install_text

if TYPE_CHECKING:
    from obstore.store import ObjectStore

CONNECT_SECONDS = 5
SILENCE_SECONDS = 15
"""A connection fails after so long without data."""
REQUEST_SECONDS = 120
RETRIES = 3
RETRY_SECONDS = 30
"""A failed request is not retried after so long."""
DELTALAKE_OPTIONS = {
    "connect_timeout": f"{CONNECT_SECONDS}s",
    "timeout": "60s",
    "max_retries": str(RETRIES),
    "retry_timeout": f"{RETRY_SECONDS}s",
}
"""About the same bounds for deltalake, which takes all other options from the environment."""
PART_BYTES = 8 << 20
PARTS_AT_ONCE = 4
END_BYTES = 64 << 10
"""Opening a file fetches so many bytes of its end. Most footers are shorter."""

_PREFIXES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
"""Prefixes of environment variables."""


def open_bucket(address: ObjectAddress) -> BucketStore:
    """Return the store of an address without a request. Stores of a bucket share connections."""
    prefix = _PREFIXES[address.scheme]
    environment = tuple(sorted(item for item in os.environ.items() if item[0].startswith(prefix)))
    return BucketStore(address, _client(address._replace(key=""), environment, os.getpid()))


@lru_cache(maxsize=16)
def _client(bucket: ObjectAddress, environment: tuple[tuple[str, str], ...], pid: int) -> Any:
    """Make the client of a bucket, for one environment and one process.

    Raises ArchiveUnavailable.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError as error:
        raise ArchiveUnavailable(
            f"{bucket} needs a library that is not installed ({error}): {install_text('archive')}"
        ) from error
    store: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[bucket.scheme]
    allow_http = dict(environment).get(f"{_PREFIXES[bucket.scheme]}ALLOW_HTTP", "")
    try:
        return store(
            bucket.bucket,
            client_options={
                "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
                "read_timeout": timedelta(seconds=SILENCE_SECONDS),
                "timeout": timedelta(seconds=REQUEST_SECONDS),
                "allow_http": allow_http.lower() in ("1", "true", "yes", "on"),
            },
            retry_config={
                "max_retries": RETRIES,
                "retry_timeout": timedelta(seconds=RETRY_SECONDS),
            },
        )
    except (BaseError, ValueError) as error:
        raise ArchiveUnavailable(
            f"{bucket}: the environment lacks settings of the object store: {problem_of(error)}"
        ) from None


class BucketStore:
    """Implements `brokerd.archive.storage.store.Store`."""

    is_local = False
    deltalake_options = DELTALAKE_OPTIONS

    def __init__(self, address: ObjectAddress, client: ObjectStore) -> None:
        self.place = address
        self._client = client
        self._prefix = f"{address.key}/" if address.key else ""

    def _key(self, path: str) -> str:
        return (self._prefix + path).strip("/")

    # -- reading ---------------------------------------------------------------------------------

    def read(self, path: str, bytes_max: int) -> bytes:
        with self._unavailable(path, "read"):
            found = self._client.get(self._key(path))
            size = found.meta["size"]
            if size <= bytes_max:
                return bytes(found.bytes())
        raise ArchiveUnavailable(f"{self.place / path} cannot be read: it has {size} bytes")

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        return [self._range(path, position, size) for position, size in ranges]

    def _range(self, path: str, position: int, size: int) -> bytes:
        if not size:
            return b""
        with self._unavailable(path, "read"):
            try:
                return bytes(self._client.get_range(self._key(path), start=position, length=size))
            except _base_error() as error:
                if self._ends_before(path, position, error):
                    return b""
                raise

    def _ends_before(self, path: str, position: int, error: Exception) -> bool:
        """Return whether a read failed because the file ends before ``position``."""
        text = str(error)
        signs = ("InvalidRange", " 416 ", "non-partial response")
        return any(sign in text for sign in signs) and self.stat(path).size <= position

    def open(self, path: str, ahead_bytes: int = 0) -> BucketInputFile:
        with self._unavailable(path, "read"):
            try:
                found = self._client.get(self._key(path), options={"range": {"suffix": END_BYTES}})
                size = found.meta["size"]
                return BucketInputFile(self, path, size, bytes(found.bytes()), ahead_bytes)
            except _base_error() as error:
                if self._ends_before(path, 0, error):
                    return BucketInputFile(self, path, 0, b"", 0)
                raise

    def stat(self, path: str) -> Entry:
        with self._unavailable(path, "read"):
            return self._entry(self._client.head(self._key(path)))

    def exists(self, path: str) -> bool:
        try:
            self.stat(path)
        except FileNotFoundError:
            return False
        return True

    def is_file(self, directory: str) -> bool:
        return False

    def names(self, directory: str) -> set[str]:
        key = self._key(directory)
        with self._unavailable(directory, "read"):
            found = self._client.list_with_delimiter(key or None)
        paths = [*found["common_prefixes"], *(entry["path"] for entry in found["objects"])]
        # Web consoles make an object for a directory; its name ends in a slash.
        return {path.rpartition("/")[2] for path in paths if path != key}

    def list(self, directory: str = "", *, hidden: bool = False) -> Iterator[Entry]:
        with self._unavailable(directory, "read"):
            for chunk in self._client.list(self._key(directory) or None):
                for found in chunk:
                    entry = self._entry(found)
                    below = entry.path[len(directory) :].strip("/").split("/")[:-1]
                    if hidden or not any(name[:1] in ("_", ".") for name in below):
                        yield entry

    def fingerprint(self, directory: str) -> str | None:
        """Return "" without a request: a bucket has no directories."""
        return ""

    def is_unchanged(
        self, directory: str, fingerprint: str, last: str, tag: str, following: str
    ) -> bool:
        """List the files from the last file on, in one request, and compare."""
        before = self._key(f"{directory}/{last}")[:-1]
        expected = [(last, tag)] if tag else []
        with self._unavailable(directory, "read"):
            chunks = self._client.list(self._key(directory), offset=before, chunk_size=4)
            for chunk in chunks:
                found = [self._entry(entry) for entry in chunk]
                numbered = [entry for entry in found if _name(entry)[:1].isdigit()]
                return [(_name(entry), entry.tag) for entry in numbered] == expected
        return not expected

    def tag(self, path: str) -> str:
        with suppress(FileNotFoundError):
            return self.stat(path).tag
        return ""

    def drop_cached(self, path: str) -> None:
        """Do nothing: the store has no cache."""

    # -- writing ---------------------------------------------------------------------------------

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        with self._unavailable(path, "written"):
            self._client.put(self._key(path), data, mode="overwrite")

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write a file if it is absent. After a lost answer, compare the content of the file."""
        from obstore.exceptions import AlreadyExistsError

        try:
            with self._unavailable(path, "written"):
                try:
                    self._client.put(self._key(path), data, mode="create")
                except AlreadyExistsError:
                    return self._holds(path, data)
        except ArchiveUnavailable:
            with suppress(ArchiveUnavailable):
                if self._holds(path, data):
                    return True
            raise
        return True

    def _holds(self, path: str, data: bytes) -> bool:
        with suppress(FileNotFoundError):
            return self.stat(path).size == len(data) and self.read(path, len(data)) == data
        return False

    def supports_put_if_absent(self, directory: str) -> bool:
        """Try out If-None-Match, which some servers ignore."""
        from obstore.exceptions import AlreadyExistsError

        path = f"{directory}/.commit-{secrets.token_hex(8)}.tmp"
        with self._unavailable(path, "written"):
            self._client.put(self._key(path), b"")
            try:
                self._client.put(self._key(path), b"", mode="create")
            except AlreadyExistsError:
                return True
            finally:
                self.delete([path])
        return False

    def create(self, directory: str) -> BucketOutputFile:
        return BucketOutputFile(self)

    def upload(self, path: str, source: Path) -> None:
        with open(source, "rb") as file:
            self.upload_file(path, file)

    def upload_file(self, path: str, file: BinaryIO) -> None:
        """Copy an open file from its current position."""
        with self._unavailable(path, "written"):
            self._client.put(
                self._key(path), file, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )

    def make_directory(self, directory: str) -> None:
        """Do nothing: a bucket has no directories."""

    def sync_directory(self, directory: str) -> None:
        """Do nothing: an object is durable once the server has answered."""

    def sync_file(self, path: str) -> None:
        """Do nothing: an object is durable once the server has answered."""

    def delete(self, paths: Iterable[str]) -> None:
        keys = [self._key(path) for path in paths]
        with self._unavailable("", "written"):
            if keys:
                self._client.delete(keys)

    def check_writable(self, directories: Iterable[str]) -> None:
        """Do nothing: only a write can tell."""

    @contextmanager
    def exclusive(self, directory: str) -> Iterator[bool]:
        yield True

    # -- answers of the library ------------------------------------------------------------------

    def _entry(self, found: Any) -> Entry:
        """Convert the library's description of an object."""
        changed_ms = int(found["last_modified"].timestamp() * 1000)
        tag = found["e_tag"] or f"{found['size']}-{changed_ms}"
        return Entry(found["path"][len(self._prefix) :], found["size"], changed_ms, tag)

    @contextmanager
    def _unavailable(self, path: str, what: str) -> Iterator[None]:
        """Convert errors to those of a `Store`. The text says: ``path`` cannot be ``what``."""
        full = self.place / path if path else self.place
        try:
            yield
        except FileNotFoundError as error:
            if what != "read" or "NoSuchBucket" in str(error):
                text = f"{full} cannot be {what}: {problem_of(error)}"
                raise ArchiveUnavailable(text) from None
            raise FileNotFoundError(errno.ENOENT, "no such object", str(full)) from None
        except (_base_error(), OSError, ValueError) as error:
            raise ArchiveUnavailable(f"{full} cannot be {what}: {problem_of(error)}") from None


def _name(entry: Entry) -> str:
    return entry.path.rpartition("/")[2]


def _base_error() -> type[Exception]:
    from obstore.exceptions import BaseError

    return BaseError


class BucketInputFile:
    """Implements `brokerd.archive.storage.store.InputFile`."""

    def __init__(
        self, store: BucketStore, path: str, size: int, end: bytes, ahead_bytes: int
    ) -> None:
        self._store = store
        self._path = path
        self._end = end
        self._ahead_bytes = ahead_bytes
        self._ahead = (0, b"")
        """The last bytes that were read ahead: position and data."""
        self.size = size

    def read(self, position: int, size: int) -> bytes:
        first, piece = self._ahead
        if not first <= position <= position + size <= first + len(piece):
            first = position
            piece = self._store._range(self._path, position, max(size, self._ahead_bytes))
            if self._ahead_bytes:
                self._ahead = (first, piece)
        return piece[position - first :][:size]

    def read_tail(self, size: int) -> bytes:
        if size <= len(self._end) or len(self._end) == self.size:
            return self._end[max(0, len(self._end) - size) :]
        return self.read(max(0, self.size - size), size)

    def drop_tail(self) -> None:
        self._end = b""


class BucketOutputFile:
    """Implements `brokerd.archive.storage.store.OutputFile`: a local file, uploaded by `publish`.

    The file is in ``TMPDIR`` and has no name, so a killed process leaves no file.
    """

    def __init__(self, store: BucketStore) -> None:
        self._store = store
        self._file = tempfile.TemporaryFile(prefix="brokerd-")  # noqa: SIM115

    def write(self, data: bytes | memoryview) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            error.filename = tempfile.gettempdir()
            raise

    def publish(self, path: str) -> None:
        self._file.seek(0)
        self._store.upload_file(path, self._file)
        self._file.close()

    def discard(self) -> None:
        self._file.close()


def problem_of(error: Exception) -> str:
    """Describe the cause of an error in one line, without the request."""
    text = str(error)
    code, said = (
        re.search(rf"<{name}>([^<]{{1,300}})</{name}>", text) for name in ("Code", "Message")
    )
    if code is not None:
        return f"the server says {code[1]}" + (f": {said[1].rstrip('.')}" if said else "")
    status = re.search(r"status code: (\d{3} [A-Za-z ]+)", text)
    if status is not None:
        return f"the server says {status[1].strip()}"
    if "BadScheme" in text:
        return "its endpoint begins with http:, which the environment has to allow (AWS_ALLOW_HTTP)"
    if "kind: Timeout" in text or "TimedOut" in text or "timed out" in text:
        return "the server does not answer"
    if "response body error" in text or "error decoding response body" in text:
        return "the server's answer ends too early"
    # deltalake prints a tree, whose last line is the cause.
    tree = [line.strip() for line in re.sub(r"\x1b\[\d*m", "", text).split("\u21b3")]
    if "kind: Connect" in text or "client error (Connect)" in text:
        reason = re.search(r'message: "([^"]{1,100})"', text)
        cause = reason[1] if reason else "".join(tree[1:][-1:])
        return "no connection to the server" + (f": {cause}" if cause else "")
    first = tree[-1].partition("\n")[0]
    return re.sub(r"\S*://\S*", "...", first)[:300]
