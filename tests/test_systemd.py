"""The unit and the user that etc/systemd ships, as far as they can be read without systemd."""

from __future__ import annotations

import shlex
from configparser import ConfigParser
from pathlib import Path

import pytest

from brokerd.outcome import IN_USE, STORAGE_FAILED, USAGE
from brokerd.tap import Options

DIRECTORY = Path(__file__).resolve().parent.parent / "etc" / "systemd"


@pytest.fixture
def service() -> dict[str, str]:
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DIRECTORY / "brokerd.service")
    return dict(unit["Service"])


def test_the_command_is_one_that_brokerd_takes(service: dict[str, str]) -> None:
    """In the foreground, without a pid file, with options that exist."""
    program, *arguments = shlex.split(service["ExecStart"])
    assert Path(program).name == "twistd"
    assert arguments[:3] == ["-n", "--pidfile=", "brokerd"]
    options = Options()
    options.parseOptions(arguments[3:])
    assert options["config"] == "/etc/brokerd/brokerd.toml"


def test_systemd_waits_for_the_replay(service: dict[str, str]) -> None:
    """The unit is told when the broker is ready, and does not kill a long replay."""
    assert service["Type"] == "notify"
    assert service["TimeoutStartSec"] == "infinity"


def test_only_a_mistake_of_the_configuration_is_final(service: dict[str, str]) -> None:
    """A failed disk or a taken lock is tried again; a wrong configuration is not."""
    assert service["Restart"] == "on-failure"
    final = {int(code) for code in service["RestartPreventExitStatus"].split()}
    assert final == {USAGE}
    assert not final & {STORAGE_FAILED, IN_USE}


def test_the_user_of_the_unit_is_made_by_sysusers(service: dict[str, str]) -> None:
    """A static user, so that the data directory keeps its owner."""
    lines = (DIRECTORY / "brokerd.sysusers.conf").read_text().splitlines()
    (line,) = [line for line in lines if not line.startswith("#")]
    kind, name, number, *_ = shlex.split(line)
    assert (kind, name, number) == ("u", service["User"], "-")
    assert service["StateDirectory"] == "brokerd"
