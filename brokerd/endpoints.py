# Tests: tests/test_endpoints.py
"""Twisted endpoint strings, made safe, and the addresses they turn into.

``tcp:`` and ``ssl:`` without an interface mean loopback here, because nothing checks who connects
until security is on; relative paths of ``unix:`` are made absolute, because a daemon may change
its directory. The syntax is that of :func:`twisted.internet.endpoints.serverFromString`: parts are
separated by colons, and a backslash takes the meaning from the character after it.
"""

from __future__ import annotations

import os
import re
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.endpoints import serverFromString
from twisted.internet.interfaces import IAddress, IStreamServerEndpoint

from brokerd.errors import ConfigError

LOOPBACK = "interface=127.0.0.1"

# Where the interface stands if it is given by position, counted from the first argument; the
# backlog comes after it.
_INTERFACE_POSITION = {"tcp": 1, "ssl": 4}

BACKLOG = 1024
"""Connections that may wait to be accepted. Twisted's 50 make a crowd of clients wait for TCP's
second try, a second and more."""


def split(description: str) -> list[str]:
    """Split an endpoint string at its colons, leaving escapes as they are.

    >>> split(r"tcp:80:interface=\\:\\:1")
    ['tcp', '80', 'interface=\\\\:\\\\:1']
    """
    return re.findall(r"(?:^|:)((?:[^:\\]|\\.)*)", description, re.DOTALL)


def localise(description: str) -> str:
    """Return the endpoint with loopback, backlog and absolute paths filled in where left out."""
    kind, *arguments = split(description)
    if kind == "haproxy":
        return f"haproxy:{localise(description.partition(':')[2])}"
    if kind in _INTERFACE_POSITION:
        by_position = [part for part in arguments if not re.match(r"[A-Za-z]+=", part)]
        by_name = any(part.startswith("interface=") for part in arguments)
        if not by_name and len(by_position) <= _INTERFACE_POSITION[kind]:
            description += f":{LOOPBACK}"
        has_backlog = any(part.startswith("backlog=") for part in arguments)
        if not has_backlog and len(by_position) <= _INTERFACE_POSITION[kind] + 1:
            description += f":backlog={BACKLOG}"
        return description
    if kind == "unix" and arguments:
        address = arguments[0].removeprefix("address=")
        if address and not address.startswith("/"):
            here = os.getcwd().replace("\\", "\\\\").replace(":", "\\:")
            return ":".join([kind, f"{here}/{address}", *arguments[1:]])
    return description


def parse(reactor: Any, name: str, description: str) -> IStreamServerEndpoint:
    """Make the endpoint, without opening it.

    :param name: what listens there, for the message: a format, or ``admin``.
    :raises ConfigError: if the string is not an endpoint, or a file that it names cannot be read.
    """
    try:
        _check(description)
        endpoint: IStreamServerEndpoint = serverFromString(reactor, localise(description))
    except Exception as error:  # plugins of endpoints raise what they like; all of it is told
        if split(description)[0] == "ssl" and (trouble := _trouble_of_tls(error)):
            raise ConfigError(f"{name}: {description!r}: {trouble}") from error
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"{name}: {description!r} is not a server endpoint such as tcp:9000 "
            f"or unix:/run/brokerd.sock: {reason}"
        ) from error
    return endpoint


def _trouble_of_tls(error: Exception) -> str:
    """What is wrong with the files of an ``ssl:`` endpoint; "" if it is something else."""
    from OpenSSL import SSL, crypto  # large, and only TLS needs it

    if isinstance(error, OSError):
        return (
            f"cannot read {error.filename}: {error.strerror}; TLS needs a key and a certificate, "
            "such as ssl:9000:privateKey=KEY.pem:certKey=CERT.pem"
        )
    if isinstance(error, SSL.Error | crypto.Error):
        return f"the key and the certificate must be PEM files: {error}"
    return ""


def _check(description: str) -> None:
    """Find the mistakes that would only show when the endpoint is opened."""
    kind, *arguments = split(description)
    if kind == "haproxy":
        _check(description.partition(":")[2])
    first = arguments[0].rpartition("=")[2] if arguments else ""
    if kind in ("tcp", "ssl") and not (first.isdecimal() and int(first) <= 65535):
        raise ValueError("the port is a number from 0 to 65535")
    if kind == "unix" and not first:
        raise ValueError("the path of the socket is missing")


def address_text(address: IAddress) -> str:
    """Write a bound address as ``host:port``, ``[v6]:port`` or ``unix:PATH``."""
    if isinstance(address, IPv6Address):
        return f"[{address.host}]:{address.port}"
    if isinstance(address, IPv4Address):
        return f"{address.host}:{address.port}"
    if isinstance(address, UNIXAddress):
        return f"unix:{os.fsdecode(address.name)}" if address.name else "unix:"
    return str(address)
