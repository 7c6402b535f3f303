"""The files of TLS: what is wrong with them is said at the start, and later they may change."""

from __future__ import annotations

import datetime
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from OpenSSL import SSL
from twisted.logger import capturedLogs

from brokerd.errors import ConfigError
from brokerd.security.certificates import subject_of
from brokerd.server.tls import FILE_BYTES_MAX, Credentials, TlsFiles
from tests.certificates import DAY, Authority, Issued, set_version

NOW = time.time()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def files(authority: Authority) -> TlsFiles:
    issued = authority.issue("broker")
    return TlsFiles(str(issued.certificate), str(issued.key))


@pytest.fixture
def log() -> Iterator[Any]:
    with capturedLogs() as captured:
        yield captured


def credentials(files: TlsFiles, now: float = NOW) -> Credentials:
    return Credentials(files, lambda: now)


def connected(context: SSL.Context) -> SSL.Connection:
    """A client that connects now and agrees on TLS."""
    client = SSL.Connection(SSL.Context(SSL.TLS_CLIENT_METHOD), None)
    server = SSL.Connection(context, None)
    client.set_connect_state()
    server.set_accept_state()
    for _ in range(4):
        for one, other in ((client, server), (server, client)):
            with suppress(SSL.WantReadError):
                one.do_handshake()
            with suppress(SSL.WantReadError):
                other.bio_write(one.bio_read(1 << 16))
    return client


def common_name(context: SSL.Context) -> str:
    """Whose certificate a client is shown that connects now."""
    certificate = connected(context).get_peer_certificate()
    assert certificate is not None
    return subject_of(certificate).common_name


def put(issued: Issued, files: TlsFiles) -> None:
    """Put other files in the place of those in use, at another time than before."""
    for new, old in ((issued.certificate, files.certificate), (issued.key, files.key)):
        shutil.copy(new, old)
        stat = os.stat(old)
        os.utime(old, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000))


# At the start.


def no_file(files: TlsFiles, directory: Path) -> str:
    os.unlink(files.key)
    return f"cannot read {files.key}: No such file or directory"


def a_directory(files: TlsFiles, directory: Path) -> str:
    os.unlink(files.certificate)
    os.mkdir(files.certificate)
    return f"cannot read {files.certificate}: Is a directory"


def a_pipe(files: TlsFiles, directory: Path) -> str:
    os.unlink(files.key)
    os.mkfifo(files.key)
    return f"cannot read {files.key}: it is not a regular file"


def not_pem(files: TlsFiles, directory: Path) -> str:
    Path(files.certificate).write_text("-----BEGIN CERTIFICATE-----\nAAAA\n")
    return f"{files.certificate} must be a PEM file with a certificate"


def unknown_version(files: TlsFiles, directory: Path) -> str:
    set_version(Path(files.certificate), 9)
    return f"{files.certificate} must be a PEM file with a certificate"


def no_key(files: TlsFiles, directory: Path) -> str:
    shutil.copy(files.certificate, files.key)
    return f"{files.key} must be a PEM file with a private key"


def huge(files: TlsFiles, directory: Path) -> str:
    Path(files.key).write_bytes(b"-" * (FILE_BYTES_MAX + 1))
    return f"{files.key} is too large for a PEM file: over {FILE_BYTES_MAX} bytes"


def key(files: TlsFiles, made: Any, password: bytes = b"") -> None:
    sealed = BestAvailableEncryption(password) if password else NoEncryption()
    Path(files.key).write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, sealed))


def another_key(files: TlsFiles, directory: Path) -> str:
    key(files, ec.generate_private_key(ec.SECP256R1()))
    return f"the key in {files.key} does not belong to the certificate in {files.certificate}"


def another_kind_of_key(files: TlsFiles, directory: Path) -> str:
    key(files, rsa.generate_private_key(65537, 2048))
    return f"the key in {files.key} does not belong to the certificate in {files.certificate}"


def a_key_with_a_password(files: TlsFiles, directory: Path) -> str:
    key(files, ec.generate_private_key(ec.SECP256R1()), b"secret")
    return f"the key in {files.key} has a password: remove it"


WRONG = [
    *(no_file, a_directory, a_pipe, not_pem, no_key, huge, another_key, another_kind_of_key),
    a_key_with_a_password,
    unknown_version,
]


@pytest.mark.parametrize("spoil", WRONG)
def test_files_that_cannot_be_used_are_one_clear_line(
    files: TlsFiles, tmp_path: Path, spoil: Callable[[TlsFiles, Path], str]
) -> None:
    said = spoil(files, tmp_path)
    with pytest.raises(ConfigError) as caught:
        credentials(files)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_who_signs_certificates_of_clients_must_be_in_the_file(files: TlsFiles) -> None:
    empty = Path(files.key).with_name("empty.pem")
    empty.touch()
    with pytest.raises(ConfigError, match=r"empty.pem must be a PEM file with a certificate$"):
        credentials(replace(files, client_ca=str(empty), client_auth="required"))


