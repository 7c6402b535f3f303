# Tests: tests/test_tls.py
"""What a listener needs to speak TLS: its files, read and checked, and read again when they change.

`Credentials.context` is made of the newest files that were sound: files that become unusable are
told of once and change nothing, and connections that are open keep what they began with. TLS 1.2
and 1.3; of 1.2 the suites with forward secrecy and authenticated encryption alone (RFC 9325,
section 4.2). Sessions are never resumed, so that every connection has its certificate verified.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL, crypto
from twisted.logger import Logger

from brokerd.errors import ConfigError, LoginFailed, escaped
from brokerd.security.certificates import subject_of

FILE_BYTES_MAX = 1 << 20
SUITES = b"ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2; all of those of 1.3 are good."""
SESSION_ID = b"brokerd"
"""Must be set where certificates are verified (OpenSSL's SSL_CTX_set_session_id_context)."""
EXPIRES_SOON_SECONDS = 14 * 86_400
SUBJECT_MAX = 200
"""Of a subject so many characters are told."""
NOT_TRUSTED = "is signed by nobody whom this listener trusts"
TOO_WEAK = "has a key or a signature that is too weak"
CERTIFICATE_PROBLEMS = {
    2: NOT_TRUSTED,
    7: "has a signature that is wrong",
    9: "is not valid yet, or a clock is wrong",
    10: "has expired",
    18: NOT_TRUSTED,
    19: NOT_TRUSTED,
    20: NOT_TRUSTED,
    21: NOT_TRUSTED,
    26: "is not meant for clients",
    66: TOO_WEAK,
    67: TOO_WEAK,
    68: TOO_WEAK,
    79: "must not sign others",
}
"""What can be wrong with a certificate, by OpenSSL's numbers (X509_STORE_CTX_get_error)."""

Stat = tuple[int, int, int] | None


class ClientCaUnusable(ConfigError):
    """It is the file of those who sign the certificates of clients."""


@dataclass(frozen=True)
class TlsFiles:
    """The PEM files of a listener, and whether clients have certificates too."""

    certificate: str
    """The broker's certificate, and behind it those that signed it."""
    key: str
    chain: str = ""
    """More of those that signed it."""
    client_ca: str = ""
    """Who signs the certificates of clients."""
    client_auth: Literal["none", "optional", "required"] = "none"

    def paths(self) -> list[str]:
        """Those files that are named."""
        return [
            getattr(self, one.name)
            for one in fields(self)
            if one.name != "client_auth" and getattr(self, one.name)
        ]


