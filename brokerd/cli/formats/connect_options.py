# Tests: tests/test_bench_security.py
"""How the load generator comes to a listener: plain or by TLS, and with whose login."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from brokerd.cli.credentials import Credentials
from brokerd.cli.server import tls_trouble
from brokerd.client import addresses

CONNECT_SECONDS = 30.0


@dataclass(frozen=True)
class ConnectOptions:
    """Every field is plain, or a dataclass of such, so that it travels as JSON."""

    tls: bool = False
    credentials: Credentials = field(default=Credentials())

    def client_options(self, address: str) -> dict[str, Any]:
        """What the clients of all formats take for TLS. Raises `ConfigError`."""
        if not self.tls:
            return {}
        return {
            "ssl_context": _context(self.credentials),
            "server_hostname": _name(addresses.parse_address(address)),
        }


PLAIN = ConnectOptions()


def connect_options_of(fields: dict[str, Any]) -> ConnectOptions:
    """Out of JSON."""
    return ConnectOptions(fields["tls"], Credentials(**fields["credentials"]))


def connect(
    address: str, connection: ConnectOptions = PLAIN, seconds: float = CONNECT_SECONDS
) -> socket.socket:
    """A connected blocking socket, without Nagle's delay where there is one.

    :raises OSError: when nobody listens there, or TLS fails.
    :raises ValueError: when the address cannot be read.
    :raises ConfigError: when the files of TLS cannot be used.
    """
    place = addresses.parse_address(address)
    opened = addresses.open_socket(place, seconds)
    if not connection.tls:
        return opened
    name = _name(place)
    try:
        return _context(connection.credentials).wrap_socket(opened, server_hostname=name)
    except OSError as error:
        opened.close()
        raise OSError(tls_trouble(error, name, "--address NAME:PORT")) from error


@cache
def _context(credentials: Credentials) -> ssl.SSLContext:
    """Reading whom a machine trusts takes longer than a connection."""
    return credentials.context()


def _name(place: addresses.Address) -> str:
    return place.host or "localhost"
