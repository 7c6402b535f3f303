"""The units, the user and the cron table that etc ships, as far as they can be read here."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import tomllib
from configparser import ConfigParser
from functools import partial
from pathlib import Path

import pytest

from brokerd.cli.verbs.backup import create_command
from brokerd.server.disk_state import STALLED_SECONDS
from brokerd.server.process_exit import IN_USE, STORAGE_FAILED, USAGE
from brokerd.server.sections import DEFAULT_LISTENERS
from brokerd.tap import Options

ETC = Path(__file__).resolve().parent.parent / "etc"
DIRECTORY = ETC / "systemd"
STATE_DIRECTORY = "/var/lib/brokerd"
"""What systemd gives the units as ``STATE_DIRECTORY``."""


def section(unit_name: str, name: str) -> dict[str, str]:
    """One section of a unit."""
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DIRECTORY / unit_name)
    return dict(unit[name])


@pytest.fixture
def service() -> dict[str, str]:
    return section("brokerd.service", "Service")


@pytest.fixture
def rollup() -> dict[str, str]:
    return section("brokerd-rollup.service", "Service")


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


def test_the_broker_may_ask_for_time_slices() -> None:
    """The call is one of @resources. systemd applies these lines in their order."""
    lines = (DIRECTORY / "brokerd.service").read_text().splitlines()
    filters = [line for line in lines if line.startswith("SystemCallFilter=")]
    assert any("~" in line and "@resources" in line for line in filters[:-1])
    assert filters[-1] == "SystemCallFilter=sched_setattr"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
@pytest.mark.parametrize(
    "name",
    [
        "brokerd.service",
        "brokerd.socket",
        "brokerd-rollup.service",
        "brokerd-rollup.timer",
        "brokerd-rollup-follow.service",
        "brokerd-backup.service",
        "brokerd-backup.timer",
    ],
)
def test_systemd_understands_each_unit(name: str, tmp_path: Path) -> None:
    """No unknown key and no value that it ignores; the programs are not installed here."""
    for unit in DIRECTORY.glob("brokerd*.[st]*[ert]"):
        text = re.sub(
            r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.MULTILINE
        )
        (tmp_path / unit.name).write_text(text)
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", tmp_path / name],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_rollup_runs_as_the_broker_does(
    service: dict[str, str], rollup: dict[str, str]
) -> None:
    """Same user, same environment, same configuration and data: it can read the journal."""
    for key in ("User", "Group", "StateDirectory", "StateDirectoryMode", "UMask"):
        assert rollup[key] == service[key], key
    broker, *broker_arguments = shlex.split(service["ExecStart"])
    program, *arguments = shlex.split(rollup["ExecStart"])
    assert Path(program) == Path(broker).with_name("brokerd-rollup")
    assert arguments == broker_arguments[3:]


def test_the_unit_that_follows_differs_from_the_rollup_only_in_how_it_runs(
    rollup: dict[str, str],
) -> None:
    """It goes on until systemd ends it."""
    follow = section("brokerd-rollup-follow.service", "Service")
    assert shlex.split(follow["ExecStart"]) == [*shlex.split(rollup["ExecStart"]), "--follow"]
    assert (follow["Type"], follow["SuccessExitStatus"]) == ("exec", "143")
    of_runs = {"Type", "ExecStart", "SuccessExitStatus", "TimeoutStartSec", "Restart", "RestartSec"}
    assert {key: value for key, value in follow.items() if key not in of_runs} == {
        key: value for key, value in rollup.items() if key not in of_runs
    }
    unit = section("brokerd-rollup-follow.service", "Unit")
    assert unit["Conflicts"] == "brokerd-rollup.timer"


def test_the_backup_runs_as_the_rollup_does(rollup: dict[str, str]) -> None:
    """As the broker's user, behind the broker, with a command that brokerctl takes."""
    backup = section("brokerd-backup.service", "Service")
    of_backups = {"ExecStart", "Environment", "EnvironmentFile", "ReadWritePaths", "MemoryMax"}
    assert {key: value for key, value in backup.items() if key not in of_backups} == {
        key: value
        for key, value in rollup.items()
        if key not in {"ExecStart", "SuccessExitStatus", "MemoryMax"}
    }
    program, *arguments = shlex.split(backup["ExecStart"])
    assert Path(program) == Path(shlex.split(rollup["ExecStart"])[0]).with_name("brokerctl")
    name, _, place = backup["Environment"].partition("=")
    assert backup["ReadWritePaths"] == f"-{place}"
    assert section("brokerd-backup.service", "Unit")["RequiresMountsFor"] == place
    assert arguments[:3] == ["--data-dir", "${STATE_DIRECTORY}", "backup"]
    context = create_command.make_context("create", arguments[4:])
    assert arguments[3] == "create"
    assert context.params["keep"] > 0
    assert f"${{{name}}}" in arguments


