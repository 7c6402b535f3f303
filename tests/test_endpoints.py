"""Endpoint strings: loopback unless told otherwise, and mistakes found before the fork."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import MemoryReactorClock, StringTransportWithDisconnection

from brokerd.errors import ConfigError
from brokerd.server.endpoints import address_text, localise, parse, split


@pytest.mark.parametrize(
    ("given", "opened"),
    [
        ("tcp:9000", "tcp:9000:interface=127.0.0.1:backlog=1024"),
        ("tcp:port=9000:backlog=5", "tcp:port=9000:backlog=5:interface=127.0.0.1"),
        ("tcp:9000:interface=0.0.0.0", "tcp:9000:interface=0.0.0.0:backlog=1024"),
        (r"tcp:9000:interface=\:\:1", r"tcp:9000:interface=\:\:1:backlog=1024"),
        ("tcp:9000:10.0.0.1", "tcp:9000:10.0.0.1:backlog=1024"),
        ("tcp:9000:10.0.0.1:7", "tcp:9000:10.0.0.1:7"),
        ("ssl:443:privateKey=a.pem", "ssl:443:privateKey=a.pem:interface=127.0.0.1:backlog=1024"),
        ("haproxy:tcp:9000", "haproxy:tcp:9000:interface=127.0.0.1:backlog=1024"),
        ("unix:/run/b.sock:mode=600", "unix:/run/b.sock:mode=600"),
        ("systemd:domain=INET:index=0", "systemd:domain=INET:index=0"),
    ],
)
def test_tcp_without_interface_is_loopback(given: str, opened: str) -> None:
    """Nothing listens to the network unless the operator names an interface; crowds may queue."""
    assert localise(given) == opened


def test_relative_unix_path_is_made_absolute(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket stays where the command was typed, colons in the directory included."""
    odd = tmp_path / "a:b"
    odd.mkdir()
    monkeypatch.chdir(odd)
    kind, path, mode = split(localise("unix:b.sock:mode=600"))
    assert (kind, mode) == ("unix", "mode=600")
    assert path.replace("\\", "") == os.path.join(odd, "b.sock")


def test_an_endpoint_listens_where_it_says() -> None:
    """The parsed endpoint binds loopback and the port given."""
    reactor = MemoryReactorClock()
    parse(reactor, "mamamia", "tcp:9000").listen(None)  # type: ignore[arg-type]
    ((port, _factory, backlog, interface),) = reactor.tcpServers
    assert (port, interface, backlog) == (9000, "127.0.0.1", 1024)


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_connection_behind_a_proxy_can_be_refused(is_taken: bool) -> None:
    """One that is too many is closed at once, and no fault of the broker."""

    class Full(Factory):
        def buildProtocol(self, addr: object) -> Protocol | None:
            return Protocol() if is_taken else None

    reactor = MemoryReactorClock()
    parse(reactor, "mamamia", "haproxy:tcp:9000").listen(Full())
    made = reactor.tcpServers[0][1].buildProtocol(IPv4Address("TCP", "127.0.0.1", 1))
    transport = StringTransportWithDisconnection()
    transport.protocol = made
    made.makeConnection(transport)
    assert transport.connected is is_taken


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "Unknown endpoint type"),
        ("9000", "Unknown endpoint type"),
        ("foo:1", "Unknown endpoint type: 'foo'"),
        ("tcp", "the port is a number from 0 to 65535"),
        ("tcp:x", "the port is a number from 0 to 65535"),
        ("tcp:-1", "the port is a number from 0 to 65535"),
        ("tcp:65536", "the port is a number from 0 to 65535"),
        ("haproxy:tcp:65536", "the port is a number from 0 to 65535"),
        ("unix:", "the path of the socket is missing"),
        ("tcp:1:bogus=2", "bogus"),
        ("tcp:1:interface=127.0.0.1:interface=0.0.0.0", "interface is given twice"),
        (r"tcp:1:interface=127.0.0.1:inter\face=0.0.0.0", "interface is given twice"),
        ("haproxy:tcp:1:backlog=1:backlog=2", "backlog is given twice"),
        ("tcp:1:127.0.0.1:interface=0.0.0.0", "interface"),
        ("unix:/run/b.sock:mode=600:mode=666", "mode is given twice"),
        ("systemd:domain=INET:index=0", "systemd:domain=INET:index=0"),
    ],
)
def test_wrong_endpoints_are_one_clear_line(given: str, said: str) -> None:
    """What is not an endpoint is refused before anything is opened."""
    with pytest.raises(ConfigError) as caught:
        parse(MemoryReactorClock(), "mamamia", given)
    message = str(caught.value)
    assert message.startswith(f"mamamia: {given!r} is not a server endpoint such as tcp:9000")
    assert said in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("given", "file"),
    [
        ("ssl:0", "server.pem"),
        ("ssl:443:privateKey=/nowhere/key.pem", "/nowhere/key.pem"),
        ("ssl:443:privateKey=/nowhere/key.pem:certKey=/nowhere/cert.pem", "/nowhere/cert.pem"),
    ],
)
def test_tls_without_a_key_says_which_file_is_missing_and_how_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, file: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        parse(MemoryReactorClock(), "flymq", given)
    assert str(caught.value) == (
        f"flymq: {given!r}: cannot read {tmp_path / file}: No such file or directory; TLS needs a "
        "key and a certificate, such as ssl:9000:privateKey=KEY.pem:certKey=CERT.pem"
    )


def test_tls_with_files_that_are_no_pem_says_what_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("not a key")
    with pytest.raises(ConfigError, match=r"^flymq: .*/key.pem must be a PEM file with a"):
        parse(MemoryReactorClock(), "flymq", f"ssl:0:privateKey={tmp_path}/key.pem")


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (IPv4Address("TCP", "127.0.0.1", 9000), "127.0.0.1:9000"),
        (IPv6Address("TCP", "::1", 9000), "[::1]:9000"),
        (UNIXAddress(b"/run/b.sock"), "unix:/run/b.sock"),
    ],
)
def test_addresses_as_listeners_json_shows_them(address: object, text: str) -> None:
    """host:port, [v6]:port or unix:PATH."""
    assert address_text(address) == text  # type: ignore[arg-type]
