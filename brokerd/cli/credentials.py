# Tests: tests/cli/test_credentials.py
"""Credentials of ``brokerctl`` and its trust in the broker: options, files and environment.

Secrets come from a file, the environment or a prompt. The command line is visible to every user of
the machine, so it never carries one. No `repr` here shows a secret.
"""

from __future__ import annotations

import os
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field

import click

from brokerd.cli.options import on_terminal
from brokerd.errors import ConfigError

PASSWORD, KEY = "BROKERCTL_PASSWORD", "BROKERCTL_KEY"
"""Environment variables with secrets."""

SECRET_BYTES_MAX = 4_096


@dataclass(frozen=True)
class Credentials:
    """A login and TLS files; empty strings where there is none."""

    user: str = ""
    password: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    ca_file: str = ""
    certificate_file: str = ""
    certificate_key_file: str = ""

    def headers(self) -> dict[str, str]:
        """Return the Authorization header, or no header without a login."""
        if self.key:
            return {"Authorization": f"Bearer {self.key}"}
        if self.user:
            if ":" in self.user:
                raise ConfigError(
                    f"{self.user!r} cannot log in by name and password here: HTTP Basic ends the "
                    "name at the first colon (RFC 7617); use an API key: --key-file FILE"
                )
            login = f"{self.user}:{self.password}".encode()
            return {"Authorization": f"Basic {b64encode(login).decode()}"}
        return {}

    def context(self) -> ssl.SSLContext:
        """Return the TLS context. Raises `ConfigError` for unusable files."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
            if self.certificate_file:
                context.load_cert_chain(
                    self.certificate_file, self.certificate_key_file or None, password=_no_password
                )
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(filter(None, (self.ca_file, self.certificate_file)))
            raise ConfigError(
                f"TLS cannot use {files}: {error.strerror or error}; they must be PEM files that "
                "you may read"
            ) from error
        return context


def _no_password() -> str:
    raise ConfigError("the key of the certificate must not be encrypted")


def credentials(
    user: str,
    password_file: str,
    key_file: str,
    environment: Mapping[str, str],
    ca_file: str = "",
    certificate_file: str = "",
    certificate_key_file: str = "",
) -> Credentials:
    """Combine options and environment; prompt for a missing password.

    :raises ConfigError: if a file is unreadable, a prompt needs a terminal, or a value cannot be
        sent. The message never contains the secret.
    """
    key = read_secret(key_file) if key_file else "" if user else environment.get(KEY, "")
    password = ""
    if user and not key:
        password = (
            read_secret(password_file) if password_file else environment.get(PASSWORD, "")
        ) or prompt(
            f"Password of {user}",
            f"--password-file FILE or {PASSWORD}, or a key by --key-file FILE or {KEY}",
        )
    if not (key.isascii() and key.isprintable()):
        raise ConfigError("the API key must be one line of ASCII without spaces")
    try:
        f"{user}{password}".encode()
    except UnicodeEncodeError:
        raise ConfigError("the name or the password of the account is not UTF-8") from None
    return Credentials(user, password, key, ca_file, certificate_file, certificate_key_file)


def read_secret(path: str) -> str:
    """Return the first line of a file, or of standard input for ``-``. Raises `ConfigError`."""
    try:
        with click.open_file(path, encoding="utf-8") as file:
            line: str = file.readline(SECRET_BYTES_MAX + 2).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"cannot read a secret from {path}: {reason}") from error
    if not line or len(line) > SECRET_BYTES_MAX:
        raise ConfigError(
            f"{path} has no secret in its first line, or one of more than {SECRET_BYTES_MAX} bytes"
        )
    return line


def prompt(question: str, otherwise: str, twice: bool = False) -> str:
    """Prompt on the terminal, without an echo. Raises `ConfigError` if there is none.

    ``otherwise`` names the alternatives.
    """
    if not on_terminal():
        raise ConfigError(f"{question}: there is no terminal to ask on; give {otherwise}")
    answer: str = click.prompt(question, hide_input=True, confirmation_prompt=twice, err=True)
    return answer


def from_environment(name: str) -> str:
    """Return a secret from the environment, or ""."""
    return os.environ.get(name, "")
