"""How ``brokerctl`` finds a broker, and what it says when there is none."""

from __future__ import annotations

import json
import socket
import ssl
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner

from brokerd.cli.credentials import Credentials
from brokerd.cli.main import cli
from brokerd.cli.server import NoBroker, Server, find
from brokerd.client.errors import AddressError
from brokerd.errors import BrokerdError, ConfigError
from tests.certificates import DAY, Authority, Issued
from tests.cli.shell import Shell


def listeners(data_dir: Path, content: str) -> str:
    (data_dir / "run").mkdir()
    (data_dir / "run" / "listeners.json").write_text(content)
    return str(data_dir)


@pytest.mark.parametrize(
    ("server", "address", "tls"),
    [
        ("http://127.0.0.1:9644", "127.0.0.1:9644", False),
        ("http://localhost:9644/", "localhost:9644", False),
        ("https://broker.example:443", "broker.example:443", True),
        ("127.0.0.1:9644", "127.0.0.1:9644", False),
        ("[::1]:9644", "[::1]:9644", False),
        ("unix:/run/admin.sock", "unix:/run/admin.sock", False),
    ],
)
def test_a_server_may_be_named(server: str, address: str, tls: bool) -> None:
    place = find(server, "/nowhere")
    assert (str(place.address), place.tls) == (address, tls)


@pytest.mark.parametrize(
    ("server", "kind"), [("ftp://x:1", ConfigError), ("here", AddressError), ("", AddressError)]
)
def test_what_is_no_server_is_refused(server: str, kind: type[BrokerdError]) -> None:
    with pytest.raises(kind, match=r"(?i)host:port"):
        find(server, "/nowhere")


def test_it_is_looked_up_in_the_data_directory(tmp_path: Path) -> None:
    data_dir = listeners(tmp_path, json.dumps({"mamamia": "127.0.0.1:1", "admin": "127.0.0.1:2"}))
    assert str(find(None, data_dir).address) == "127.0.0.1:2"


@pytest.mark.parametrize(("speak", "tls"), [(["mamamia", "admin"], True), (["mamamia"], False)])
def test_it_is_looked_up_whether_it_speaks_tls(tmp_path: Path, speak: list[str], tls: bool) -> None:
    content = {"mamamia": "127.0.0.1:1", "admin": "127.0.0.1:2", "tls": speak}
    assert find(None, listeners(tmp_path, json.dumps(content))).tls is tls


@pytest.mark.parametrize(
    ("listens", "address"), [("0.0.0.0:2", "127.0.0.1:2"), ("[::]:2", "[::1]:2")]
)
def test_one_that_listens_everywhere_is_found_on_this_machine(
    tmp_path: Path, listens: str, address: str
) -> None:
    place = find(None, listeners(tmp_path, json.dumps({"admin": listens})))
    assert (str(place.address), place.name) == (address, "localhost")


def test_a_broker_that_does_not_run_is_told(tmp_path: Path) -> None:
    """With where it was looked for, and what else could be named."""
    with pytest.raises(NoBroker) as refusal:
        find(None, str(tmp_path))
    text = str(refusal.value)
    assert f"no broker serves {tmp_path}" in text
    assert "listeners.json is not there" in text
    assert "--server URL" in text and "--data-dir" in text


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ('{"mamamia": "127.0.0.1:1"}', "has no admin site"),
        ("[]", "has no admin site"),
        ("{", "is not JSON"),
        ('{"admin": "nonsense"}', "is not an address"),
    ],
)
def test_a_directory_without_an_admin_site_is_told(tmp_path: Path, content: str, part: str) -> None:
    with pytest.raises(BrokerdError, match=part):
        find(None, listeners(tmp_path, content))


def answering(raw: bytes) -> tuple[str, Thread]:
    """Something that listens, and says this to whoever comes."""
    listener = socket.create_server(("127.0.0.1", 0))
    host, port = listener.getsockname()

    def answer() -> None:
        with listener, listener.accept()[0] as peer:
            peer.recv(65_536)
            peer.sendall(raw)

    thread = Thread(target=answer)
    thread.start()
    return f"{host}:{port}", thread


def test_nobody_there_is_told_with_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = "{}:{}".format(*listener.getsockname())
    with pytest.raises(NoBroker, match=f"no broker answers at {address} .from --server.: "):
        Server(find(address, "")).get("topics")


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        (b"", "ended without an answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", "ended without an answer"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", "not as a broker's admin site would"),
        (b"HTTP/1.1 200 OK\r\n\r\n[]", "not as a broker's admin site would"),
        (b"SSH-2.0-OpenSSH\r\n", "ended without an answer"),
    ],
)
def test_something_else_there_is_told(raw: bytes, part: str) -> None:
    address, thread = answering(raw)
    with pytest.raises(NoBroker, match=part):
        Server(find(address, "")).get("topics")
    thread.join()


