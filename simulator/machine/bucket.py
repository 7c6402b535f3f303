# Tests: tests/simulator/test_bucket.py
"""A simulated bucket: an object store in memory whose requests may fail.

It stands for the client of `brokerd.archive.storage.bucket.BucketStore`, on obstore's MemoryStore.
A request that fails is refused before its effect, or has its effect and loses its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from obstore.exceptions import GenericError
from obstore.store import MemoryStore

CHANGING = ("put", "delete")
"""Requests that change the bucket."""


class Request(NamedTuple):
    """A request to the bucket."""

    name: str
    """``get``, ``get_range``, ``head``, ``list``, ``list_with_delimiter``, ``put``, ``delete``."""
    path: str
    """The key of the object, or the first of several."""


class SimBucket:
    """Objects in memory.

    ``enter(request)`` is called before the effect of each request, ``leave(request)`` after it.
    Either may raise; `refuse` and `lose_answer` raise the errors that the client raises.
    """

    def __init__(self) -> None:
        self.now_ns: Callable[[], int] = lambda: 0
        """The clock of the server."""
        self._store = MemoryStore()
        self._changed_ns: dict[str, int] = {}
        self.enter: Callable[[Request], None] = _go_on
        self.leave: Callable[[Request], None] = _go_on

    def fork(self) -> SimBucket:
        """Return an independent bucket with the same objects."""
        twin = SimBucket()
        for key, data in self.objects().items():
            twin._store.put(key, data)
        twin._changed_ns = self._changed_ns.copy()
        return twin

    def objects(self) -> dict[str, bytes]:
        """Return all objects by key."""
        keys = sorted(found["path"] for chunk in self._store.list() for found in chunk)
        return {key: bytes(self._store.get(key).bytes()) for key in keys}

    # -- the client ----------------------------------------------------------------------------

    def get(self, key: str, *, options: Any = None) -> Any:
        return self._request("get", key, lambda: self._store.get(key, options=options))

    def get_range(self, key: str, *, start: int, length: int) -> Any:
        return self._request(
            "get_range", key, lambda: self._store.get_range(key, start=start, length=length)
        )

    def head(self, key: str) -> Any:
        return self._request("head", key, lambda: self._dated(self._store.head(key)))

    def list(
        self, prefix: str | None = None, *, offset: str | None = None, chunk_size: int = 50
    ) -> Iterator[list[dict[str, Any]]]:
        def found() -> list[list[dict[str, Any]]]:
            chunks = self._store.list(prefix, offset=offset, chunk_size=chunk_size)
            return [[self._dated(one) for one in chunk] for chunk in chunks]

        yield from self._request("list", prefix or "", found)

    def list_with_delimiter(self, prefix: str | None = None) -> Any:
        return self._request(
            "list_with_delimiter", prefix or "", lambda: self._store.list_with_delimiter(prefix)
        )

    def put(
        self,
        key: str,
        file: Any,
        *,
        mode: Literal["create", "overwrite"] = "overwrite",
        **_parts: int,
    ) -> None:
        def store() -> None:
            self._store.put(key, file, mode=mode)
            self._changed_ns[key] = self.now_ns()

        self._request("put", key, store)

    def delete(self, keys: Sequence[str]) -> None:
        self._request("delete", keys[0], lambda: self._store.delete(keys))

    # -- inside --------------------------------------------------------------------------------

    def _request(self, name: str, key: str, effect: Callable[[], Any]) -> Any:
        request = Request(name, key)
        self.enter(request)
        answer = effect()
        self.leave(request)
        return answer

    def _dated(self, found: Any) -> dict[str, Any]:
        changed = datetime.fromtimestamp(self._changed_ns[found["path"]] / 1e9, UTC)
        return {**found, "last_modified": changed}


def refuse(request: Request) -> None:
    """Raise the error of a server that refuses a request because of too many requests."""
    raise GenericError(
        f"Generic S3 error: Error performing {request.name} of {request.path} after 3 retries: "
        "Server returned non-2xx status code: 503 Service Unavailable: <Error><Code>SlowDown"
        "</Code><Message>Please reduce your request rate.</Message></Error>"
    )


def lose_answer(request: Request) -> None:
    """Raise the error of a request that no answer came to."""
    raise GenericError(
        f"Generic S3 error: Error performing {request.name} of {request.path} after 3 retries: "
        "HTTP error: error sending request: operation timed out"
    )


def _go_on(request: Request) -> None: ...
