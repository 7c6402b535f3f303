# Tests: tests/cli/test_server.py
"""Client of the admin API (docs/admin-api.rst).

The address comes from ``--server``, or from ``DATA_DIR/run/listeners.json``. Every failure is a
`BrokerdError` with one line: the fault, the address and a remedy.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Iterator, Mapping
from http.client import BadStatusLine, HTTPConnection, HTTPException, RemoteDisconnected
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import click

from brokerd.cli.credentials import PASSWORD, Credentials, credentials
from brokerd.client.addresses import Address, open_socket, parse_address
from brokerd.errors import BrokerdError, ConfigError, InvalidName

TIMEOUT_SECONDS = 60.0
NOT_FOUND = 404
ADVICE = {
    401: "; say who you are: --user NAME with --password-file FILE, or --key-file FILE "
    "(docs/cli.rst, Credentials)",
    403: "; brokerctl whoami shows your account and its permissions",
}
"""HTTP status -> hint that the error text of a refusal ends with."""
PAGE = 1_000

ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Address to reach a broker of this machine that listens on all addresses."""
_MISNAMED = (62, 64)
_TIMED_OUT = (9, 10)
"""OpenSSL error codes: wrong name, wrong address; not yet valid, expired."""

NOBODY = Credentials()

Answer = dict[str, Any]


class NoBroker(BrokerdError):
    """No broker answers at the address."""

    retryable = True


