# Tests: tests/test_tls.py
"""The TLS files of a listener: checks them, and reads them again when they change.

`Credentials.context` has the newest valid files. Invalid new files are logged once, and the old
ones stay in use. Open connections keep the files that they began with.

Listeners offer TLS 1.2 and 1.3. For TLS 1.2 they offer only cipher suites with forward secrecy and
authenticated encryption (RFC 9325, section 4.2). They resume no sessions, so that OpenSSL verifies
the client certificate of every connection.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
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
"""Cipher suites for TLS 1.2. For TLS 1.3 OpenSSL's defaults apply."""
SESSION_ID = b"brokerd"
"""Required by OpenSSL where it verifies client certificates (SSL_CTX_set_session_id_context)."""
EXPIRES_SOON_SECONDS = 14 * 86_400
SUBJECT_MAX = 200
"""Characters of a subject in the log."""
NOT_TRUSTED = "is not signed by a CA that this listener trusts"
TOO_WEAK = "has a key or a signature that is too weak"
CERTIFICATE_PROBLEMS = {
    2: NOT_TRUSTED,
    7: "has a wrong signature",
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
    79: "is used as a CA, but is not a CA certificate",
}
"""OpenSSL's error number (X509_STORE_CTX_get_error) -> the fault of a certificate."""

Stat = tuple[int, int, int] | None


class ClientCaUnusable(ConfigError):
    """The file with the CA of client certificates is unusable."""


@dataclass(frozen=True)
class TlsFiles:
    """The PEM files of a listener, and its mode of client certificates."""

    certificate: str
    """The broker's certificate, then its intermediate certificates."""
    key: str
    chain: str = ""
    """More intermediate certificates."""
    client_ca: str = ""
    """The CA of client certificates."""
    client_auth: Literal["none", "optional", "required"] = "none"

    def paths(self) -> list[str]:
        """Return the paths of all given files."""
        return [path for path in (self.certificate, self.key, self.chain, self.client_ca) if path]


class Credentials:
    """The TLS files in use by one or more listeners.

    :param files: absolute paths, because a daemon changes its directory.
    :raises ConfigError: for an unreadable or invalid file; the message names it.
    """

    _log = Logger(namespace="brokerd")

    def __init__(self, files: TlsFiles, wall_seconds: Callable[[], float]) -> None:
        self.files = files
        self._wall_seconds = wall_seconds
        self._seen = self._stats()
        self.context, self._expires_at = _read(files)
        """For new connections."""
        self._expiry_logged = False
        self.problem = ""
        """Why changed files are not in use; "" if all files are in use."""

    @property
    def expiry(self) -> str:
        """When the certificate expires, if that is soon; else ""."""
        left_seconds = self._expires_at - self._wall_seconds()
        if left_seconds >= EXPIRES_SOON_SECONDS:
            return ""
        days = int(left_seconds // 86_400)
        when = f"it expires in {days} days" if left_seconds > 0 else "it has expired"
        return f"the certificate in {self.files.certificate} must be renewed: {when}"

    def refresh(self) -> None:
        """Read changed files again, and log once that the certificate expires soon."""
        seen = self._stats()
        if seen != self._seen:
            self._seen = seen
            self._read_again()
        expiry = self.expiry
        if expiry and not self._expiry_logged:
            self._expiry_logged = True
            self._log.warn(
                "{expiry}",
                event_id="certificate-expires",
                expiry=expiry,
                file=self.files.certificate,
                when=expiry.partition(": ")[2],
            )

    def _read_again(self) -> None:
        try:
            self.context, self._expires_at = _read(self.files)
        except ConfigError as error:
            self.problem = (
                f"the TLS files have changed and cannot be used: {error}; the old ones stay in use"
            )
            self._log.warn(
                "the TLS files have changed and cannot be used: {reason}; the old ones stay in use",
                event_id="tls-files-unusable",
                reason=str(error),
            )
            return
        self.problem = ""
        self._expiry_logged = False
        self._log.info(
            "the TLS files have changed and were read again: {file}",
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
    """Return the context and the expiry of its certificate in seconds since the Unix epoch."""
    try:
        return _make_context(files)
    except (SSL.Error, crypto.Error) as error:
        raise ConfigError(
            f"OpenSSL refuses {' or '.join(files.paths())}: {_reason(error)}"
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
            f"the key in {files.key} has a password: remove it (openssl pkey), and let only the "
            "broker read the file"
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
    context.set_verify(mode, _on_verified)


def _on_verified(
    connection: SSL.Connection, certificate: crypto.X509, number: int, depth: int, is_valid: int
) -> bool:
    """Store the fault of a certificate in its connection. OpenSSL calls this."""
    if not is_valid:
        connection.get_app_data().problem = certificate_problem(certificate, number)
    return bool(is_valid)


def certificate_problem(certificate: crypto.X509, number: int) -> str:
    """Describe the fault of a client certificate, by OpenSSL's error number."""
    try:
        name = escaped(subject_of(certificate).name[:SUBJECT_MAX])
    except LoginFailed:
        name = "an unreadable subject"
    problem = CERTIFICATE_PROBLEMS.get(number, f"is invalid (OpenSSL error {number})")
    return f"the certificate of {name} {problem}"


def _certificates(path: str) -> list[x509.Certificate]:
    """Read the certificates of a PEM file, at least one."""
    try:
        return x509.load_pem_x509_certificates(_contents(path))
    except (ValueError, x509.InvalidVersion) as error:
        raise ConfigError(f"{path} must be a PEM file with a certificate") from error


def _contents(path: str) -> bytes:
    try:
        with open(path, "rb", opener=_open_nonblocking) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"cannot read {path}: it is not a regular file")
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"cannot read {path!r}: {error}") from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path} is too large for a PEM file: over {FILE_BYTES_MAX} bytes")
    return data


def _open_nonblocking(path: str, flags: int) -> int:
    """Open without blocking, because the path may be a pipe without a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _reason(error: SSL.Error | crypto.Error) -> str:
    """Return the text of OpenSSL's last error."""
    errors = error.args[0] if error.args else ()
    return str(errors[-1][2]) if errors else type(error).__name__
