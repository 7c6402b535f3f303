"""The Debian packages: they agree with the rest, install, serve, upgrade, and go as others do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from brokerd import __version__
from brokerd.server.sections import DEFAULT_LISTENERS

ROOT = Path(__file__).resolve().parent.parent
DEBIAN = ROOT / "debian"
ETC = ROOT / "etc"
TOOLS = ("dpkg-buildpackage", "dh", "debconf-updatepo", "unshare", "runuser", "ip")


def test_the_version_of_the_packages_is_that_of_brokerd() -> None:
    first = (DEBIAN / "changelog").read_text().splitlines()[0]
    assert first.startswith(f"brokerd ({__version__}) ")


def test_every_unit_is_in_a_package() -> None:
    """A new unit of etc has its place in debian/rules, and no missing unit is named there."""
    rules = (DEBIAN / "rules").read_text()
    named = set(re.findall(r"brokerd[\w-]*\.(?:service|timer|socket|sysusers\.conf)\b", rules))
    units = {path.name for path in (ETC / "systemd").iterdir()}
    assert named == units


def test_the_packages_move_every_path_of_the_units() -> None:
    """No file that they take from etc names the directory of another installation afterwards."""
    rules = (DEBIAN / "rules").read_text()
    placed = re.search(r"^PLACED := sed 's\|(.*?)\|(.*?)\|g'$", rules, re.M)
    assert placed is not None
    files = [*(ETC / "systemd").iterdir(), ETC / "cron.d" / "brokerd", ETC / "logrotate.d/brokerd"]
    for path in files:
        assert "/opt" not in path.read_text().replace(placed[1], placed[2]), path


@pytest.mark.parametrize(
    "script", sorted(DEBIAN.glob("*.sh")) + sorted(DEBIAN.glob("*.post*")), ids=lambda p: p.name
)
def test_a_shell_understands_the_scripts(script: Path) -> None:
    subprocess.run(["sh", "-n", script], check=True, timeout=30)


class Machine:
    """A copy of this machine that each command sees in place of the real one.

    An overlay takes all writes. The network is a loopback of its own, so default ports are free.
    """

    def __init__(self, directory: Path) -> None:
        self.writes = directory
        for name in ("upper", "work", "root"):
            (directory / name).mkdir()

    def run(self, script: str) -> str:
        """Run a shell script there, which must succeed; return its output."""
        root = self.writes / "root"
        layers = f"lowerdir=/,upperdir={self.writes}/upper,workdir={self.writes}/work"
        enter = f"""set -e
            ip link set lo up
            mount -t overlay overlay -o {layers} {root}
            mount -t proc proc {root}/proc
            mount -t tmpfs tmpfs {root}/run
            mount --rbind /dev {root}/dev
            exec chroot {root} sh -exc "$0" 2>&1"""
        result = subprocess.run(
            ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "sh", "-c"]
            + [enter, script],
            capture_output=True,
            text=True,
            timeout=600,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"},
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout


SERVE = """
runuser -u brokerd -- brokerd --config /etc/brokerd/brokerd.toml >/tmp/output 2>&1 &
broker=$!
until [ -e /var/lib/brokerd/run/listeners.json ]; do
    kill -0 $broker || { cat /tmp/output; exit 1; }
    sleep 0.1
done
"""
STOP = """
kill $(cat /var/lib/brokerd/lock)
wait $broker
! grep -i 'unable to write\\|traceback' /tmp/output
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the broker. BROKERD_DEB names one that is built already."""
    if "BROKERD_DEB" in os.environ:
        return Path(os.environ["BROKERD_DEB"])
    directory = tmp_path_factory.mktemp("dist")
    script = ROOT / "scripts" / "debian_package.sh"
    built = subprocess.run(
        ["sh", script, directory, "-Ppkg.brokerd.noarchive"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert built.returncode == 0, built.stderr
    (package,) = directory.glob("*.deb")
    return package


@pytest.fixture(scope="module")
def machine(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine on which the package lies, and where no installation may start a service."""
    machine = Machine(tmp_path_factory.mktemp("machine"))
    shutil.copy(package, machine.writes / "upper" / "brokerd.deb")
    (machine.writes / "upper" / "brokerd.deb").chmod(0o644)
    return machine


