"""``brokerctl bench`` where the broker asks who comes, and speaks TLS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.process import BrokerProcess
from brokerd.cli.bench.formats.connect_options import ConnectOptions, connect_options_of
from brokerd.cli.credentials import Credentials
from brokerd.cli.main import cli
from brokerd.cli.server import Server, find
from tests.certificates import Authority

PASSWORD = "correct horse"


class Broker:
    """A broker with security and TLS, an account ``bench`` and its key."""

    def __init__(self, process: BrokerProcess, directory: Path, authority: Authority) -> None:
        self.process = process
        self.authority = authority
        self.password = directory / "password"
        self.key = directory / "key"
        login = Credentials("admin", PASSWORD, ca_file=str(authority.certificate))
        server = Server(find(None, str(process.data_dir)), login)
        server.post("users", name="bench", password=PASSWORD, roles=["monitor"])
        every = ["read", "write", "admin"]
        server.patch("acls", "prefixes", "bench-", grant_users={"bench": every})
        self.key.write_text(server.post("keys", user="bench")["key"])

    def bench(self, form: str, scenario: str, *options: str) -> Any:
        """What a shell would see of a short run over a format."""
        address = self.process.address_of(form).replace("127.0.0.1", "localhost")
        given = ["--ca-file", str(self.authority.certificate), *options]
        given += ["--data-dir", str(self.process.data_dir), "bench", scenario, "--format", form]
        given += ["--address", address, "--seconds", "0.5", "--connections", "2", "--size", "20000"]
        given += ["--window", "4", "--batch", "5", "--backlog", "50", "--json"]
        return CliRunner().invoke(cli, given)

    def figures(self, form: str, scenario: str, *options: str) -> Any:
        """What a run measured that went well."""
        result = self.bench(form, scenario, *options)
        assert result.exit_code == 0, result.output + str(result.exception)
        return json.loads(result.stdout)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("bench")
    authority = Authority(directory)
    (directory / "password").write_text(f"{PASSWORD}\n")
    (directory / "password").chmod(0o600)
    pair = authority.issue("broker")
    settings = [
        "security.auth=on",
        f"security.admin_password_file={directory / 'password'}",
        "mamamia.principal=bench",
        f"tls.certificate_file={pair.certificate}",
        f"tls.key_file={pair.key}",
    ]
    with BrokerProcess(directory / "data", directory / "log", settings) as process:
        process.start()
        yield Broker(process, directory, authority)
        process.stop()


@pytest.mark.slow
def test_flymq_logs_in_with_the_password(broker: Broker) -> None:
    login = ("--user", "bench", "--password-file", str(broker.password))
    for scenario in ("produce", "fetch"):
        found = broker.figures("flymq", scenario, *login)
        assert found["messages"] > 0 and found["errors"] == 0
        assert found["durability"] == "fsync"


@pytest.mark.slow
def test_blipmq_logs_in_with_the_key(broker: Broker) -> None:
    for scenario in ("produce", "produce-batch"):
        found = broker.figures("blipmq", scenario, "--key-file", str(broker.key))
        assert found["messages"] > 0 and found["errors"] == 0


@pytest.mark.slow
def test_mamamia_is_whom_the_listener_names(broker: Broker) -> None:
    for scenario in ("produce", "mixed"):
        found = broker.figures("mamamia", scenario, "--key-file", str(broker.key))
        assert found["messages"] > 0 and found["errors"] == 0


def test_who_does_not_say_who_he_is_is_told_to(broker: Broker) -> None:
    result = broker.bench("flymq", "produce")
    assert result.exit_code == 1
    assert "authentication required" in result.stderr and "--user NAME" in result.stderr


def test_a_listener_whose_certificate_is_not_trusted_is_told(broker: Broker) -> None:
    """The last option counts, so that the authority is another one here."""
    other = Authority(broker.process.data_dir.parent, "others")
    result = broker.bench("mamamia", "produce", "--ca-file", str(other.certificate))
    assert result.exit_code == 1 and "name the CA with --ca-file FILE" in result.output


def test_a_way_travels_as_json_and_shows_no_secret() -> None:
    connection = ConnectOptions(True, Credentials("ann", "s3cret", "s3cret"))
    assert connect_options_of(json.loads(json.dumps(asdict(connection)))) == connection
    assert "s3cret" not in repr(connection)
