# Tests: tests/security/test_certificates.py
"""The subject of a client's certificate and the account that belongs to it.

All certificates here are verified by TLS. A subject has the form of RFC 4514: the most specific
part first, ``CN=orders,O=Acme``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from brokerd.errors import ConfigError, LoginFailed

ARROW = "=>"


class Subject(NamedTuple):
    """The subject of a certificate."""

    name: str
    """The whole subject, as in RFC 4514."""
    common_name: str
    """The common name; empty if there is none or several."""


def subject_of(certificate: Any) -> Subject:
    """Return the subject of an `OpenSSL.crypto.X509`. Raises `LoginFailed` if it is malformed."""
    from cryptography.x509 import InvalidVersion  # only TLS needs this large module
    from cryptography.x509.oid import NameOID

    try:
        subject = certificate.to_cryptography().subject
        name = subject.rfc4514_string()
    except (ValueError, InvalidVersion) as error:
        raise LoginFailed(f"the subject of the certificate cannot be read: {error}") from error
    common_names = [str(part.value) for part in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return Subject(name, common_names[0] if len(common_names) == 1 else "")


def peer_subject(transport: Any) -> Subject | None:
    """Return the subject of the peer's certificate; None without TLS, before the handshake, or
    without one.

    :param transport: any; TLS transports have ``getPeerCertificate``.
    :raises LoginFailed: the certificate's subject is malformed.
    """
    get = getattr(transport, "getPeerCertificate", None)
    certificate = None if get is None else get()
    return None if certificate is None else subject_of(certificate)


def read_principals(lines: Iterable[str]) -> dict[str, str]:
    """Parse ``tls.principals`` into subject -> account.

    Subjects are normalised: white space and the spelling of types do not count.

    :raises ConfigError: for a line that is not ``SUBJECT => account``, or a repeated subject.
    """
    principals: dict[str, str] = {}
    for line in lines:
        subject, arrow, account = (part.strip() for part in line.rpartition(ARROW))
        if not arrow or not subject or not account:
            raise ConfigError(
                f"tls.principals: {line!r} is not SUBJECT => account, such as "
                "CN=orders,O=Acme => orders"
            )
        name = _normal(subject)
        if name in principals:
            raise ConfigError(f"tls.principals: the subject {subject!r} stands there twice")
        principals[name] = account
    return principals


def principal_of(principals: Mapping[str, str], subject: str, common_name: str) -> str:
    """Return the account of a certificate; "" for none.

    With ``tls.principals`` only its subjects have an account. Without it, the account is the common
    name.
    """
    return principals.get(subject, "") if principals else common_name


def mapping_problem(principals: Mapping[str, str], subject: str) -> str:
    """Return why `principal_of` found no account, for the operator."""
    if not principals:
        return "its subject has no common name, or several"
    parts = sorted(subject.split(","))
    for known in principals:
        if len(known) == len(subject) and sorted(known.split(",")) == parts:
            return f"tls.principals has its parts in another order: {known}"
    return "tls.principals does not name it"


def _normal(subject: str) -> str:
    """Normalise a subject to the form of `subject_of`."""
    from cryptography.x509 import Name
    from cryptography.x509.oid import NameOID

    types = {
        "E": NameOID.EMAIL_ADDRESS,
        "emailAddress": NameOID.EMAIL_ADDRESS,
        "serialNumber": NameOID.SERIAL_NUMBER,
        "SN": NameOID.SURNAME,
        "GN": NameOID.GIVEN_NAME,
        "title": NameOID.TITLE,
    }
    compact = re.sub(r"(?<!\\),\s+", ",", subject)
    try:
        return Name.from_rfc4514_string(compact, types).rfc4514_string()
    except ValueError as error:
        raise ConfigError(
            f"tls.principals: {subject!r} is not a subject such as CN=orders,O=Acme: "
            f"{str(error) or 'it cannot be read'}; `openssl x509 -noout -subject -nameopt RFC2253` "
            "shows that of a certificate"
        ) from error
