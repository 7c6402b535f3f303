"""The documented installation in a real systemd: kill -9, watchdog, reload, mistakes, timers, cron.

A Debian without anything of brokerd boots in a container (systemd-nspawn), without a network. The
commands are those of the pages, as they stand there. BROKERD_REHEARSAL_ROOT names the directory of
a Debian that debootstrap has made before, with PACKAGES; the test copies it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("debootstrap", "systemd-nspawn", "nsenter")
PACKAGES = "systemd,systemd-sysv,dbus,python3,python3-venv,logrotate,curl,cron"
SUITE = "bookworm"
SECONDS = 1800
SERVER = "--server http://127.0.0.1:9644"
WAIT = f"""
until /opt/brokerd/bin/brokerctl {SERVER} topic list >/dev/null 2>&1; do sleep 0.2; done
"""


def recipe(page: str, after: str) -> list[str]:
    """Return the commands of the first literal block after a text of a page."""
    text = (ROOT / "docs" / page).read_text().partition(after)[2]
    assert text, f"{page} has no {after!r}"
    block = re.search(r"::\n\n((?:    .*\n|\n)+)", text)
    assert block is not None
    return textwrap.dedent(block[1]).replace("\\\n", " ").strip().splitlines()


def run(*command: object, cwd: Path = ROOT) -> None:
    """Run a command of this machine that must succeed."""
    result = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=SECONDS
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]


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
        self._leader = ""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            children = Path(f"/proc/{self._container.pid}/task/{self._container.pid}/children")
            self._leader = children.read_text().strip() if children.exists() else ""
            if self._leader and "running" in self._inside("systemctl is-system-running").stdout:
                return
            time.sleep(0.5)
        self.stop()
        raise AssertionError((root.parent / "console").read_text())

    def _inside(self, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["nsenter", "--target", self._leader, "--mount", "--uts", "--ipc", "--net", "--pid"]
            + ["--root", "--wd=/", "sh", "-ec", f"cd /source\n{script}"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
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
        if self._leader:
            subprocess.run(
                ["nsenter", "--target", self._leader, "--all", "--root", "systemctl", "poweroff"],
                capture_output=True,
            )
        try:
            self._container.wait(timeout=150)
        except subprocess.TimeoutExpired:
            self._container.kill()
            self._container.wait()
        self._log.close()


def wheels(directory: Path, extras: str) -> None:
    """Collect brokerd's wheel and those that it needs, for Debian's Python."""
    python = Path("/usr/bin/python3")
    environment = directory.parent / f"env{extras}"
    run(python, "-m", "venv", environment)
    pip = [environment / "bin" / "python", "-m", "pip", "--quiet"]
    run(*pip, "wheel", "-c", "constraints.txt", "-w", directory, f".{extras}")
    shutil.rmtree(environment)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A booted Debian. /source has what a clone and `make wheel` have."""
    directory = tmp_path_factory.mktemp("rehearsal")
    root = directory / "root"
    if "BROKERD_REHEARSAL_ROOT" in os.environ:
        run("cp", "-a", os.environ["BROKERD_REHEARSAL_ROOT"], root)
    else:
        run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, root)
    source = root / "source"
    source.mkdir()
    shutil.copytree(ROOT / "etc", source / "etc")
    shutil.copy(ROOT / "constraints.txt", source)
    extras = "[spark]" if "BROKERD_REHEARSAL_SPARK" in os.environ else ""
    wheels(source / "wheels", extras)
    (source / "dist").mkdir()
    for wheel in (source / "wheels").glob("brokerd-*.whl"):
        wheel.rename(source / "dist" / wheel.name)
    machine = Machine(root)
    try:
        yield machine
    finally:
        machine.stop()


def restarted(machine: Machine, command: str) -> None:
    """Run a command that ends the broker; wait until systemd has started it again."""
    restarts = int(machine.property("NRestarts"))
    machine.run(command)
    machine.until(f'test "$(systemctl show -P NRestarts brokerd)" -gt {restarts}', 60)
    machine.until("systemctl is-active --quiet brokerd", 60)
    assert "a record" in machine.run(
        f"{WAIT} /opt/brokerd/bin/brokerctl {SERVER} tail orders --from 0 --max 1"
    )


