# Tests: tests/test_listeners.py
"""The listeners of a configuration: their endpoints and their security.

A listener is *open* if other machines can reach it: all but loopback and UNIX sockets. An open
listener needs TLS and authentication, unless ``security.allow_insecure`` is set (docs/security.rst,
section "Open listeners").
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from ipaddress import ip_address
from itertools import combinations
from typing import Any

from twisted.internet.interfaces import IStreamServerEndpoint

from brokerd.errors import ConfigError
from brokerd.security.certificates import read_principals
from brokerd.server.config import may_share
from brokerd.server.endpoints import (
    Endpoints,
    inherited_interface,
    interface_of,
    is_behind_proxy,
    socket_of,
)
from brokerd.server.sections import FORMATS, Config

ADMIN = "admin"
"""Name of the admin site among the listeners."""
UNIX = "unix"


def descriptions(config: Config) -> dict[str, str]:
    """Return listener -> endpoint string, including the admin site."""
    if config.admin.endpoint == "none":
        return dict(config.listen)
    return {**config.listen, ADMIN: config.admin.endpoint}


def endpoints_of(reactor: Any, config: Config) -> dict[str, IStreamServerEndpoint]:
    """Make the endpoints of all listeners without opening them.

    :param reactor: opens them later; None for a check.
    :raises ConfigError: for an invalid endpoint, an invalid ``[tls]``, or an insecure listener.
    """
    check_tls(config)
    _check_proxies(config)
    made = Endpoints(reactor, config)
    endpoints = {name: made.parse(name, text) for name, text in descriptions(config).items()}
    if config.tls.client_auth != "none" and not any(map(_client_auth, endpoints.values())):
        raise ConfigError("tls.client_auth: no listener speaks TLS; give tls.certificate_file")
    _check_distinct(config)
    insecure = insecure_listeners(config, endpoints)
    if insecure and not config.security.allow_insecure:
        listed = ", ".join(f"{name} ({what})" for name, what in insecure.items())
        raise ConfigError(
            f"open to other machines: {listed}; set up [tls] and security.auth, or listen on "
            "loopback, or allow it with security.allow_insecure = true"
        )
    return endpoints


def _check_distinct(config: Config) -> None:
    """Refuse two listeners at one port or path."""
    sockets = {
        name: found
        for name, text in descriptions(config).items()
        if (found := socket_of(text)) is not None
    }
    for (name, one), (other, another) in combinations(sockets.items(), 2):
        if not _overlap(one, another):
            continue
        where = f"{one[0]} {one[1]}" if one[0] == UNIX else f"port {one[1]}"
        formats = [*name.split("+"), *other.split("+")]
        advice = "give each an endpoint of its own"
        if all(may_share(*pair) for pair in combinations(formats, 2)):
            shared = "+".join(formats)
            advice = f'write one listener for all: "{shared}" = "{descriptions(config)[name]}"'
        raise ConfigError(f"{name} and {other} both listen on {where}; {advice}")


def _overlap(one: tuple[str, str], another: tuple[str, str]) -> bool:
    """Return whether two sockets cannot be open together, as far as their texts tell."""
    if one == another:
        return True
    interfaces = {one[0], another[0]}
    is_port = UNIX not in interfaces and one[1] == another[1]
    of_ipv4 = not any(":" in interface for interface in interfaces)
    return is_port and of_ipv4 and not interfaces.isdisjoint({"", "0.0.0.0"})


def _check_proxies(config: Config) -> None:
    """Refuse authentication on an endpoint whose clients can forge their address."""
    for name, description in descriptions(config).items():
        if config.security.auth != "off" and is_behind_proxy(description):
            raise ConfigError(
                f"{name}: security.auth does not allow {description!r}: a client can forge "
                "its address, and the login throttle and the audit trail would believe "
                "it; let the proxy connect to a tcp:, ssl: or unix: endpoint"
            )


def insecure_listeners(
    config: Config, endpoints: Mapping[str, IStreamServerEndpoint]
) -> dict[str, str]:
    """Return open listener -> its missing protection; safe listeners are left out."""
    found = {}
    for name, description in descriptions(config).items():
        if not is_open(description, endpoints[name]):
            continue
        client_auth = _client_auth(endpoints[name])
        lacks = [] if client_auth else ["TLS"]
        if config.security.auth == "off" and client_auth != "required":
            lacks.append("auth")
        if lacks:
            found[name] = "without " + " and without ".join(lacks)
    return found


def listener_warnings(config: Config, endpoints: Mapping[str, IStreamServerEndpoint]) -> list[str]:
    """Return warnings about options without effect, one line each."""
    found = []
    is_off = config.security.auth == "off"
    for wire_format in FORMATS:
        if is_off and getattr(config, wire_format).principal:
            found.append(f'{wire_format}.principal has no effect while security.auth is "off"')
    if not is_off and config.blipmq.principal and not config.blipmq.api_keys:
        found.append("blipmq.principal is the account of blipmq.api_keys, which has no key")
    if not config.tls.principals:
        return found
    if is_off:
        found.append('tls.principals has no effect while security.auth is "off"')
    elif not {*map(_client_auth, endpoints.values())} & {"optional", "required"}:
        found.append(
            "tls.principals has no effect: clients need no certificate; set tls.client_auth"
        )
    for subject in read_principals(config.tls.principals):
        parts = subject.split(",")
        if not parts[0].startswith("CN=") and any(part.startswith("CN=") for part in parts):
            found.append(
                f"tls.principals: in {subject} the common name is not first; subjects are compared "
                "as `openssl x509 -noout -subject -nameopt RFC2253` shows them"
            )
    return found


def is_open(description: str, endpoint: Any = None) -> bool:
    """Return whether other machines may reach an endpoint; True if unknown."""
    interface = interface_of(description)
    if interface == "":
        interface = inherited_interface(endpoint)
    if interface is None:
        return False
    try:
        return not ip_address(interface).is_loopback
    except ValueError:
        return interface != "localhost"


def check_tls(config: Config) -> None:
    """Check ``[tls]``.

    :raises ConfigError: for the first mistake.
    """
    tls = config.tls
    known = [*FORMATS, ADMIN, *config.listen]
    for name in tls.listeners:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ": name formats, or admin"
            raise ConfigError(f"tls.listeners: there is no listener {name!r}{hint}")
    if bool(tls.certificate_file) != bool(tls.key_file):
        lacking = "tls.key_file" if tls.certificate_file else "tls.certificate_file"
        raise ConfigError(f"{lacking} is missing: TLS needs a certificate and its key")
    if tls.listeners and not tls.certificate_file:
        raise ConfigError(
            "tls.listeners: TLS needs a certificate and its key: give tls.certificate_file and "
            "tls.key_file"
        )
    if tls.client_auth != "none" and not tls.client_ca_file:
        raise ConfigError(
            f'tls.client_auth is "{tls.client_auth}", and tls.client_ca_file does not say who '
            "signs the certificates of clients"
        )
    if tls.client_ca_file and tls.client_auth == "none":
        raise ConfigError(
            "tls.client_ca_file: no client is asked for a certificate; give tls.client_auth = "
            '"required" or "optional"'
        )
    read_principals(tls.principals)


def speaks_tls(endpoint: Any) -> bool:
    """Return whether an endpoint requires TLS."""
    return bool(_client_auth(endpoint))


def _client_auth(endpoint: Any) -> str:
    """Return the mode of client certificates; "" without TLS."""
    credentials = getattr(endpoint, "credentials", None)
    return "" if credentials is None else str(credentials.files.client_auth)
