# Tests: tests/test_endpoints.py
"""Twisted endpoint strings with safe defaults, and the text of addresses.

``tcp:`` and ``ssl:`` without an interface mean loopback, because by default the broker has no
authentication. Relative paths of ``unix:`` become absolute, because a daemon may change its
directory. The syntax is that of :func:`twisted.internet.endpoints.serverFromString`: colons
separate parts, and a backslash escapes the next character.

``haproxy:`` before an endpoint takes the client's address from the PROXY header of a proxy. Anyone
who can reach the endpoint can forge that header.

brokerd implements TLS itself (:mod:`brokerd.server.tls`), for ``ssl:`` and for ``[tls]``. ``ssl:``
has two more arguments: ``clientCA``, the CA of client certificates, and ``clientAuth``.
"""

from __future__ import annotations

import os
import re
import socket
import time
from typing import TYPE_CHECKING, Any

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import AdoptedStreamServerEndpoint, serverFromString
from twisted.internet.interfaces import (
    IAddress,
    IListeningPort,
    IProtocolFactory,
    IStreamServerEndpoint,
)
from twisted.internet.protocol import Protocol
from twisted.protocols.policies import WrappingFactory
from zope.interface import implementer

from brokerd.errors import ConfigError
from brokerd.server.sections import Config, Tls

if TYPE_CHECKING:
    from brokerd.server.tls import TlsFiles

LOOPBACK = "interface=127.0.0.1"

# Index of a positional interface, counted from the first argument; the backlog follows it.
# backlog comes after it.
_INTERFACE_POSITION = {"tcp": 1, "ssl": 4}

SSL_ARGUMENTS = (
    *("port", "privateKey", "certKey", "sslmethod", "interface", "backlog"),
    *("extraCertChain", "dhParameters"),
)
"""Positional arguments of ``ssl:``, as in Twisted."""
SSL_BY_NAME = ("clientCA", "clientAuth")
"""Arguments that brokerd adds."""
CLIENT_AUTH = ("none", "optional", "required")

BACKLOG = 1024
"""Backlog of a listening socket. With Twisted's 50, many clients at once wait a second and more for
TCP's retry.
"""


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


class Endpoints:
    """Makes the endpoints of one configuration; endpoints with the same TLS files share them."""

    def __init__(self, reactor: Any, config: Config) -> None:
        self._reactor = reactor
        self._config = config
        self._credentials: dict[Any, Any] = {}

    def parse(self, name: str, description: str) -> IStreamServerEndpoint:
        """Make the endpoint without opening it.

        :param name: the listener: a format, several joined by ``+``, or ``admin``.
        :raises ConfigError: for an invalid string or an unusable TLS file.
        """
        try:
            _check(description)
            plain, own = without_tls(localise(description))
            endpoint: IStreamServerEndpoint = serverFromString(self._reactor, plain)
            if is_behind_proxy(plain):
                endpoint = ProxyEndpoint(endpoint)
        except Exception as error:  # endpoint plugins may raise any exception
            reason = " ".join(str(error).split()) or type(error).__name__
            if isinstance(error, IndexError | KeyError) and description.startswith("systemd:"):
                reason = "systemd passed no such socket; start brokerd.socket first"
            raise ConfigError(
                f"{name}: {description!r} is not a server endpoint such as tcp:9000 "
                f"or unix:/run/brokerd.sock: {reason}"
            ) from error
        if own is None and not is_in_tls(name, self._config.tls):
            return endpoint
        return self._with_tls(name, description, endpoint, own)

    def _with_tls(
        self,
        name: str,
        description: str,
        endpoint: IStreamServerEndpoint,
        own: dict[str, str] | None,
    ) -> IStreamServerEndpoint:
        from brokerd.server.handshakes import TlsEndpoint  # only TLS needs OpenSSL, which is large
        from brokerd.server.tls import ClientCaUnusable, Credentials

        where = "tls" if own is None else f"{name}: {description!r}"
        files = tls_files(where, own or {}, self._config.tls)
        if files not in self._credentials:
            try:
                self._credentials[files] = Credentials(files, time.time)
            except ConfigError as error:
                advice = _advice(own, isinstance(error, ClientCaUnusable))
                raise ConfigError(f"{where}: {error}{advice}") from error
        seconds = self._config.limits.unfinished_frame_seconds
        return TlsEndpoint(name, endpoint, self._credentials[files], seconds, self._reactor)


