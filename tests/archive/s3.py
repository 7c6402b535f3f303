"""A server that speaks S3, on loopback: fixtures `s3_server` and `bucket`."""

from __future__ import annotations

import logging
import secrets
import urllib.request
from collections.abc import Iterator
from contextlib import nullcontext
from threading import Lock, Thread
from typing import Any

import pytest

from brokerd.archive.storage.address import ObjectAddress, object_address

SECRET = "a-secret-that-nobody-may-see"


def environment(endpoint: str) -> dict[str, str]:
    """Return the environment variables for access to the server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }


def make_bucket(endpoint: str) -> str:
    """Create a bucket and return its name."""
    name = f"bucket-{secrets.token_hex(6)}"
    urllib.request.urlopen(
        urllib.request.Request(f"{endpoint}/{name}", method="PUT"), timeout=10
    ).close()
    return name


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Run a server and yield its URL."""
    # Imported here, because it takes half a second and few tests need it.
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    moto = DomainDispatcherApplication(create_backend_app)
    lock = Lock()

    def serve(environ: dict[str, Any], start_response: Any) -> Any:
        """Answer a request. Conditional ones take turns: moto checks and writes in two steps."""
        with lock if "HTTP_IF_NONE_MATCH" in environ else nullcontext():
            return moto(environ, start_response)

    server = make_server("127.0.0.1", 0, serve, threaded=True)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.port}"
    server.shutdown()
    thread.join()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> ObjectAddress:
    """Return the address of a new bucket, and set the environment for access to it."""
    for name, value in environment(s3_server).items():
        monkeypatch.setenv(name, value)
    return object_address(f"s3://{make_bucket(s3_server)}/some/archive")
