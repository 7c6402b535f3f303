"""FlyMQ's Python and Go clients log in to a real broker, in each layout of AUTH.

No client reads the default, which is the document's layout; an operator who has such clients
chooses another (docs/protocols/flymq.rst, AUTH).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.process import BrokerProcess
from brokerd.client.flymq import FlymqClient, FlymqError
from tests.reference import flymq
from tests.reference.flymq_go import GoClient
from tests.reference.pyflymq import FlyMQClient

PASSWORD = "sesame"


def serve(directory: Path, layout: str) -> Iterator[str]:
    """A broker with security on; where FlyMQ listens."""
    secret = directory / "password"
    secret.touch(mode=0o600)
    secret.write_text(PASSWORD + "\n")
    settings = (
        "security.auth=on",
        f"security.admin_password_file={secret}",
        f"flymq.auth_success_layout={layout}",
    )
    with BrokerProcess(
        directory / "data", directory / "log", settings, formats=("flymq",)
    ) as process:
        process.start()
        yield process.address_of("flymq")


@pytest.fixture(scope="module", params=["sdk", "neutral", "padded"])
def address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A broker that its operator has set up for SDKs. Each test has a topic of its own."""
    yield from serve(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture
def by_the_document(tmp_path: Path) -> Iterator[str]:
    """A broker that nobody has set up for SDKs."""
    yield from serve(tmp_path, "seed")


def test_pyflymq_logs_in_and_may_then_do_what_it_may_not_before(address: str) -> None:
    client = FlyMQClient([address])
    assert client.whoami() == (False, "", [], [])
    with pytest.raises(flymq.ServerError, match=r"^authentication required$"):
        client.create_topic("of-pyflymq")
    with pytest.raises(flymq.AuthenticationError):
        client.authenticate("admin", "wrong")
    client.authenticate("admin", PASSWORD)
    client.create_topic("of-pyflymq")
    assert client.produce("of-pyflymq", b"hi").offset == 0
    assert "of-pyflymq" in client.list_topics()
    known, user, roles, permissions = client.whoami()
    assert (known, user, roles) == (True, "admin", ["admin"])
    assert permissions[:3] == ["read", "write", "admin"]
    with pytest.raises(flymq.AuthenticationError):
        client.authenticate("admin", "wrong")
    assert client.whoami()[1] == "admin"
    client.close()


def test_the_go_client_logs_in(address: str) -> None:
    client = GoClient([address])
    with pytest.raises(flymq.ServerError, match="authentication"):
        client.list_topics()
    with pytest.raises(flymq.AuthenticationError, match="authentication failed"):
        client.authenticate("nobody", PASSWORD)
    client.authenticate("admin", PASSWORD)
    client.create_topic("of-go", 2)
    assert client.whoami()[:2] == (True, "admin")
    client.close()


def test_no_sdk_reads_a_success_as_the_document_has_it(by_the_document: str) -> None:
    """It is logged in all the same: a client that does not look at the answer could go on."""
    client = FlyMQClient([by_the_document])
    with pytest.raises(flymq.ProtocolError):
        client.authenticate("admin", PASSWORD)
    assert client.whoami()[1] == "admin"
    client.close()


def test_our_client_logs_in_whatever_the_layout(address: str) -> None:
    with FlymqClient(address, user="admin", password=PASSWORD) as client:
        assert client.whoami().user == "admin"
        client.create_user("bob", "pw", ["producer"])
        assert client.query_audit().events[0].type == "user.create"
    with FlymqClient(address, user="bob", password="pw") as client:
        assert client.produce("orders", b"hi").offset == 0
        with pytest.raises(FlymqError, match=r"^unauthorized$"):
            client.fetch("orders", 0, 0)
    with (
        FlymqClient(address, user="bob", password="wrong") as client,
        pytest.raises(FlymqError, match=r"^invalid username or password$"),
    ):
        client.list_topics()
