"""A server that speaks S3, on loopback: fixtures `s3_server` and `bucket`."""

from __future__ import annotations

import logging
import secrets
import urllib.request
from collections.abc import Iterator

import pytest

from brokerd.archive.storage.address import ObjectAddress, object_address

SECRET = "a-secret-that-nobody-may-see"


def environment(endpoint: str) -> dict[str, str]:
    """What says how to come there."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }


def make_bucket(endpoint: str) -> str:
    """A new bucket; returns its name."""
    name = f"bucket-{secrets.token_hex(6)}"
    urllib.request.urlopen(
        urllib.request.Request(f"{endpoint}/{name}", method="PUT"), timeout=10
    ).close()
    return name


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The URL of a server."""
    from moto.server import ThreadedMotoServer  # half a second, for the tests that need it

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> ObjectAddress:
    """A place in a new bucket; the environment says how to come there."""
    for name, value in environment(s3_server).items():
        monkeypatch.setenv(name, value)
    return object_address(f"s3://{make_bucket(s3_server)}/some/archive")