def test_a_name_that_no_file_can_have_is_one_clear_line(files: TlsFiles) -> None:
    with pytest.raises(ConfigError, match=r"cannot read '/a\\x00b': embedded null byte"):
        credentials(replace(files, certificate="/a\0b"))


def test_one_file_may_hold_all(files: TlsFiles, tmp_path: Path) -> None:
    """Key, certificate and those that signed it."""
    one = tmp_path / "one.pem"
    one.write_bytes(Path(files.key).read_bytes() + Path(files.certificate).read_bytes())
    assert common_name(credentials(TlsFiles(str(one), str(one))).context) == "broker"


@pytest.mark.parametrize("behind", [True, False])
def test_those_who_signed_the_certificate_are_shown_with_it(tmp_path: Path, behind: bool) -> None:
    """From its own file or from another; clients know the last of them alone."""
    root = Authority(tmp_path, "root")
    between = Authority(tmp_path, "between", above=root)
    issued = between.issue("broker")
    files = TlsFiles(str(issued.certificate), str(issued.key))
    if behind:
        with issued.certificate.open("ab") as file:
            file.write(between.certificate.read_bytes())
    else:
        files = replace(files, chain=str(between.certificate))
    shown = connected(credentials(files).context).get_peer_cert_chain() or []
    assert [subject_of(one).common_name for one in shown] == ["broker", "between"]


# Later.


def test_files_that_change_are_used_for_new_connections(
    authority: Authority, files: TlsFiles, log: Any
) -> None:
    """Connections that are open have their own context, and keep it."""
    used = credentials(files)
    before = used.context
    put(authority.issue("other"), files)
    used.refresh()
    assert (common_name(used.context), common_name(before)) == ("other", "broker")
    (event,) = log
    assert (event["event_id"], event["file"]) == ("tls-files-read", files.certificate)


def test_files_that_do_not_change_are_left_alone(files: TlsFiles, log: Any) -> None:
    used = credentials(files)
    before = used.context
    used.refresh()
    assert used.context is before
    assert log == []


@pytest.mark.parametrize("spoil", WRONG)
def test_bad_files_change_nothing_and_are_told_of_once(
    files: TlsFiles, tmp_path: Path, spoil: Callable[[TlsFiles, Path], str], log: Any
) -> None:
    used = credentials(files)
    said = spoil(files, tmp_path)
    used.refresh()
    used.refresh()
    assert common_name(used.context) == "broker"
    (event,) = log
    assert (event["event_id"], event["log_level"].name) == ("tls-files-unusable", "warn")
    assert event["reason"].startswith(said)


def test_a_certificate_that_comes_before_its_key_is_used_when_both_are_there(
    authority: Authority, files: TlsFiles, log: Any
) -> None:
    used = credentials(files)
    other = authority.issue("other")
    shutil.copy(other.certificate, files.certificate)
    used.refresh()
    assert common_name(used.context) == "broker"
    put(other, files)
    used.refresh()
    assert common_name(used.context) == "other"
    assert [event["event_id"] for event in log] == ["tls-files-unusable", "tls-files-read"]


def test_a_link_that_leads_elsewhere_is_a_change(authority: Authority, tmp_path: Path) -> None:
    """As certificates are renewed by those who keep every one."""
    issued, other = authority.issue("broker"), authority.issue("other")
    links = Issued(tmp_path / "cert.pem", tmp_path / "key.pem")
    for link, file in zip(links, issued, strict=True):
        link.symlink_to(file)
    used = credentials(TlsFiles(str(links.certificate), str(links.key)))
    for link, file in zip(links, other, strict=True):
        link.unlink()
        link.symlink_to(file)
    used.refresh()
    assert common_name(used.context) == "other"


# When the certificate expires.


@pytest.mark.parametrize(
    ("days", "level"), [(15, None), (13.5, "it expires in 13 days"), (-1, "it has expired")]
)
def test_a_certificate_that_expires_soon_is_told_of(
    authority: Authority, log: Any, days: float, level: str | None
) -> None:
    """Once for each that is read."""
    valid = (-2 * DAY, datetime.timedelta(days=days, seconds=60))
    issued = authority.issue("broker", valid=valid)
    used = credentials(TlsFiles(str(issued.certificate), str(issued.key)))
    used.refresh()
    used.refresh()
    told = [event for event in log if event["event_id"] == "certificate-expires"]
    assert [event["when"] for event in told] == ([level] if level else [])


def test_that_is_told_anew_of_the_next(authority: Authority, files: TlsFiles, log: Any) -> None:
    for name in ("one", "two"):
        put(authority.issue(name, valid=(-DAY, DAY)), files)
        if name == "one":
            used = credentials(files)
        used.refresh()
    assert [event["event_id"] for event in log] == [
        *("certificate-expires", "tls-files-read", "certificate-expires"),
    ]
