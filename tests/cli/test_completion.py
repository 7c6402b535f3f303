"""``brokerctl completion``: scripts of shells, and the words that they ask for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from brokerd.cli.main import cli

ROOT = Path(__file__).resolve().parent.parent.parent
ASK = "_BROKERCTL_COMPLETE"


def words(line: str) -> list[str]:
    """Return the words that bash shows for the last word of a line."""
    environment = {ASK: "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    result = CliRunner().invoke(cli, [], prog_name="brokerctl", env=environment)
    assert result.exit_code == 0, result.output
    return [one.partition(",")[2] for one in result.stdout.split()]


def test_verbs_and_options_are_completed() -> None:
    assert words("brokerctl gro") == ["group"]
    assert words("brokerctl group re") == ["resume"]
    assert words("brokerctl dlq replay --dr") == ["--dry-run"]
    assert words("brokerctl completion ") == ["bash", "zsh", "fish"]


@pytest.mark.parametrize(
    ("shell", "command"), [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "complete ")]
)
def test_the_script_of_a_shell_asks_brokerctl(shell: str, command: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0
    assert f"{ASK}={shell}_complete" in result.stdout
    assert command in result.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    """The function of the script asks the program that the line names."""
    program = tmp_path / "brokerctl"
    program.write_text(
        f"#!{sys.executable}\nfrom brokerd.cli.main import cli\ncli(prog_name='brokerctl')\n"
    )
    program.chmod(0o755)
    script = f"""
        export PATH={tmp_path}:$PATH PYTHONPATH={ROOT}
        eval "$(brokerctl completion bash)"
        COMP_WORDS=(brokerctl lea) COMP_CWORD=1
        _brokerctl_completion brokerctl
        echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "lease\n"), done.stderr


def test_another_shell_is_refused() -> None:
    result = CliRunner().invoke(cli, ["completion", "tcsh"])
    assert result.exit_code == 2
    assert "'tcsh' is not one of" in result.output
