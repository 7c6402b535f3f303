"""``brokerctl`` itself: verbs, global options, and how it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from brokerd import __version__
from brokerd.cli.main import VERBS, cli


def brokerctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What a shell sees."""
    command = [sys.executable, "-c", "from brokerd.cli.main import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_every_verb_is_listed_and_can_be_imported() -> None:
    """--help names each verb with a line of its own."""
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    for verb in VERBS:
        assert f"\n  {verb} " in result.output


@pytest.mark.parametrize("arguments", [["nope"], ["--nope"], ["config", "nope"]])
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    """An unknown verb or option is answered with the usage."""
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert "nope" in result.output


def test_the_version_is_that_of_the_package() -> None:
    """--version tells what is installed."""
    assert __version__ in CliRunner().invoke(cli, ["--version"]).output


def test_a_refusal_is_one_line_and_1(tmp_path: Path) -> None:
    """No traceback: what, where, what to do."""
    result = brokerctl("config", "check", str(tmp_path / "gone"))
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == f"brokerctl: cannot read {tmp_path}/gone: No such file or directory\n"


def test_the_data_directory_may_come_from_the_environment(tmp_path: Path) -> None:
    """The tool looks where the broker with the same environment has its data; an option wins."""
    runner = CliRunner(env={"BROKERD_DATA_DIR": str(tmp_path / "named")})
    for arguments, place in ([[], "named"], [["--data-dir", str(tmp_path / "other")], "other"]):
        result = runner.invoke(cli, [*arguments, "wal", "verify"])
        assert str(tmp_path / place / "wal") in str(result.exception)


def test_the_server_may_come_from_the_environment() -> None:
    """An option takes precedence, and it takes precedence over the data directory."""
    runner = CliRunner(env={"BROKERCTL_SERVER": "http://127.0.0.1:1"})
    for arguments, place in ([[], "127.0.0.1:1"], [["--server", "127.0.0.1:2"], "127.0.0.1:2"]):
        result = runner.invoke(cli, ["--data-dir", "nowhere", *arguments, "whoami"])
        assert f"no broker answers at {place} (from --server" in str(result.exception)


def test_a_file_that_cannot_be_read_is_one_line_and_1(tmp_path: Path) -> None:
    """What the operating system refuses is said like any refusal, with the path."""
    wal = tmp_path / "wal"
    wal.mkdir()
    segment = wal / f"{0:020d}.wal"
    segment.symlink_to(segment)
    result = brokerctl("--data-dir", str(tmp_path), "wal", "verify")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"brokerctl: {segment}: ")
    assert len(result.stderr.splitlines()) == 1


def test_json_may_stand_behind_the_verb(tmp_path: Path) -> None:
    """Where most tools have it; what comes after -- is no option."""
    directory = ["--data-dir", str(tmp_path)]
    runner = CliRunner()
    before = runner.invoke(cli, ["--json", *directory, "config", "show"]).output
    assert before.startswith("{")
    assert runner.invoke(cli, [*directory, "config", "show", "--json"]).output == before
    result = runner.invoke(cli, ["--server", "nobody", "produce", "--", "orders", "--json", "x"])
    assert "unexpected extra argument (x)" in result.output


@pytest.mark.parametrize("option", ["--server", "--data-dir"])
def test_a_global_option_behind_the_verb_is_told_where_it_belongs(option: str) -> None:
    result = CliRunner().invoke(cli, ["topic", "list", option, "here"])
    assert result.exit_code == 2
    assert f"{option} stands before the verb: brokerctl {option} ... topic ..." in result.output
