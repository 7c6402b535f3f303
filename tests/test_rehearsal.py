"""The documented installation in a real systemd: kill -9, watchdog, reload, mistakes, timers, cron.

The commands are those of the pages, as they stand there.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rehearsal import ROOT, Machine, debian, needs_machine, recipe, run

RELEASES = sorted((ROOT / "tests" / "releases").glob("*.tar.xz"))
SERVER = "--server http://127.0.0.1:9644"
WAIT = f"""
until /opt/brokerd/bin/brokerctl {SERVER} topic list >/dev/null 2>&1; do sleep 0.2; done
"""


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
    debian(root)
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
@needs_machine
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

    @pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
    def test_it_goes_on_with_the_directory_of_an_earlier_release(
        self, machine: Machine, release: Path
    ) -> None:
        """As after an upgrade: the topics and accounts of that release are there."""
        with tarfile.open(release) as archive:
            archive.extractall(machine.root / "source" / "release", filter="data")
        expected = json.loads((machine.root / "source/release/expectations.json").read_text())
        machine.run(f"""
            systemctl stop brokerd
            mv /var/lib/brokerd /var/lib/later
            mv /source/release/data /var/lib/brokerd
            chown -R brokerd:brokerd /var/lib/brokerd
            chmod 700 /var/lib/brokerd
            systemctl start brokerd
            {WAIT}
            """)
        brokerctl = f"/opt/brokerd/bin/brokerctl {SERVER} --json"
        for kind, verb in (("topics", "topic list"), ("users", "user list")):
            listed = json.loads(machine.run(f"{brokerctl} {verb}"))[kind]
            names = {one["name"] for one in expected["admin"][kind]}
            assert {one["name"] for one in listed} == names
        machine.run("""
            systemctl stop brokerd
            rm -r /var/lib/brokerd
            mv /var/lib/later /var/lib/brokerd
            systemctl start brokerd
            """)

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
