"""``brokerctl`` against a broker in the same process: real HTTP bytes, no network, no waiting."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from brokerd.cli.main import cli
from tests.admin.caller import Caller


class Wired:
    """A socket whose other end is the admin site."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._channel, self._wire = caller.connect()

    def sendall(self, data: bytes) -> None:
        self._channel.dataReceived(bytes(data))

    def makefile(self, mode: str) -> io.BytesIO:
        self._caller.house.run()
        return io.BytesIO(self._wire.value())

    def close(self) -> None:
        """Do nothing."""


class Shell:
    """Runs ``brokerctl``; its broker is `caller`'s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.caller = Caller()
        monkeypatch.setattr("brokerd.cli.server.open_socket", lambda *_: Wired(self.caller))

    def run(self, *arguments: str, input: str | bytes | None = None) -> Result:
        """Run a command and return its result."""
        given = ["--server", "127.0.0.1:1", *arguments]
        return CliRunner().invoke(cli, given, input=input)

    def lines(self, *arguments: str, input: str | bytes | None = None) -> list[str]:
        """Return the lines of a command that succeeds."""
        result = self.run(*arguments, input=input)
        assert (result.exit_code, result.exception) == (0, None), result.output
        return result.stdout.splitlines()

    def json(self, *arguments: str, input: str | bytes | None = None) -> Any:
        """Return the JSON object of a command that succeeds."""
        (line,) = self.lines("--json", *arguments, input=input)
        return json.loads(line)

    def refused(self, *arguments: str, input: str | bytes | None = None) -> str:
        """Return the error line of a command that is refused."""
        result = self.run(*arguments, input=input)
        assert result.exit_code == 1, result.output
        assert result.exception is not None
        text = str(result.exception)
        assert text and "\n" not in text
        return text

    def misused(self, *arguments: str) -> str:
        """Return the output of a command with wrong usage."""
        result = self.run(*arguments)
        assert result.exit_code == 2, result.output
        return result.output
