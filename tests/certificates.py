"""Certificates for tests of TLS."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


def certificate(directory: Path) -> tuple[Path, Path]:
    """A self-signed certificate for "broker" and its key, as PEM files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    day = datetime.timedelta(days=1)
    today = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(today - day)
        .not_valid_after(today + day)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("broker")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = directory / "cert.pem", directory / "key.pem"
    paths[0].write_bytes(built.public_bytes(Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return paths


def tls(directory: Path) -> tuple[str, ssl.SSLContext]:
    """An endpoint with a certificate of its own, on a free port, and what a client trusts it by."""
    cert, key = certificate(directory)
    context = ssl.create_default_context(cafile=str(cert))
    return f"ssl:0:privateKey={key}:certKey={cert}", context