def answering_with_tls(context: ssl.SSLContext, listens: str = "127.0.0.1") -> tuple[int, Thread]:
    """A broker that shows itself by a certificate; its port."""
    listener = socket.create_server((listens, 0))

    def answer() -> None:
        with listener, listener.accept()[0] as peer:
            try:
                with context.wrap_socket(peer, server_side=True) as wrapped:
                    wrapped.recv(65_536)
                    wrapped.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            except OSError:
                """The test looks at what the other end is told."""

    thread = Thread(target=answer)
    thread.start()
    return listener.getsockname()[1], thread


def server_context(issued: Issued, clients: Authority | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*issued)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients.certificate)
    return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_a_broker_that_listens_everywhere_is_known_by_localhost(
    tmp_path: Path, authority: Authority
) -> None:
    context = server_context(authority.issue("broker", hosts=("localhost",)))
    port, thread = answering_with_tls(context)
    content = json.dumps({"admin": f"0.0.0.0:{port}", "tls": ["admin"]})
    login = Credentials(ca_file=str(authority.certificate))
    assert Server(find(None, listeners(tmp_path, content)), login).get("topics") == {}
    thread.join()


def test_who_signed_a_certificate_has_to_be_said(authority: Authority) -> None:
    port, thread = answering_with_tls(server_context(authority.issue("broker")))
    with pytest.raises(NoBroker, match=r"cannot be trusted: .*name the CA with --ca-file FILE"):
        Server(find(f"https://localhost:{port}", "")).get("topics")
    thread.join()


def test_a_certificate_of_another_name_is_told(authority: Authority) -> None:
    context = server_context(authority.issue("broker", hosts=("broker.example",)))
    port, thread = answering_with_tls(context)
    login = Credentials(ca_file=str(authority.certificate))
    with pytest.raises(NoBroker, match="is not one for localhost; use --server https://NAME:PORT"):
        Server(find(f"https://localhost:{port}", ""), login).get("topics")
    thread.join()


def test_a_certificate_that_has_expired_is_told(authority: Authority) -> None:
    context = server_context(authority.issue("broker", valid=(-2 * DAY, -DAY)))
    port, thread = answering_with_tls(context)
    login = Credentials(ca_file=str(authority.certificate))
    with pytest.raises(NoBroker, match="expired; renew it, or set the clock"):
        Server(find(f"https://localhost:{port}", ""), login).get("topics")
    thread.join()


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_certificate_that_the_broker_misses_is_told(
    authority: Authority, newest: ssl.TLSVersion
) -> None:
    context = server_context(authority.issue("broker"), authority)
    context.maximum_version = newest
    port, thread = answering_with_tls(context)
    login = Credentials(ca_file=str(authority.certificate))
    with pytest.raises(NoBroker, match=r"want.* a certificate.*--certificate-file FILE"):
        Server(find(f"https://localhost:{port}", ""), login).get("topics")
    thread.join()


def test_tls_where_there_is_none_is_told() -> None:
    address, thread = answering(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(NoBroker, match=r"handshake failed .*is there TLS at all"):
        Server(find(f"https://{address}", "")).get("topics")
    thread.join()


def test_where_nothing_comes_back_there_may_be_tls() -> None:
    address, thread = answering(b"")
    with pytest.raises(NoBroker, match=f"--server https://{address}"):
        Server(find(address, "")).get("topics")
    thread.join()


def test_a_change_without_an_answer_may_have_been_made() -> None:
    """It is not tried again by itself, and the operator is told to look."""
    address, thread = answering(b"")
    with pytest.raises(NoBroker, match="the broker may have made the change: check before"):
        Server(find(address, "")).post("topics", name="t")
    thread.join()


def test_a_refusal_is_the_brokers_own_words(shell: Shell) -> None:
    assert shell.refused("topic", "describe", "none") == (
        "there is no topic 'none'; create it or produce to it first"
    )


def test_a_name_that_is_not_utf_8_is_refused(shell: Shell) -> None:
    """As the shell passes it; nothing is guessed."""
    assert "is not UTF-8" in shell.refused("topic", "describe", "\udcff")
    assert "is wrong" in shell.refused("topic", "create", "\udcff")


def test_every_verb_says_what_it_takes() -> None:
    """--help of each, and of each below it."""
    runner = CliRunner()
    for verb in ("topic", "group", "lease", "dlq", "schedule"):
        result = runner.invoke(cli, [verb, "--help"])
        assert result.exit_code == 0
        names = [
            line.split()[0] for line in result.output.split("Commands:")[1].splitlines() if line
        ]
        for name in names:
            assert runner.invoke(cli, [verb, name, "--help"]).exit_code == 0
    for verb in ("produce", "tail"):
        assert runner.invoke(cli, [verb, "--help"]).exit_code == 0