def test_a_rollup_that_finds_another_one_at_work_has_not_failed(rollup: dict[str, str]) -> None:
    """Nothing is left to do; only what went wrong makes the unit fail."""
    assert rollup["Type"] == "oneshot"
    assert rollup["SuccessExitStatus"].split() == [str(IN_USE)]


def test_the_broker_goes_before_the_rollup(service: dict[str, str], rollup: dict[str, str]) -> None:
    """When memory runs out, the rollup is ended, and its memory is bounded."""
    assert int(rollup["OOMScoreAdjust"]) > int(service["OOMScoreAdjust"])
    assert int(rollup["Nice"]) > 0
    assert "MemoryMax" in rollup


def test_the_machine_goes_before_the_broker(service: dict[str, str]) -> None:
    """Its memory is bounded, and the kernel does not end everybody else in its place."""
    assert service["MemoryMax"] == "75%"
    assert int(service["OOMScoreAdjust"]) >= 0


def test_a_reload_is_the_signal_that_reloads(service: dict[str, str]) -> None:
    """By the shell's own kill, because a small system has no other."""
    assert shlex.split(service["ExecReload"]) == ["/bin/sh", "-c", "kill -HUP ${MAINPID}"]


def test_the_watchdog_waits_longer_than_a_slow_disk(service: dict[str, str]) -> None:
    """Health says disk-stalled long before systemd ends the broker."""
    assert int(service["WatchdogSec"]) >= 10 * STALLED_SECONDS


def test_the_sockets_are_the_listeners_that_their_unit_names() -> None:
    """The table of the comment has an index for each socket, on its default port."""
    text = (DIRECTORY / "brokerd.socket").read_text()
    table = re.sub(
        r"^# ?", "", text[text.index("#   [listen]") :].partition("\n#\n")[0], flags=re.M
    )
    listen = tomllib.loads(table)["listen"]
    ports = re.findall(r"^ListenStream=127\.0\.0\.1:(\d+)$", text, re.M)
    assert list(listen.values()) == [
        f"systemd:domain=INET:index={number}" for number in range(len(ports))
    ]
    assert {name: f"tcp:{port}" for name, port in zip(listen, ports, strict=True)} == (
        DEFAULT_LISTENERS
    )


@pytest.mark.skipif(shutil.which("logrotate") is None, reason="there is no logrotate here")
def test_logrotate_understands_its_file(tmp_path: Path) -> None:
    """Without the user of the unit, who does not exist here."""
    text = (ETC / "logrotate.d" / "brokerd").read_text()
    text = re.sub(r"^    (su|create) .*\n", "", text, flags=re.M)
    file = tmp_path / "brokerd"
    file.write_text(text.replace("/var/log/brokerd", str(tmp_path)))
    file.chmod(0o644)
    checked = subprocess.run(
        ["logrotate", "--debug", "--state", tmp_path / "state", file],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert checked.returncode == 0, checked.stderr
    assert "error" not in checked.stderr


def test_logrotate_signals_only_a_broker(tmp_path: Path) -> None:
    """The lock of a stopped broker may name another process by now."""
    text = (ETC / "logrotate.d" / "brokerd").read_text()
    script = text.partition("    postrotate\n")[2].partition("    endscript")[0]
    script = script.replace("/var/lib/brokerd/lock", str(tmp_path / "lock"))

    other = subprocess.Popen(["sleep", "60"])
    (tmp_path / "lock").write_text(f"{other.pid}\n")
    subprocess.run(["/bin/sh", "-e", "-c", script], timeout=60, check=True)
    assert other.poll() is None
    other.kill()
    assert other.wait(60) == -signal.SIGKILL
    link = tmp_path / "brokerd-sleep"
    link.symlink_to(shutil.which("sleep") or "/bin/sleep")
    process = subprocess.Popen(  # below nohup, SIGHUP is ignored
        [link, "60"], preexec_fn=partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)
    )
    (tmp_path / "lock").write_text(f"{process.pid}\n")
    subprocess.run(["/bin/sh", "-e", "-c", script], timeout=60, check=True)
    assert process.wait(60) == -signal.SIGHUP
    (tmp_path / "lock").unlink()
    subprocess.run(["/bin/sh", "-e", "-c", script], timeout=60, check=True)


