# Tests: tests/powerloss/test_bucket.py
"""Keep the changes of a bucket, so that it can be filled as it was at a power loss.

The bucket is no part of the machine that loses its power. A request that the server has begun takes
effect, and the machine may not see its answer. So each change has the position in the recording at
which the server began it, and a power loss at P leaves the changes whose position is at most P.
"""

from __future__ import annotations

import os
import pickle
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from benchmarks.object_server import Application, environment, make_bucket, object_server
from brokerd.archive.storage.address import ObjectAddress
from brokerd.archive.storage.bucket import open_bucket

NAME = "powerloss"
ADDRESS = ObjectAddress("s3", NAME, "archive")


class Change(NamedTuple):
    """A change of an object."""

    position: int
    """The position in the recording when the server began the request."""
    key: str
    data: bytes | None
    """The new bytes; None if the object was deleted."""


class Bucket:
    """A bucket on a server of its own; use it as a context, which sets the environment."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.position: Callable[[], int] | None = None
        """Returns the position in the recording; None while nothing is recorded."""
        self._stack = ExitStack()
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> Bucket:
        endpoint = self._stack.enter_context(object_server(self._around))
        make_bucket(endpoint, NAME)
        settings = environment(endpoint)
        self._before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        self.fill({})  # All servers of a process share their buckets.
        return self

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._stack.close()

    def save(self, path: Path) -> None:
        """Write the changes to a file."""
        path.write_bytes(pickle.dumps(self.changes))

    def load(self, path: Path) -> None:
        """Read the changes from a file that `save` wrote."""
        self.changes = pickle.loads(path.read_bytes())

    def objects_at(self, point: int) -> dict[str, bytes]:
        """Return the objects that a power loss leaves, by key."""
        objects: dict[str, bytes] = {}
        for change in self.changes:
            if change.position > point:
                break
            if change.data is None:
                objects.pop(change.key, None)
            else:
                objects[change.key] = change.data
        return objects

    def fill(self, objects: dict[str, bytes]) -> None:
        """Give the bucket these objects and no others. Does not count as a change."""
        recorded, self.position = self.position, None
        store = open_bucket(ADDRESS._replace(key=""))
        store.delete([entry.path for entry in store.list(hidden=True)])
        for key, data in objects.items():
            store.put(key, data)
        self.position = recorded

    # -- the server --------------------------------------------------------------------------------

    def _around(self, moto: Application) -> Application:
        def serve(environ: dict[str, Any], start_response: Any) -> Any:
            if self.position is None or environ["REQUEST_METHOD"] in ("GET", "HEAD"):
                return moto(environ, start_response)
            return self._serve_change(moto, self.position(), environ, start_response)

        return serve

    def _serve_change(
        self, moto: Application, position: int, environ: dict[str, Any], start_response: Any
    ) -> Any:
        """Answer a request and keep the objects that it changed."""
        from werkzeug.test import run_wsgi_app
        from werkzeug.wsgi import get_input_stream

        body = get_input_stream(environ).read()
        environ = {**environ, "wsgi.input": BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        chunks, status, headers = run_wsgi_app(moto, environ, buffered=True)
        if status.startswith("2"):
            self.changes += (
                Change(position, key, _object(key)) for key in _changed_keys(environ, body)
            )
        start_response(status, list(headers))
        return chunks


def _object(key: str) -> bytes | None:
    """Return the bytes of an object on the server, or None. Its owner alone may request them."""
    from moto.backends import get_backend
    from moto.core import DEFAULT_ACCOUNT_ID

    found = get_backend("s3")[DEFAULT_ACCOUNT_ID]["aws"].get_object(NAME, key)
    return None if found is None else bytes(found.value)


def _changed_keys(environ: dict[str, Any], body: bytes) -> Iterator[str]:
    """Yield the keys of the objects that a request may have changed."""
    path, query = environ["PATH_INFO"], environ.get("QUERY_STRING", "")
    key = path.encode("latin-1").decode().lstrip("/").partition("/")[2]
    if key and environ["REQUEST_METHOD"] in ("PUT", "POST", "DELETE"):
        yield key
    elif "delete" in parse_qs(query, keep_blank_values=True):
        for one in ElementTree.fromstring(body).iterfind(".//{*}Object/{*}Key"):
            yield one.text or ""