class Refused(BrokerdError):
    """The broker refused; the text is the broker's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class AdminSite(NamedTuple):
    """The address of an admin site and its source."""

    address: Address
    tls: bool
    told_by: str
    name: str = ""
    """The name that the certificate must have, if not the address."""


def find(server: str | None, data_dir: str) -> AdminSite:
    """Find the admin site. Raises `ConfigError`, `AddressError` and `NoBroker`."""
    if server is not None:
        return _named(server)
    path = os.path.join(data_dir, "run", "listeners.json")
    try:
        with open(path, encoding="utf-8") as file:
            listeners = json.load(file)
    except FileNotFoundError:
        raise NoBroker(
            f"no broker serves {data_dir}: {path} is not there; start one, or name one with "
            "--server URL, or its directory with --data-dir"
        ) from None
    except OSError as error:
        raise NoBroker(
            f"cannot read {path}: {error.strerror}; name the broker with --server URL"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error}); name the broker with --server") from error
    admin = listeners.get("admin") if isinstance(listeners, dict) else None
    if not isinstance(admin, str):
        raise NoBroker(
            f"the broker of {data_dir} has no admin site ({path} names none); start it without "
            "--admin none"
        )
    address = parse_address(admin)
    tls = "admin" in listeners.get("tls", ())
    if address.host in ANYWHERE:
        return AdminSite(address._replace(host=ANYWHERE[address.host]), tls, path, "localhost")
    return AdminSite(address, tls, path)


def _named(server: str) -> AdminSite:
    scheme, _, rest = server.rpartition("://")
    if scheme not in ("", "http", "https"):
        raise ConfigError(
            f"--server {server!r} is not an address: write http://HOST:PORT, https://HOST:PORT, "
            "HOST:PORT or unix:PATH"
        )
    return AdminSite(parse_address(rest.rstrip("/")), scheme == "https", "--server")


class Server:
    """Client of the admin API; each request has its own connection."""

    def __init__(self, place: AdminSite, credentials: Credentials = NOBODY) -> None:
        self._place = place
        self._credentials = credentials

    def get(self, *parts: str | int, **query: Any) -> Answer:
        """GET a path. ``parts`` are names in the path; query values of None are left out."""
        given = {name: value for name, value in query.items() if value is not None}
        return self._exchange("GET", _path(parts) + (f"?{urlencode(given)}" if given else ""), None)

    def pages(self, *parts: str | int, key: str, **query: Any) -> Iterator[Answer]:
        """Iterate over a list that pages by offset."""
        place: Mapping[str, int] | None = {}
        while place is not None:
            page = self.get(*parts, **{"limit": PAGE, **query, **place})
            yield from page[key]
            place = page["next"]

    def all(self, *parts: str | int, key: str) -> Iterator[Answer]:
        """Iterate over a list that pages by number."""
        first: int | None = 0
        while first is not None:
            page = self.get(*parts, first=first, limit=PAGE)
            yield from page[key]
            first = page["next"]

    def post(self, *parts: str | int, **body: Any) -> Answer:
        return self._exchange("POST", _path(parts), body)

    def patch(self, *parts: str | int, **body: Any) -> Answer:
        return self._exchange("PATCH", _path(parts), body)

    def put(self, *parts: str | int, **body: Any) -> Answer:
        return self._exchange("PUT", _path(parts), body)

    def delete(self, *parts: str | int) -> Answer:
        return self._exchange("DELETE", _path(parts), {})

    def _exchange(self, method: str, path: str, body: Answer | None) -> Answer:
        sent = None if body is None else json.dumps(body).encode()
        headers = self._credentials.headers()
        if sent is not None:
            headers["Content-Type"] = "application/json"
        connection = HTTPConnection("brokerd")
        try:
            connection.sock = self._open()
            try:
                connection.request(method, path, sent, headers)
                response = connection.getresponse()
                status, raw = response.status, response.read()
            except (OSError, HTTPException) as error:
                raise self._lost(_told(connection.sock, error), method) from error
        finally:
            connection.close()
        return self._read(status, raw)

    def _open(self) -> Any:
        place = self._place
        context = self._credentials.context() if place.tls else None
        try:
            opened = open_socket(place.address, TIMEOUT_SECONDS)
        except OSError as error:
            raise NoBroker(
                f"no broker answers at {place.address} (from {place.told_by}): "
                f"{error.strerror or error}; start it, or name another with --server URL"
            ) from error
        if context is None:
            return opened
        name = place.name or place.address.host or "localhost"
        try:
            return context.wrap_socket(opened, server_hostname=name)
        except OSError as error:
            opened.close()
            raise NoBroker(
                f"{place.address} (from {place.told_by}): {tls_trouble(error, name)}"
            ) from error

    def _lost(self, error: Exception, method: str) -> NoBroker:
        reason = f"no answer within {TIMEOUT_SECONDS:.0f} s"
        advice = "try again"
        if method != "GET":
            advice = "the broker may have made the change: check before you try again"
        if _wants_certificate(error):
            return NoBroker(
                f"{self._place.address}: the broker wants a certificate that it trusts: "
                "--certificate-file FILE"
            )
        if not isinstance(error, TimeoutError):
            reason = f"the connection ended without an answer ({error or type(error).__name__})"
        if isinstance(error, RemoteDisconnected | BadStatusLine):
            advice += "; is it the address of a wire format instead of the admin site?"
        if not self._place.tls and isinstance(error, ConnectionError | BadStatusLine):
            advice += f" or does it speak TLS: --server https://{self._place.address}?"
        return NoBroker(f"{self._place.address}: {reason}; {advice}")

    def _read(self, status: int, raw: bytes) -> Answer:
        try:
            answer = json.loads(raw)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise NoBroker(
                f"{self._place.address} (from {self._place.told_by}) answered {status}, and not as "
                "a broker's admin site would; name another with --server URL"
            )
        if status >= 400:
            text = str(answer.get("error", f"refused with {status}"))
            text += ADVICE.get(status, "")
            raise Refused(status, text)
        return answer


def tls_trouble(error: OSError, name: str, option: str = "--server https://NAME:PORT") -> str:
    """Explain a failed TLS handshake with the broker ``name`` and name a remedy.

    ``option`` is the option that sets the name.
    """
    if not isinstance(error, ssl.SSLCertVerificationError):
        if _wants_certificate(error):
            return "the broker wants a certificate that it trusts: --certificate-file FILE"
        reason = str(getattr(error, "reason", None) or error.strerror or error)
        advice = "is there TLS at all?"
        if "ALERT" in reason:
            advice = "the broker may want a certificate: --certificate-file FILE"
        return f"the TLS handshake failed ({reason}); {advice}"
    if error.verify_code in _MISNAMED:
        what = f"is not one for {name}"
        advice = (
            f"use {option} with a name of the certificate, or make a certificate with this name"
        )
    elif error.verify_code in _TIMED_OUT:
        what, advice = f"cannot be trusted: {error.verify_message}", "renew it, or set the clock"
    else:
        what = f"cannot be trusted: {error.verify_message}"
        advice = "name the CA with --ca-file FILE"
    return f"the broker's certificate {what}; {advice}"


def _told(sock: Any, error: Exception) -> Exception:
    """Return the reason for a lost connection: the TLS alert of the broker, if any, else
    ``error``.
    """
    if isinstance(sock, ssl.SSLSocket) and not isinstance(error, TimeoutError):
        try:
            sock.recv(1)
        except OSError as told:
            return told
    return error


def _wants_certificate(error: Exception) -> bool:
    """Return whether the broker ended a connection because of a wrong or missing client
    certificate.
    """
    reason = str(getattr(error, "reason", "") or "")
    return isinstance(error, ssl.SSLError) and "ALERT" in reason and "CERTIFICATE" in reason


def _path(parts: tuple[str | int, ...]) -> str:
    try:
        path = "/api/v1/" + "/".join(quote(str(part), safe="") for part in parts)
    except UnicodeEncodeError:
        raise InvalidName(f"a name is not UTF-8: {parts!a}") from None
    return path + "/" if parts[-1] == "" else path  # an empty name is a name


def server_of(context: click.Context) -> Server:
    """Make the client for the global options and credentials."""
    place = find(context.obj["server"], context.obj["data_dir"])
    return Server(place, credentials_of(context))


def credentials_of(context: click.Context) -> Credentials:
    """Return the credentials of the global options; prompt at most once. Raises as `credentials`,
    and

    :raises ConfigError: for a password without an account.
    """
    known: Credentials | None = context.obj.get("credentials")
    if known is None:
        login = context.obj["login"]
        known = context.obj["credentials"] = credentials(**login)
        given = login["password_file"] or login["environment"].get(PASSWORD)
        if given and not known.user and not known.key:
            raise ConfigError(
                "there is a password, but no account: use --user NAME, or BROKERCTL_USER"
            )
    return known
