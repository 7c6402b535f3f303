# Tests: tests/client/test_addresses.py
"""Addresses in the form of listeners.json: ``host:port``, ``[v6]:port``, ``unix:PATH``."""

from __future__ import annotations

import socket
from typing import NamedTuple

from brokerd.client.checks import check_text
from brokerd.client.errors import AddressError

_PORT_MAX = 65_535
_PORT_DIGITS_MAX = 5


class Address(NamedTuple):
    """The address of a broker: a host and port, or the path of a UNIX socket."""

    host: str
    port: int
    path: str | None = None

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Return the address that `text` names.

    :raises AddressError: it is not an address.
    :raises TypeError: it is not a str.
    """
    check_text(address=text)
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path:
            raise AddressError("the address 'unix:' has no path; write unix:PATH")
        return Address("", 0, path)
    host, colon, port_text = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    unclear = not host or "[" in host or "]" in host or (":" in host) != bracketed
    port_is_good = port_text.isascii() and port_text.isdigit()
    digits = port_text.lstrip("0") or "0"
    port_is_good = port_is_good and len(digits) <= _PORT_DIGITS_MAX and int(digits) <= _PORT_MAX
    if not colon or unclear or not port_is_good:
        raise AddressError(f"{text!r} is not an address; write host:port, [v6]:port or unix:PATH")
    return Address(host, int(digits))


def open_socket(address: Address, timeout: float) -> socket.socket:
    """Return a connected stream socket with this timeout (seconds) and TCP_NODELAY.

    :raises OSError: the connection was refused or timed out; its text names the address.
    :raises AddressError: the host cannot be a name: a part is empty or too long.
    """
    try:
        return _open_socket(address, timeout)
    except UnicodeError as error:
        raise AddressError(f"{address} is not an address: {error}") from None
    except OSError as error:
        error.filename = str(address)
        raise


def _open_socket(address: Address, timeout: float) -> socket.socket:
    if address.path is None:
        opened = socket.create_connection((address.host, address.port), timeout)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        opened.settimeout(timeout)
        opened.connect(address.path)
    except OSError:
        opened.close()
        raise
    return opened