def can_unshare() -> bool:
    """Return whether this process may make the namespaces of a Machine."""
    if any(shutil.which(tool) is None for tool in TOOLS) or os.geteuid() != 0:
        return False
    command = ["unshare", "--mount", "--pid", "--net", "--fork", "true"]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.soak
@pytest.mark.skipif(
    "not can_unshare()", reason="needs root, dpkg-dev, debhelper, po-debconf, util-linux, iproute2"
)
class TestInstalled:
    """Each test goes on with the machine of the one before."""

    def test_lintian_finds_nothing(self, package: Path) -> None:
        """The overrides name what the packages do otherwise than Debian's own, with the reason."""
        if shutil.which("lintian") is None:
            pytest.skip("there is no lintian here (Debian: apt-get install lintian)")
        found = subprocess.run(
            ["lintian", "--allow-root", "--fail-on=error,warning", package],
            capture_output=True,
            text=True,
            timeout=1800,
        )
        assert (found.returncode, found.stdout) == (0, "")

    def test_a_fresh_installation_serves_a_record(self, machine: Machine) -> None:
        """By the package's own commands, as the package's user, without a network."""
        said = machine.run(f"""
            printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d
            chmod 755 /usr/sbin/policy-rc.d
            dpkg --install /brokerd.deb
            test "$(stat -c '%U %a' /var/lib/brokerd)" = 'brokerd 700'
            brokerctl config check /etc/brokerd/brokerd.toml
            {SERVE}
            cat /var/lib/brokerd/run/listeners.json
            brokerctl --data-dir /var/lib/brokerd produce orders 'a record'
            brokerctl --server http://127.0.0.1:9644 tail orders --from 0 --max 1
            {STOP}
            """)
        assert "a record" in said.split("+ brokerctl --server")[1]
        for format_names in DEFAULT_LISTENERS:
            for name in format_names.split("+"):
                assert f'"{name}": "127.0.0.1:' in said

    def test_nothing_of_the_package_is_written_at_run_time(self, machine: Machine) -> None:
        """Byte code and the list of plugins are in the package; root may start it, too."""
        said = machine.run(f"""
            touch /stamp
            {SERVE}
            brokerctl --data-dir /var/lib/brokerd topic list
            {STOP}
            twistd=/usr/lib/brokerd/bin/twistd
            $twistd --help | grep '  brokerd '
            find /usr/lib/brokerd -newer /stamp -print
            dpkg --verify brokerd
            """)
        tail = said.split("+ find ")[1].splitlines()
        assert tail[1:] == ["+ dpkg --verify brokerd"]

    def test_an_upgrade_keeps_configuration_and_records(self, machine: Machine) -> None:
        """The same package once more: dpkg takes the same way as for a newer one."""
        said = machine.run(f"""
            sed -i 's/^max_attempts = .*/max_attempts = 7/' /etc/brokerd/brokerd.toml
            dpkg --install /brokerd.deb
            grep 'max_attempts = 7' /etc/brokerd/brokerd.toml
            {SERVE}
            brokerctl --data-dir /var/lib/brokerd tail orders --from 0 --max 1
            {STOP}
            """)
        assert "Preparing to unpack" in said
        assert "a record" in said.split("+ brokerctl")[1]

    def test_removal_keeps_configuration_and_records(self, machine: Machine) -> None:
        said = machine.run("""
            dpkg --remove brokerd
            ls /etc/brokerd /var/lib/brokerd
            ! ls /usr/lib/brokerd /usr/bin/brokerctl /lib/systemd/system/brokerd.service
            """)
        left = said.split("+ ls /etc")[1]
        assert "brokerd.toml" in left
        assert "wal" in left.split()

    def test_purge_keeps_records_unless_told_otherwise(self, machine: Machine) -> None:
        """Configuration and logs go; the answer of debconf decides about the records."""
        said = machine.run("""
            dpkg --purge brokerd
            ls /var/lib/brokerd/wal
            ! ls -d /etc/brokerd /var/log/brokerd
            dpkg --install /brokerd.deb
            echo brokerd brokerd/purge-data boolean true | debconf-set-selections
            dpkg --purge brokerd
            ! ls -d /var/lib/brokerd
            """)
        assert "/var/lib/brokerd keeps its records" in said
