"""Fixtures of a server that speaks S3, on loopback: `s3_server` and `bucket`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.object_server import SECRET, environment, make_bucket, object_server
from brokerd.archive.storage.address import ObjectAddress, object_address

__all__ = ["SECRET", "bucket", "environment", "make_bucket", "s3_server"]


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Run a server and yield its URL."""
    with object_server() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> ObjectAddress:
    """Return the address of a new bucket, and set the environment for access to it."""
    for name, value in environment(s3_server).items():
        monkeypatch.setenv(name, value)
    return object_address(f"s3://{make_bucket(s3_server)}/some/archive")
