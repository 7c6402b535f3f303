# Tests: tests/test_bench_security.py
"""How the load generator connects: address, TLS, and login."""

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
    """Connection options; every field has a JSON type or is a dataclass of them."""

    tls: bool = False
    credentials: Credentials = field(default=Credentials())

    def client_options(self, address: str) -> dict[str, Any]:
        """Return the TLS arguments of the clients of all formats. Raises `ConfigError`."""
        if not self.tls:
            return {}
        return {
            "ssl_context": _context(self.credentials),
            "server_hostname": _name(addresses.parse_address(address)),
        }


PLAIN = ConnectOptions()


def connect_options_of(fields: dict[str, Any]) -> ConnectOptions:
    """Build the options from decoded JSON."""
    return ConnectOptions(fields["tls"], Credentials(**fields["credentials"]))


def connect(
    address: str, connection: ConnectOptions = PLAIN, seconds: float = CONNECT_SECONDS
) -> socket.socket:
    """Return a connected blocking socket with TCP_NODELAY, if it is TCP.

    :raises OSError: when the connection or TLS fails.
    :raises ValueError: when the address has no known form.
    :raises ConfigError: when the TLS files are unusable.
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
    """Make a TLS context once: to load the system's CA certificates takes longer than to
    connect.
    """
    return credentials.context()


def _name(place: addresses.Address) -> str:
    return place.host or "localhost"
