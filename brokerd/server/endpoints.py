# Tests: tests/test_endpoints.py
"""Twisted endpoint strings, made safe, and the addresses they turn into.

``tcp:`` and ``ssl:`` without an interface mean loopback here, because nothing checks who connects
by default; relative paths of ``unix:`` are made absolute, because a daemon may change
its directory. The syntax is that of :func:`twisted.internet.endpoints.serverFromString`: parts are
separated by colons, and a backslash takes the meaning from the character after it.

``haproxy:`` before another endpoint takes where a client comes from from the PROXY header that a
proxy sends first. Whoever reaches it may say what he likes there.

TLS is brokerd's own (:mod:`brokerd.server.tls`), for ``ssl:`` as for what ``[tls]`` names. ``ssl:``
takes two more arguments: ``clientCA``, who signs the certificates of clients, and ``clientAuth``.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Any

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
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

# Where the interface stands if it is given by position, counted from the first argument; the
# backlog comes after it.
_INTERFACE_POSITION = {"tcp": 1, "ssl": 4}

SSL_ARGUMENTS = (
    *("port", "privateKey", "certKey", "sslmethod", "interface", "backlog"),
    *("extraCertChain", "dhParameters"),
)
"""The arguments of ``ssl:`` by their position, as Twisted has them."""
SSL_BY_NAME = ("clientCA", "clientAuth")
"""Those that brokerd adds."""
CLIENT_AUTH = ("none", "optional", "required")

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


class Endpoints:
    """Makes the endpoints of the listeners of one configuration.

    Those that speak TLS with the same files share them.
    """

    def __init__(self, reactor: Any, config: Config) -> None:
        self._reactor = reactor
        self._config = config
        self._credentials: dict[Any, Any] = {}

    def parse(self, name: str, description: str) -> IStreamServerEndpoint:
        """Make the endpoint, without opening it.

        :param name: what listens there: a format, several joined by ``+``, or ``admin``.
        :raises ConfigError: if the string is not an endpoint, or a file that it, or ``[tls]``,
            names cannot be used.
        """
        try:
            _check(description)
            plain, own = without_tls(localise(description))
            endpoint: IStreamServerEndpoint = serverFromString(self._reactor, plain)
            if is_behind_proxy(plain):
                endpoint = ProxyEndpoint(endpoint)
        except Exception as error:  # plugins of endpoints raise what they like; all of it is told
            reason = " ".join(str(error).split()) or type(error).__name__
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
        from brokerd.server.handshakes import TlsEndpoint  # OpenSSL is large, and only TLS needs it
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

    Twisted's makes a fault of that, and keeps the connection.
    """

    def __init__(self, endpoint: IStreamServerEndpoint) -> None:
        self._endpoint = endpoint

    def listen(self, factory: IProtocolFactory) -> Deferred[IListeningPort]:
        """Open it."""
        listening: Deferred[IListeningPort] = self._endpoint.listen(_ClosingFactory(factory))
        return listening


class _ClosingFactory(WrappingFactory):
    """Has a connection closed where the factory below has none."""

    def buildProtocol(self, addr: IAddress | None) -> Any:
        inner = self.wrappedFactory.buildProtocol(addr)
        return _Closed() if inner is None else inner


class _Closed(Protocol):
    def makeConnection(self, transport: Any) -> None:
        transport.abortConnection()


def parse(reactor: Any, name: str, description: str) -> IStreamServerEndpoint:
    """Make one endpoint, of a configuration without ``[tls]``; raises as `Endpoints.parse`."""
    return Endpoints(reactor, Config()).parse(name, description)


def is_behind_proxy(description: str) -> bool:
    """Whether who connects says where from."""
    return _unescaped(split(description)[0]) == "haproxy"


def is_in_tls(name: str, tls: Tls) -> bool:
    """Whether ``[tls]`` is for a listener."""
    named = not tls.listeners or not set(tls.listeners).isdisjoint([name, *name.split("+")])
    return bool(tls.certificate_file) and named


def without_tls(description: str) -> tuple[str, dict[str, str] | None]:
    """The endpoint below an ``ssl:`` one, and the arguments that are of TLS; None for others.

    :raises ValueError: an argument is none of ``ssl``'s.
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
            raise ValueError(f"ssl takes no {part!r} there")
        given[name] = value
    below = [f"{name}={given.pop(name)}" for name in ("interface", "backlog") if name in given]
    plain = ":".join(["tcp", given.pop("port"), *below])
    return plain, {name: _unescaped(value) for name, value in given.items()}


def tls_files(where: str, own: dict[str, str], tls: Tls) -> TlsFiles:
    """The files of a listener: its own, and those of ``[tls]`` where it names none.

    :param where: for the message.
    :param own: the arguments of an ``ssl:`` endpoint.
    :raises ConfigError: if they contradict one another.
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
            f"{where}: clients are asked for certificates, and nobody is named who signs them: "
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
    """The interface that an endpoint listens on, as it is written.

    None for a socket in the file system; empty where all are meant, or it cannot be told.
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


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _check(description: str) -> None:
    """Find the mistakes that would only show when the endpoint is opened."""
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
    """Refuse an argument that is given twice: of two interfaces only one would be looked at."""
    seen: set[str] = set()
    for part in arguments:
        named = re.match(r"((?:[^=\\]|\\.)*)=", part, re.DOTALL)
        name = _unescaped(named[1]) if named else ""
        if name in seen:
            raise ValueError(f"{name} is given twice")
        seen.update([name] if name else [])


def address_text(address: IAddress) -> str:
    """Write a bound address as ``host:port``, ``[v6]:port`` or ``unix:PATH``."""
    if isinstance(address, IPv6Address):
        return f"[{address.host}]:{address.port}"
    if isinstance(address, IPv4Address):
        return f"{address.host}:{address.port}"
    if isinstance(address, UNIXAddress):
        return f"unix:{os.fsdecode(address.name)}" if address.name else "unix:"
    return str(address)