@implementer(IStreamServerEndpoint)
class ProxyEndpoint:
    """A ``haproxy:`` endpoint whose factory may refuse connections.

    Twisted's own endpoint logs a fault then, and keeps the connection.
    """

    def __init__(self, endpoint: IStreamServerEndpoint) -> None:
        self._endpoint = endpoint

    def listen(self, factory: IProtocolFactory) -> Deferred[IListeningPort]:
        """Open it."""
        listening: Deferred[IListeningPort] = self._endpoint.listen(_ClosingFactory(factory))
        return listening


class _ClosingFactory(WrappingFactory):
    """Closes a connection that the wrapped factory refuses."""

    def buildProtocol(self, addr: IAddress | None) -> Any:
        inner = self.wrappedFactory.buildProtocol(addr)
        return _Closed() if inner is None else inner


class _Closed(Protocol):
    def makeConnection(self, transport: Any) -> None:
        transport.abortConnection()


def parse(reactor: Any, name: str, description: str) -> IStreamServerEndpoint:
    """Make one endpoint for a configuration without ``[tls]``; raises as `Endpoints.parse`."""
    return Endpoints(reactor, Config()).parse(name, description)


def is_behind_proxy(description: str) -> bool:
    """Return whether the endpoint trusts a PROXY header."""
    return _unescaped(split(description)[0]) == "haproxy"


def is_in_tls(name: str, tls: Tls) -> bool:
    """Return whether ``[tls]`` applies to a listener."""
    named = not tls.listeners or not set(tls.listeners).isdisjoint([name, *name.split("+")])
    return bool(tls.certificate_file) and named


def without_tls(description: str) -> tuple[str, dict[str, str] | None]:
    """Split an ``ssl:`` endpoint into the plain endpoint and its TLS arguments; None for others.

    :raises ValueError: for an unknown argument.
    """
    kind, *parts = split(description)
    if kind == "haproxy":
        plain, own = without_tls(description.partition(":")[2])
        return f"haproxy:{plain}", own
    if kind != "ssl":
        return description, None
    given: dict[str, str] = {}
    by_position = iter(SSL_ARGUMENTS)
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or not name.isalpha():
            name, value = next(by_position, ""), part
        if name not in SSL_ARGUMENTS + SSL_BY_NAME or name in given:
            raise ValueError(f"ssl has no argument {part!r}")
        given[name] = value
    below = [f"{name}={given.pop(name)}" for name in ("interface", "backlog") if name in given]
    plain = ":".join(["tcp", given.pop("port"), *below])
    return plain, {name: _unescaped(value) for name, value in given.items()}


def tls_files(where: str, own: dict[str, str], tls: Tls) -> TlsFiles:
    """Return the TLS files of a listener: its own, else those of ``[tls]``.

    :param where: prefix of messages.
    :param own: the arguments of an ``ssl:`` endpoint.
    :raises ConfigError: for contradictory files.
    """
    from brokerd.server.tls import TlsFiles

    for name in ("sslmethod", "dhParameters"):
        if name in own:
            raise ConfigError(f"{where}: leave {name} out: TLS 1.2 and 1.3 are spoken, with ECDHE")
    certificate, key = tls.certificate_file, tls.key_file
    if "privateKey" in own or "certKey" in own or not certificate:
        key = own.get("privateKey", "server.pem")
        certificate = own.get("certKey", key)
    auth = own.get("clientAuth", tls.client_auth)
    client_ca = own.get("clientCA", tls.client_ca_file)
    if auth not in CLIENT_AUTH:
        raise ConfigError(f"{where}: clientAuth is one of {', '.join(CLIENT_AUTH)}, not {auth!r}")
    if auth != "none" and not client_ca:
        raise ConfigError(
            f"{where}: clients are asked for certificates, but no CA is given: "
            "give clientCA=FILE.pem, or tls.client_ca_file"
        )
    if auth == "none" and "clientCA" in own:
        raise ConfigError(f"{where}: with clientCA say clientAuth=required or clientAuth=optional")
    return TlsFiles(
        os.path.abspath(certificate),
        os.path.abspath(key),
        _absolute(own.get("extraCertChain", "")),
        _absolute(client_ca if auth != "none" else ""),
        auth,  # type: ignore[arg-type]  # it is one of CLIENT_AUTH
    )


