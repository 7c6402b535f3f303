"""A Debian without anything of brokerd, booted in a container (systemd-nspawn), for rehearsals.

It has no network. BROKERD_REHEARSAL_ROOT names the directory of a Debian that debootstrap has made
before, with PACKAGES; each machine is a copy of it.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import termios
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("debootstrap", "systemd-nspawn", "nsenter")
PACKAGES = "systemd,systemd-sysv,dbus,python3,python3-venv,logrotate,curl,cron,openssl"
SUITE = "bookworm"
SECONDS = 1800
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
needs_machine = pytest.mark.skipif(
    os.geteuid() != 0 or any(shutil.which(tool) is None for tool in TOOLS),
    reason="needs root and Debian's debootstrap, systemd-container, util-linux",
)


def section(page: str, after: str) -> str:
    """Return the text of a page after a text that it has."""
    text = (ROOT / "docs" / page).read_text().partition(after)[2]
    assert text, f"{page} has no {after!r}"
    return text


def blocks(text: str) -> list[str]:
    """Return the literal blocks of a text."""
    return [
        textwrap.dedent(block).strip() for block in re.findall(r"::\n\n((?:    .*\n|\n)+)", text)
    ]


def recipe(page: str, after: str) -> list[str]:
    """Return the commands of the first literal block after a text of a page."""
    return blocks(section(page, after))[0].replace("\\\n", " ").splitlines()


def run(*command: object, cwd: Path = ROOT) -> None:
    """Run a command of this machine that must succeed."""
    result = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=SECONDS
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]


def debian(root: Path) -> None:
    """Make the directory of a Debian."""
    if "BROKERD_REHEARSAL_ROOT" in os.environ:
        run("cp", "-a", os.environ["BROKERD_REHEARSAL_ROOT"], root)
    else:
        run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, root)


class Machine:
    """A container with an init system of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._log = (root.parent / "console").open("wb")
        self._container = subprocess.Popen(
            ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network"]
            + ["--machine=rehearsal", "--console=pipe", "--boot", f"--directory={root}"],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        self.leader = ""
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            children = Path(f"/proc/{self._container.pid}/task/{self._container.pid}/children")
            self.leader = children.read_text().strip() if children.exists() else ""
            if self.leader and "running" in self._inside("systemctl is-system-running").stdout:
                return
            time.sleep(0.5)
        self.stop()
        raise AssertionError((root.parent / "console").read_text())

    @property
    def enter(self) -> list[str]:
        """Return the command that runs another one in the container."""
        namespaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--root"]
        return ["nsenter", "--target", self.leader, *namespaces]

    def _inside(self, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.enter, "--wdns=/source", "sh", "-ec", script],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env={
                "PATH": PATH,
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": "/source/wheels",
            },
        )

    def run(self, script: str) -> str:
        """Run a shell script as the container's root, which must succeed; return its output."""
        result = self._inside(script)
        journal = "" if result.returncode == 0 else self._inside("journalctl -n 40").stdout
        assert result.returncode == 0, f"{script}\n{result.stdout}{result.stderr}\n{journal}"
        return result.stdout

    def property(self, name: str, unit: str = "brokerd") -> str:
        """Return a property of a unit."""
        return self.run(f"systemctl show --property={name} --value {unit}").strip()

    def until(self, script: str, seconds: float) -> None:
        """Repeat a condition of the shell until it holds."""
        self.run(f"""
            n=0
            until {script}; do
                n=$((n + 1)); test $n -lt {int(seconds * 2)}; sleep 0.5
            done""")

    def stop(self) -> None:
        """End the container."""
        if self.leader:
            subprocess.run(
                ["nsenter", "--target", self.leader, "--all", "--root", "systemctl", "poweroff"],
                capture_output=True,
            )
        try:
            self._container.wait(timeout=150)
        except subprocess.TimeoutExpired:
            self._container.kill()
            self._container.wait()
        self._log.close()


class Terminal:
    """A shell of the container's root on a terminal. It keeps its variables and its directory."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.terminal, inside = pty.openpty()
        attributes = termios.tcgetattr(inside)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(inside, termios.TCSANOW, attributes)
        self._shell = subprocess.Popen(
            ["setsid", "--ctty", *machine.enter, "--wdns=/root", "bash", "--noediting", "--norc"],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env={"PATH": PATH, "HOME": "/root", "TERM": "dumb", "PS1": ""},
        )
        os.close(inside)
        self._type("set -eo pipefail")

    def _type(self, line: str) -> None:
        os.write(self.terminal, line.encode() + b"\n")

    def run(self, script: str, *answers: str) -> str:
        """Run commands that must succeed, and answer their prompts; return their output."""
        (self.machine.root / "root" / "commands").write_text(script + "\n")
        self._type(". /root/commands; echo commands are done")
        output, waiting = "", list(answers)
        deadline = time.monotonic() + 300
        while not output.rstrip().endswith("commands are done"):
            readable, _, _ = select.select(
                [self.terminal], [], [], max(0, deadline - time.monotonic())
            )
            assert readable, f"{script}\nwaits after\n{output}"
            try:
                output += os.read(self.terminal, 65536).decode()
            except OSError:  # the shell has ended: a command failed
                raise AssertionError(f"{script}\nfailed after\n{output}") from None
            if waiting and re.search(r"(?i)(password|confirmation)[^\n]*: ?$", output):
                self._type(waiting.pop(0))
                output += "\n"
        assert not waiting, output
        return output.replace("\r\n", "\n").removesuffix("commands are done\n")

    def close(self) -> None:
        """End the shell."""
        os.close(self.terminal)
        self._shell.wait(timeout=60)
