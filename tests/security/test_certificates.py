"""Whom a certificate names, and which account that is."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from OpenSSL import crypto

from brokerd.errors import ConfigError
from brokerd.security.certificates import (
    Subject,
    peer_subject,
    principal_of,
    read_principals,
    subject_of,
)
from tests.certificates import Authority, Issued


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def read(issued: Issued) -> Subject:
    pem = issued.certificate.read_bytes()
    return subject_of(crypto.load_certificate(crypto.FILETYPE_PEM, pem))


def test_a_subject_reads_as_openssl_shows_it(authority: Authority) -> None:
    """What an operator copies from ``openssl x509`` is what the broker compares."""
    issued = authority.issue("orders", "Acme, Inc")
    shown = subprocess.run(
        ["openssl", "x509", "-noout", "-subject", "-nameopt", "RFC2253", "-in", issued.certificate],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert read(issued) == Subject(shown.removeprefix("subject=").strip(), "orders")
    assert read(issued).name == r"CN=orders,O=Acme\, Inc"


def test_a_name_in_another_part_is_no_common_name(authority: Authority) -> None:
    """Who may choose the organization cannot become another by it."""
    assert read(authority.issue("orders", "x,CN=admin")) == (r"CN=orders,O=x\,CN=admin", "orders")


def test_of_two_common_names_none_counts(authority: Authority) -> None:
    assert read(authority.issue(["orders", "admin"])).common_name == ""


@pytest.mark.parametrize("transport", [object(), None])
def test_a_transport_without_tls_names_nobody(transport: object) -> None:
    assert peer_subject(transport) is None


@pytest.mark.parametrize(
    "line",
    [
        "CN=orders,O=Acme => orders",
        "CN=orders, O=Acme=>orders",
        "  2.5.4.3=orders,O=Acme   =>   orders  ",
    ],
)
def test_the_spelling_of_a_subject_does_not_count(line: str) -> None:
    principals = read_principals([line])
    assert principal_of(principals, "CN=orders,O=Acme", "orders") == "orders"


def test_types_are_read_as_openssl_writes_them() -> None:
    principals = read_principals(["emailAddress=a@b,serialNumber=7,CN=x => mail"])
    assert principals == {"1.2.840.113549.1.9.1=a@b,2.5.4.5=7,CN=x": "mail"}


def test_without_a_list_the_common_name_is_the_account() -> None:
    assert principal_of({}, "CN=orders,O=Acme", "orders") == "orders"


def test_with_a_list_who_is_not_on_it_is_nobody() -> None:
    """Not even with a common name that is an account, or an account that is on the list."""
    principals = read_principals(["CN=orders,O=Acme => admin"])
    assert principal_of(principals, "CN=admin,O=Acme", "admin") == ""


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["CN=orders"], "'CN=orders' is not SUBJECT => account"),
        (["=> orders"], "'=> orders' is not SUBJECT => account"),
        (["CN=orders =>"], "'CN=orders =>' is not SUBJECT => account"),
        (["orders => orders"], "'orders' is not a subject such as CN=orders,O=Acme: it cannot be"),
        (["C=Germany => orders"], "'C=Germany' is not a subject such as CN=orders,O=Acme: Attrib"),
        (["CN=a => b", "2.5.4.3=a => c"], "the subject '2.5.4.3=a' stands there twice"),
    ],
)
def test_a_wrong_list_says_what_is_wrong(lines: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match="^tls.principals: " + re.escape(said)):
        read_principals(lines)