class Credentials:
    """The files of some listeners, as they are in use.

    :param files: with absolute paths, because a daemon changes its directory.
    :raises ConfigError: a file cannot be read, or not be used; the message names it.
    """

    _log = Logger(namespace="brokerd")

    def __init__(self, files: TlsFiles, wall_seconds: Callable[[], float]) -> None:
        self.files = files
        self._wall_seconds = wall_seconds
        self._seen = self._stats()
        self.context, self._expires_at = _read(files)
        """For the connections that begin now."""
        self._told_expiry = False

    def refresh(self) -> None:
        """Read the files again if they have changed; tell it if the certificate expires soon."""
        seen = self._stats()
        if seen != self._seen:
            self._seen = seen
            self._read_again()
        left_seconds = self._expires_at - self._wall_seconds()
        if left_seconds < EXPIRES_SOON_SECONDS and not self._told_expiry:
            self._told_expiry = True
            days = int(left_seconds // 86_400)
            self._log.warn(
                "the certificate in {file} must be renewed: {when}",
                event_id="certificate-expires",
                file=self.files.certificate,
                when=f"it expires in {days} days" if left_seconds > 0 else "it has expired",
            )

    def _read_again(self) -> None:
        try:
            self.context, self._expires_at = _read(self.files)
        except ConfigError as error:
            self._log.warn(
                "the files of TLS have changed and cannot be used: {reason}; those that were read "
                "before stay in use",
                event_id="tls-files-unusable",
                reason=str(error),
            )
            return
        self._told_expiry = False
        self._log.info(
            "the files of TLS have changed and were read again: {file}",
            event_id="tls-files-read",
            file=self.files.certificate,
        )

    def _stats(self) -> list[Stat]:
        return [_stat(path) for path in self.files.paths()]


def _stat(path: str) -> Stat:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(files: TlsFiles) -> tuple[SSL.Context, float]:
    """The context, and when its certificate expires, in seconds since the Unix epoch."""
    try:
        return _make_context(files)
    except (SSL.Error, crypto.Error) as error:
        raise ConfigError(
            f"OpenSSL does not take what is in {' or '.join(files.paths())}: {_reason(error)}"
        ) from error


def _make_context(files: TlsFiles) -> tuple[SSL.Context, float]:
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_cipher_list(SUITES)
    context.set_options(
        SSL.OP_NO_COMPRESSION
        | SSL.OP_CIPHER_SERVER_PREFERENCE
        | SSL.OP_NO_TICKET
        | SSL.OP_NO_RENEGOTIATION
    )
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_session_id(SESSION_ID)
    first, *others = _certificates(files.certificate)
    if files.chain:
        others += _certificates(files.chain)
    context.use_certificate(first)
    for other in others:
        context.add_extra_chain_cert(other)
    _use_key(context, files)
    if files.client_auth != "none":
        _verify_clients(context, files)
    return context, first.not_valid_after_utc.timestamp()


def _use_key(context: SSL.Context, files: TlsFiles) -> None:
    try:
        key: Any = load_pem_private_key(_contents(files.key), None)
    except TypeError:
        raise ConfigError(
            f"the key in {files.key} needs a password: take that off (openssl pkey), and let only "
            "the broker read the file"
        ) from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{files.key} must be a PEM file with a private key") from error
    try:
        context.use_privatekey(key)
        context.check_privatekey()
    except (SSL.Error, TypeError) as error:
        raise ConfigError(
            f"the key in {files.key} does not belong to the certificate in {files.certificate}"
        ) from error


def _verify_clients(context: SSL.Context, files: TlsFiles) -> None:
    store = context.get_cert_store()
    if store is None:
        raise ConfigError("this OpenSSL cannot verify certificates of clients")
    try:
        authorities = _certificates(files.client_ca)
    except ConfigError as error:
        raise ClientCaUnusable(str(error)) from error
    for authority in authorities:
        store.add_cert(crypto.X509.from_cryptography(authority))
        context.add_client_ca(authority)
    store.set_flags(crypto.X509StoreFlags.PARTIAL_CHAIN)
    mode = SSL.VERIFY_PEER
    if files.client_auth == "required":
        mode |= SSL.VERIFY_FAIL_IF_NO_PEER_CERT
    context.set_verify(mode, _verified)


def _verified(
    connection: SSL.Connection, certificate: crypto.X509, number: int, depth: int, sound: int
) -> bool:
    """Have the connection know what is wrong with a certificate; called by OpenSSL."""
    if not sound:
        connection.get_app_data().problem = certificate_problem(certificate, number)
    return bool(sound)


def certificate_problem(certificate: crypto.X509, number: int) -> str:
    """What is wrong with a client's certificate, by OpenSSL's number of it."""
    try:
        name = escaped(subject_of(certificate).name[:SUBJECT_MAX])
    except LoginFailed:
        name = "somebody unreadable"
    problem = CERTIFICATE_PROBLEMS.get(number, f"is not right (OpenSSL {number})")
    return f"the certificate of {name} {problem}"


def _certificates(path: str) -> list[x509.Certificate]:
    """The certificates of a PEM file, at least one."""
    try:
        return x509.load_pem_x509_certificates(_contents(path))
    except ValueError as error:
        raise ConfigError(f"{path} must be a PEM file with a certificate") from error


def _contents(path: str) -> bytes:
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"cannot read {path}: it is no file")
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"cannot read {path!r}: {error}") from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path} is larger than any PEM file of TLS: {FILE_BYTES_MAX} bytes")
    return data


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting: nobody may ever write to a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def _reason(error: SSL.Error | crypto.Error) -> str:
    """The last of OpenSSL's own words."""
    told = error.args[0] if error.args else ()
    return str(told[-1][2]) if told else type(error).__name__
