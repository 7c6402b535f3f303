"""Addresses as users and listeners.json write them."""

from __future__ import annotations

import socket

import pytest

from brokerd.client.addresses import Address, open_socket, parse_address
from brokerd.client.errors import AddressError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9000", Address("127.0.0.1", 9000)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:9000", Address("::1", 9000)),
        ("unix:/run/b:1.sock", Address("", 0, "/run/b:1.sock")),
    ],
)
def test_an_address_is_read_and_written_alike(text, address):
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        ":9000",
        "host:",
        "host:x",
        "host:-1",
        "host:65536",
        "::1:9000",
        "[::1]",
        "[]:1",
        "unix:",
        "host:٣",
        "[host]x:1",
        "host:" + "9" * 5_000,
    ],
)
def test_a_wrong_address_is_refused_by_name(text):
    with pytest.raises(AddressError, match="unix:PATH"):
        parse_address(text)


def test_what_is_no_text_is_no_address():
    with pytest.raises(TypeError, match="address must be a str, not None"):
        parse_address(None)


@pytest.mark.parametrize("host", ["a..b", ".a", f"{'x' * 70}.y", "é..é"])
def test_a_host_that_can_be_no_name_is_refused(host: str) -> None:
    with pytest.raises(AddressError, match=r":9000 is not an address: .*label"):
        open_socket(parse_address(f"{host}:9000"), 5.0)


def test_a_unix_socket_is_opened(tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen()
        with open_socket(parse_address(f"unix:{path}"), 5.0) as opened:
            assert opened.getpeername() == path
            assert opened.gettimeout() == 5.0


def test_a_missing_unix_socket_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_socket(Address("", 0, str(tmp_path / "none")), 5.0)


def test_a_port_of_the_machine_is_opened():
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        open_socket(Address(*listening.getsockname()), 5.0) as opened,
    ):
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_refused_connection_names_the_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectionRefusedError, match=f"refused: '127.0.0.1:{port}'$"):
        open_socket(Address("127.0.0.1", port), 5.0)