@pytest.mark.soak
@pytest.mark.skipif(
    os.geteuid() != 0 or any(shutil.which(tool) is None for tool in TOOLS),
    reason="needs root and Debian's debootstrap, systemd-container, util-linux",
)
class TestRehearsal:
    """Each test goes on with the machine of the one before."""

    def test_the_recipe_ends_with_a_broker_that_serves(self, machine: Machine) -> None:
        """The commands of docs/operations.rst but `make wheel`, which this machine has done."""
        commands = recipe("operations.rst", "\nsystemd\n-------\n")
        assert commands[0] == "make wheel"
        machine.run("\n".join(commands[1:]))
        assert machine.property("ActiveState") == "active"
        machine.run(f"/opt/brokerd/bin/brokerctl {SERVER} produce orders 'a record'")
        assert "a record" in machine.run(
            f"/opt/brokerd/bin/brokerctl {SERVER} tail orders --from 0 --max 1"
        )
        assert machine.run("stat -c '%U %a' /var/lib/brokerd").split() == ["brokerd", "700"]
        assert machine.run("systemctl --failed --no-legend") == ""
        machine.run("! journalctl --unit=brokerd | grep 'Unable to write'")

    def test_a_killed_broker_is_back_with_its_records(self, machine: Machine) -> None:
        restarted(machine, "systemctl kill --signal=KILL brokerd")

    def test_the_watchdog_ends_a_broker_that_hangs(self, machine: Machine) -> None:
        """With shorter times than the unit's. A stopped process does not react to SIGABRT."""
        machine.run("""
            mkdir -p /run/systemd/system/brokerd.service.d
            printf '[Service]\\nWatchdogSec=4\\nTimeoutAbortSec=2\\n' \\
                >/run/systemd/system/brokerd.service.d/watchdog.conf
            systemctl daemon-reload
            systemctl restart brokerd
            sleep 8
            systemctl is-active brokerd
            """)
        assert machine.property("NRestarts") == "0"
        restarted(machine, "systemctl kill --signal=STOP --kill-who=main brokerd")
        assert "Watchdog timeout" in machine.run("journalctl --no-pager -u brokerd")

    def test_a_reload_changes_options_of_the_running_process(self, machine: Machine) -> None:
        """A mistake changes nothing, and a wrong file stops no broker that runs."""
        process = machine.property("MainPID")
        log = "journalctl --no-pager -u brokerd"
        machine.run("""
            sed -i 's/^connections = .*/connections = 77/' /etc/brokerd/brokerd.toml
            systemctl reload brokerd
            """)
        machine.until(f"{log} | grep -q '\\[reloaded\\]'", 20)
        machine.run("""
            sed -i 's/^connections = .*/connections = "many"/' /etc/brokerd/brokerd.toml
            systemctl reload brokerd
            """)
        machine.until(f"{log} | grep -q '\\[reload-failed\\]'", 20)
        assert machine.property("MainPID") == process
        assert machine.property("ActiveState") == "active"

    def test_a_wrong_configuration_is_not_started_again_and_again(self, machine: Machine) -> None:
        """It fails with one line; the corrected file starts."""
        machine.run("! systemctl restart brokerd")
        machine.until("systemctl is-failed --quiet brokerd", 20)
        assert machine.property("ExecMainStatus") == "1"
        assert machine.property("NRestarts") == "0"
        machine.run(f"""
            sed -i 's/^connections = .*/connections = 10000/' /etc/brokerd/brokerd.toml
            systemctl restart brokerd
            {WAIT}
            """)

    def test_the_backup_timer_makes_a_backup_that_restores(self, machine: Machine) -> None:
        """The commands of docs/backup.rst, with a timer that does not wait for an hour."""
        machine.run("\n".join(recipe("backup.rst", "once an hour")))
        often(machine, "brokerd-backup")
        assert "a record" in machine.run("""
            cd /tmp
            brokerctl=/opt/brokerd/bin/brokerctl
            $brokerctl backup verify /var/backups/brokerd
            $brokerctl restore /var/backups/brokerd /tmp/drill
            $brokerctl --data-dir /tmp/drill wal verify
            grep -c 'a record' /tmp/drill/wal/*.wal && echo has a record
            """)

    def test_a_stop_is_clean(self, machine: Machine) -> None:
        machine.run("systemctl stop brokerd")
        assert machine.property("Result") == "success"
        assert machine.property("ExecMainStatus") == "0"
        machine.run("test ! -e /var/lib/brokerd/run/listeners.json; systemctl start brokerd")

    @pytest.mark.skipif(
        "BROKERD_REHEARSAL_SPARK" not in os.environ,
        reason="BROKERD_REHEARSAL_SPARK=1 also installs Spark (700 MB)",
    )
    def test_the_rollup_timer_and_cron_archive_the_journal(self, machine: Machine) -> None:
        """The commands of docs/archive.rst, and the cron table with a time that does not wait."""
        install, *_ = recipe("archive.rst", "\nInstall, and run by the hour\n")
        ways = [line for line in recipe("archive.rst", "Then use **one** of these") if line]
        machine.run("\n".join([install, *ways[:2]]))
        often(machine, "brokerd-rollup")
        machine.run("\n".join([*ways[-2:], "sed -i 's/^7 /* /' /etc/cron.d/brokerd"]))
        machine.until("test -s /var/log/brokerd/rollup.log", 120)


def often(machine: Machine, name: str) -> None:
    """Let a timer run its service within seconds; wait for a run that succeeds."""
    assert machine.property("NextElapseUSecRealtime", f"{name}.timer")
    machine.run(f"""
        mkdir -p /run/systemd/system/{name}.timer.d
        printf '[Timer]\\nOnCalendar=*:*:0/5\\nRandomizedDelaySec=0\\nAccuracySec=1s\\n' \\
            >/run/systemd/system/{name}.timer.d/often.conf
        systemctl daemon-reload
        systemctl restart {name}.timer
        """)
    machine.until(f"journalctl --no-pager -u {name} | grep -q Finished", 240)
    assert machine.property("Result", f"{name}.service") == "success"
    machine.run(f"systemctl disable --now {name}.timer")
