"""Certificates for tests of TLS."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)


class Issued(NamedTuple):
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


def subject(*common_names: str, organization: str = "") -> x509.Name:
    """Return a name as certificates have it, with the most specific part last."""
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, name) for name in common_names]
    if organization:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


class Authority:
    """A certificate authority with a directory of its own.

    It signs its own certificate, or the authority ``above`` does. ``may_sign`` is the CA flag of
    its certificate.
    """

    def __init__(
        self,
        directory: Path,
        name: str = "authority",
        above: Authority | None = None,
        may_sign: bool = True,
    ) -> None:
        self.directory = directory / name
        self.directory.mkdir(parents=True)
        self._name = subject(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        signer = above or self
        built = (
            _builder(self._name, signer._name, self._key, (-DAY, 400 * DAY))
            .add_extension(x509.BasicConstraints(ca=may_sign, path_length=None), critical=True)
            .add_extension(_signs_certificates(), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .add_extension(signer._identifier(), critical=False)
            .sign(signer._key, hashes.SHA256())
        )
        self.certificate = self.directory / "ca.pem"
        """The certificate that clients and brokers trust."""
        self.certificate.write_bytes(built.public_bytes(Encoding.PEM))

    def _identifier(self) -> x509.AuthorityKeyIdentifier:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())

    def issue(
        self,
        common_name: str | Sequence[str],
        organization: str = "",
        *,
        file: str = "",
        valid: tuple[datetime.timedelta, datetime.timedelta] = (-DAY, 90 * DAY),
        usage: x509.ObjectIdentifier | None = None,
        hosts: Sequence[str] = (),
    ) -> Issued:
        """Sign a certificate and return its files; ``valid`` is (begin, end), relative to now.

        It is for ``localhost`` and ``127.0.0.1`` unless ``hosts`` is given.
        """
        names = [common_name] if isinstance(common_name, str) else common_name
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(subject(*names, organization=organization), self._name, key, valid)
        here = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts] or here),
            critical=False,
        ).add_extension(self._identifier(), critical=False)
        if usage is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        built = builder.sign(self._key, hashes.SHA256())
        file = file or names[0]
        return _written(self.directory / f"{file}.pem", self.directory / f"{file}.key", built, key)

    def issue_for_servers_only(self, common_name: str) -> Issued:
        """Return a certificate that is not valid for clients."""
        return self.issue(common_name, usage=ExtendedKeyUsageOID.SERVER_AUTH)

    def client_context(self, issued: Issued | None = None) -> ssl.SSLContext:
        """Return a client's context that trusts this authority and presents ``issued``, if any."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        if issued is not None:
            context.load_cert_chain(issued.certificate, issued.key)
        return context

    def tls(self, server: Issued, **more: object) -> Mapping[str, object]:
        """Return options of ``[tls]`` for a broker with this certificate, with ``more`` options."""
        return {
            "certificate_file": str(server.certificate),
            "key_file": str(server.key),
            **more,
        }


def _signs_certificates() -> x509.KeyUsage:
    others = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(key_cert_sign=True, **dict.fromkeys(others, False))


def _builder(
    name: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    valid: tuple[datetime.timedelta, datetime.timedelta],
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder(issuer, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now + valid[0])
        .not_valid_after(now + valid[1])
    )


def _written(
    certificate_file: Path,
    key_file: Path,
    built: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
) -> Issued:
    certificate_file.write_bytes(built.public_bytes(Encoding.PEM))
    key_file.touch(mode=0o600)
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return Issued(certificate_file, key_file)


def set_version(path: Path, number: int) -> None:
    """Change the version of the certificate in a PEM file; its signature is wrong then."""
    sound = x509.load_pem_x509_certificate(path.read_bytes()).public_bytes(Encoding.DER)
    version = b"\xa0\x03\x02\x01"
    at = sound.index(version) + len(version)
    changed = sound[:at] + bytes([number]) + sound[at + 1 :]
    path.write_text(ssl.DER_cert_to_PEM_cert(changed))


def certificate(directory: Path) -> tuple[Path, Path]:
    """Return a self-signed certificate for "broker" and its key, as PEM files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = subject("broker")
    built = (
        _builder(name, name, key, (-DAY, DAY))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("broker")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _written(directory / "cert.pem", directory / "key.pem", built, key)


def tls(directory: Path) -> tuple[str, ssl.SSLContext]:
    """Return an endpoint with a new certificate on a free port, and a context that trusts it."""
    cert, key = certificate(directory)
    context = ssl.create_default_context(cafile=str(cert))
    return f"ssl:0:privateKey={key}:certKey={cert}", context
