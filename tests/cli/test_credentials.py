"""Who ``brokerctl`` says it is: from files and environment, never from the command line."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

from brokerd.cli import credentials as module
from brokerd.cli.credentials import Credentials, credentials, read_secret
from brokerd.errors import ConfigError


def basic(login: str) -> dict[str, str]:
    return {"Authorization": f"Basic {b64encode(login.encode()).decode()}"}


def test_nobody_sends_no_header() -> None:
    assert credentials("", "", "", {}).headers() == {}


def test_a_password_comes_from_a_file_before_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret \nsecond line\n")
    environment = {"BROKERCTL_PASSWORD": "other"}
    assert credentials("ann", str(file), "", environment).headers() == basic("ann:s3cret ")
    assert credentials("ann", "", "", environment).headers() == basic("ann:other")


def test_a_key_comes_from_a_file_before_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("k1\n")
    environment = {"BROKERCTL_KEY": "k2"}
    assert credentials("", "", str(file), environment).headers() == {"Authorization": "Bearer k1"}
    assert credentials("", "", "", environment).headers() == {"Authorization": "Bearer k2"}


def test_a_name_on_the_command_line_wins_over_a_key_in_the_environment() -> None:
    environment = {"BROKERCTL_KEY": "k", "BROKERCTL_PASSWORD": "p"}
    assert credentials("ann", "", "", environment).headers() == basic("ann:p")


def test_without_a_terminal_a_password_that_is_missing_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "on_terminal", lambda: False)
    with pytest.raises(ConfigError, match="BROKERCTL_PASSWORD"):
        credentials("ann", "", "", {})


@pytest.mark.parametrize(
    ("content", "word"), [(b"\n", "no secret"), (b"x" * 5000, "4096"), (b"\xff\n", "UTF-8")]
)
def test_a_file_without_a_secret_is_told_and_not_shown(
    tmp_path: Path, content: bytes, word: str
) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=word) as refusal:
        read_secret(str(file))
    assert "xxxx" not in str(refusal.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_secret(str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("user", "environment", "word"),
    [
        ("", {"BROKERCTL_KEY": "s3cret\nkey"}, "ASCII"),
        ("", {"BROKERCTL_KEY": "s3cret\u20ac"}, "ASCII"),
        ("ann", {"BROKERCTL_PASSWORD": "s3cret\udcff"}, "UTF-8"),
        ("ann\udcff", {"BROKERCTL_PASSWORD": "s3cret"}, "UTF-8"),
    ],
)
def test_what_no_header_can_hold_is_told_and_not_shown(
    user: str, environment: dict[str, str], word: str
) -> None:
    """The environment may hold any bytes; those that are not UTF-8 come as surrogates."""
    with pytest.raises(ConfigError, match=word) as refusal:
        credentials(user, "", "", environment)
    assert "s3cret" not in str(refusal.value)


def test_a_name_with_a_colon_needs_a_key() -> None:
    """HTTP Basic would end it there, and be somebody else."""
    with pytest.raises(ConfigError, match="--key-file"):
        Credentials("a:b", "s3cret").headers()
    assert Credentials("a:b", "", "k").headers() == {"Authorization": "Bearer k"}


def test_files_that_tls_cannot_use_are_told(tmp_path: Path) -> None:
    bad = tmp_path / "ca.pem"
    bad.write_text("no certificate")
    for one in (Credentials(ca_file=str(bad)), Credentials(certificate_file=str(bad))):
        with pytest.raises(ConfigError, match=r"ca\.pem"):
            one.context()


def test_no_secret_shows_in_a_repr() -> None:
    assert "s3cret" not in repr(Credentials("ann", "s3cret", "s3cret"))
