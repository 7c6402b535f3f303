# Tests: tests/powerloss/test_bucket.py
"""A server that speaks S3, on loopback: moto, in threads of this process.

It keeps its objects in memory. All its changes take turns, so each has its place in their order.
"""

from __future__ import annotations

import logging
import secrets
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Lock, Thread
from typing import Any

SECRET = "a-secret-that-nobody-may-see"
_CHANGING = ("PUT", "POST", "DELETE")

Application = Callable[[dict[str, Any], Any], Any]
"""A WSGI application (PEP 3333)."""


def environment(endpoint: str) -> dict[str, str]:
    """Return the environment variables for access to the server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }


def make_bucket(endpoint: str, name: str = "") -> str:
    """Create a bucket and return its name, a random one by default."""
    name = name or f"bucket-{secrets.token_hex(6)}"
    urllib.request.urlopen(
        urllib.request.Request(f"{endpoint}/{name}", method="PUT"), timeout=10
    ).close()
    return name


@contextmanager
def object_server(around: Callable[[Application], Application] | None = None) -> Iterator[str]:
    """Run a server and yield its URL. ``around`` wraps its application, inside of the turns."""
    # Imported here, because it takes half a second and few callers need it.
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    moto = DomainDispatcherApplication(create_backend_app)
    answer = moto if around is None else around(moto)
    lock = Lock()

    def serve(environ: dict[str, Any], start_response: Any) -> Any:
        """Answer a request. moto checks a condition and writes in two steps."""
        with lock if environ["REQUEST_METHOD"] in _CHANGING else nullcontext():
            return answer(environ, start_response)

    server = make_server("127.0.0.1", 0, serve, threaded=True)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join()