def test_the_timer_starts_the_rollup() -> None:
    """By its name: a timer starts the service that is called as it is."""
    timer = section("brokerd-rollup.timer", "Timer")
    assert (DIRECTORY / "brokerd-rollup.service").exists()
    assert "Unit" not in timer
    assert timer["OnCalendar"]
    assert section("brokerd-rollup.timer", "Install") == {"WantedBy": "timers.target"}


class TestCron:
    """etc/cron.d/brokerd, where there is no systemd."""

    FIELDS = (59, 23, 31, 12, 7)

    @pytest.fixture
    def job(self) -> list[str]:
        """Five fields of time, the user, the command."""
        lines = (ETC / "cron.d" / "brokerd").read_text().splitlines()
        (line,) = [one for one in lines if one and one[0] != "#" and not re.match(r"\w+=", one)]
        return line.split(maxsplit=6)

    def run(self, job: list[str], directory: Path, code: int) -> subprocess.CompletedProcess[str]:
        """The command as cron gives it to the shell, with a rollup that ends with ``code``."""
        program = directory / "brokerd-rollup"
        program.write_text(f"#!/bin/sh\necho ran; echo why >&2; umask; exit {code}\n")
        program.chmod(0o755)
        command = job[6].replace("/opt/brokerd/bin/", f"{directory}/")
        command = command.replace("/var/log/brokerd/rollup.log", str(directory / "log"))
        return subprocess.run(
            ["/bin/sh", "-c", command],
            env={"PATH": "/nowhere"},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def test_the_time_is_one_that_cron_takes(self, job: list[str]) -> None:
        """Each field is a star or a number within its range."""
        for field, largest in zip(job[:5], self.FIELDS, strict=True):
            assert field == "*" or int(field) <= largest

    def test_it_runs_what_the_unit_runs(self, job: list[str], rollup: dict[str, str]) -> None:
        """The same user and the same command; no % either, which cron would cut at."""
        assert job[5] == rollup["User"]
        expected = rollup["ExecStart"].replace("${STATE_DIRECTORY}", STATE_DIRECTORY)
        assert f" {expected} >>" in job[6]
        assert "%" not in job[6]

    def test_cron_would_not_pass_over_the_file(self) -> None:
        """It ignores names with a dot, and the last line when it is not ended."""
        path = ETC / "cron.d" / "brokerd"
        assert re.fullmatch(r"[\w-]+", path.name)
        assert path.read_text().endswith("\n")

    @pytest.mark.parametrize("code", [0, IN_USE])
    def test_nothing_is_mailed_when_it_is_done_or_another_is_at_work(
        self, job: list[str], tmp_path: Path, code: int
    ) -> None:
        """Output goes to the log, which only the user can read; no program needs a PATH."""
        ran = self.run(job, tmp_path, code)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
        assert (tmp_path / "log").read_text().split() == ["ran", "why", "0077"]
        assert (tmp_path / "log").stat().st_mode & 0o077 == 0

    def test_a_failure_is_mailed_in_one_line_that_names_the_log(
        self, job: list[str], tmp_path: Path
    ) -> None:
        """Cron mails what a job prints."""
        ran = self.run(job, tmp_path, 1)
        assert ran.stdout == f"brokerd-rollup failed: see {tmp_path / 'log'}\n"
        assert ran.stderr == ""