def _absolute(path: str) -> str:
    return os.path.abspath(path) if path else ""


def _advice(own: dict[str, str] | None, about_clients: bool) -> str:
    if about_clients:
        option = "clientCA" if own and "clientCA" in own else "tls.client_ca_file"
        return f"; {option} is a PEM file with those who sign the certificates of clients"
    if own is None:
        return "; [tls] needs certificate_file and key_file, PEM files"
    return (
        "; TLS needs a key and a certificate, such as ssl:9000:privateKey=KEY.pem:certKey=CERT.pem"
    )


def interface_of(description: str) -> str | None:
    """Return the interface of an endpoint, as written.

    None for a Unix socket; "" for all interfaces, or an unknown one.
    """
    kind, *parts = split(localise(description))
    if kind == "haproxy":
        return interface_of(description.partition(":")[2])
    if kind == "unix" or (kind == "systemd" and "domain=UNIX" in parts):
        return None
    if kind not in _INTERFACE_POSITION:
        return ""
    for part in parts:
        if part.startswith("interface="):
            return _unescaped(part.removeprefix("interface="))
    by_position = [part for part in parts if not re.match(r"[A-Za-z]+=", part)]
    return _unescaped("".join(by_position[_INTERFACE_POSITION[kind] :][:1]))


def socket_of(description: str) -> tuple[str, str] | None:
    """Return interface and port of an endpoint, as written, or ``unix`` and its path.

    None for any free port (0), and for endpoints that only their plugin can read.
    """
    kind, *parts = split(localise(description))
    if kind == "haproxy":
        return socket_of(description.partition(":")[2])
    if kind not in ("unix", *_INTERFACE_POSITION):
        return None
    name = "address=" if kind == "unix" else "port="
    named = [part.removeprefix(name) for part in parts if part.startswith(name)]
    first = _unescaped((named or parts)[0])
    if kind == "unix":
        return "unix", os.path.normpath(first)
    if not first.isdecimal() or int(first) == 0:
        return None
    return interface_of(description) or "", str(int(first))


def inherited_interface(endpoint: Any) -> str:
    """Return the interface of a ``systemd:`` endpoint, whose socket is open already; "" if unknown.

    Twisted removes the variables of sd_listen_fds(3), so the endpoint has to tell.
    """
    adopted = getattr(endpoint, "plain", endpoint)
    if not isinstance(adopted, AdoptedStreamServerEndpoint):
        return ""
    try:
        with socket.socket(fileno=os.dup(adopted.fileno)) as inherited:
            address = inherited.getsockname()
    except OSError:  # there is no such socket; the endpoint says so when it opens
        return ""
    return str(address[0]) if isinstance(address, tuple) else ""


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _check(description: str) -> None:
    """Find mistakes that would otherwise show when the endpoint opens."""
    kind, *arguments = split(description)
    if kind == "haproxy":
        _check(description.partition(":")[2])
    _check_names(arguments)
    first = arguments[0].rpartition("=")[2] if arguments else ""
    if kind in ("tcp", "ssl") and not (first.isdecimal() and int(first) <= 65535):
        raise ValueError("the port is a number from 0 to 65535")
    if kind == "unix" and not first:
        raise ValueError("the path of the socket is missing")


def _check_names(arguments: list[str]) -> None:
    """Refuse a repeated argument: the checks would see only one of two interfaces."""
    seen: set[str] = set()
    for part in arguments:
        named = re.match(r"((?:[^=\\]|\\.)*)=", part, re.DOTALL)
        name = _unescaped(named[1]) if named else ""
        if name in seen:
            raise ValueError(f"{name} is given twice")
        seen.update([name] if name else [])


def address_text(address: IAddress) -> str:
    """Format a bound address as ``host:port``, ``[v6]:port`` or ``unix:PATH``."""
    if isinstance(address, IPv6Address):
        return f"[{address.host}]:{address.port}"
    if isinstance(address, IPv4Address):
        return f"{address.host}:{address.port}"
    if isinstance(address, UNIXAddress):
        return f"unix:{os.fsdecode(address.name)}" if address.name else "unix:"
    return str(address)
