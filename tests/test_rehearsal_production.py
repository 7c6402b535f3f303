"""docs/production.rst, followed literally: from a bare Debian to a secured, monitored broker.

BROKERD_DEB names a package that is built already.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerd import __version__
from tests.admin.browser import CHROMIUM
from tests.rehearsal import (
    PATH,
    ROOT,
    Machine,
    Terminal,
    blocks,
    debian,
    needs_machine,
    run,
    section,
)

PAGE = "production.rst"
PACKAGE = f"brokerd_{__version__}_amd64.deb"
PASSWORD = "correct horse battery staple"


def commands(title: str) -> list[str]:
    """Return the literal blocks of a section of the page."""
    text = section(PAGE, f"\n{title}\n{'-' * len(title)}\n")
    return blocks(re.split(r"\n[^\n]+\n-+\n", text)[0])


def built(directory: Path) -> Path:
    """Return the package of the broker."""
    if "BROKERD_DEB" in os.environ:
        return Path(os.environ["BROKERD_DEB"])
    run("sh", ROOT / "scripts" / "debian_package.sh", directory, "-Ppkg.brokerd.noarchive")
    return directory / PACKAGE


def repacked(package: Path, version: str, target: Path) -> None:
    """Write a package with another version, and with another configuration file."""
    files = target.with_suffix("")
    run("dpkg-deb", "--raw-extract", package, files)
    with (files / "etc" / "brokerd" / "brokerd.toml").open("a") as configuration:
        configuration.write("# The end.\n")
    control = files / "DEBIAN" / "control"
    control.write_text(re.sub(r"(?m)^Version: .*", f"Version: {version}", control.read_text()))
    run("dpkg-deb", "--root-owner-group", "-Znone", "--build", files, target)
    shutil.rmtree(files)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A booted Debian with Prometheus, and the package in root's directory."""
    directory = tmp_path_factory.mktemp("production")
    root = directory / "root"
    package = built(directory / "dist")
    debian(root)
    # The units of what Prometheus recommends cannot run in a container.
    prometheus = "apt-get update && apt-get install -y --no-install-recommends prometheus"
    run(
        *["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--pipe"],
        *[f"--directory={root}", "--setenv=DEBIAN_FRONTEND=noninteractive", "sh", "-c", prometheus],
    )
    (root / "source").mkdir()
    # As Debian's installer writes it.
    (root / "etc" / "hostname").write_text("broker\n")
    (root / "etc" / "hosts").write_text("127.0.0.1 localhost\n127.0.1.1 broker\n")
    shutil.copy(package, root / "root" / PACKAGE)
    repacked(package, f"{__version__}+next", root / "root" / "NEW.deb")
    machine = Machine(root)
    try:
        yield machine
    finally:
        machine.stop()


@pytest.fixture(scope="module")
def terminal(machine: Machine) -> Iterator[Terminal]:
    terminal = Terminal(machine)
    yield terminal
    terminal.close()


@pytest.mark.soak
@needs_machine
class TestProduction:
    """Each test goes on with the machine and the shell of the one before."""

    def test_the_package_starts_a_broker(self, terminal: Terminal) -> None:
        """The machine has no network: the packages of Debian's are there."""
        update, rest = commands("Install")[0].split("\n", 1)
        assert update == "apt-get update"
        assert '"phase": "ready"' in terminal.run(rest)

    def test_each_listener_has_tls_and_is_open(self, terminal: Terminal, machine: Machine) -> None:
        for block in commands("Certificates"):
            terminal.run(block)
        said = terminal.run("\n".join(commands("Configure")))
        assert "the configuration is sound" in said
        assert '"phase": "ready"' in said
        listeners = json.loads((machine.root / "var/lib/brokerd/run/listeners.json").read_text())
        secured = listeners.pop("tls")
        assert sorted(secured) == sorted(listeners)
        assert all(address.startswith("0.0.0.0:") for name, address in listeners.items())
        key = machine.run("stat -c '%U %a' /etc/brokerd/key.pem /etc/brokerd/admin-password")
        assert key == "brokerd 600\nbrokerd 600\n"
        machine.run("! curl --silent http://localhost:9644/health/ready")

    def test_accounts_are_made_and_used(self, terminal: Terminal) -> None:
        people, programs, use = commands("Accounts")
        terminal.run(people, PASSWORD, PASSWORD)
        terminal.run(programs)
        assert "a first record" in terminal.run(use)

    def test_prometheus_reads_the_broker(self, terminal: Terminal, machine: Machine) -> None:
        job, query = commands("Monitoring")
        terminal.run(job)
        machine.until(f"""{query} | grep -q '"1"'""", 60)
        rules = json.loads(machine.run("curl --silent http://127.0.0.1:9090/api/v1/rules"))
        (group,) = rules["data"]["groups"]
        assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
        alerts = json.loads(machine.run("curl --silent http://127.0.0.1:9090/api/v1/alerts"))
        assert alerts["data"]["alerts"] == []

    @pytest.mark.skipif(
        CHROMIUM is None or shutil.which("certutil") is None,
        reason="needs a browser (Debian: apt-get install chromium libnss3-tools)",
    )
    def test_the_console_opens_in_a_browser(self, machine: Machine, tmp_path: Path) -> None:
        """A browser that trusts the authority as the page says, on the container's network."""
        found = re.search(r"certutil (-d .*?)``", section(PAGE, "Chromium"))
        assert found is not None
        store = tmp_path / ".pki" / "nssdb"
        store.mkdir(parents=True)
        run("certutil", "-d", f"sql:{store}", "-N", "--empty-password")
        trust = found[1].replace("$HOME", str(tmp_path)).split()
        run("certutil", *trust, cwd=machine.root / "etc" / "brokerd")
        chromium = tmp_path / "chromium"
        chromium.write_text(
            f'#!/bin/sh\nexec nsenter --target {machine.leader} --net {CHROMIUM} "$@"\n'
        )
        chromium.chmod(0o755)
        playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright")
        environment: dict[str, Any] = {"PATH": PATH, "HOME": str(tmp_path)}
        with playwright.sync_playwright() as driver:
            browser = driver.chromium.launch(
                executable_path=str(chromium), args=["--no-sandbox"], env=environment
            )
            page = browser.new_page()
            page.goto("https://localhost:9644/#/topics")
            page.get_by_label("account").fill("ann")
            page.get_by_label("password").fill(PASSWORD)
            page.keyboard.press("Enter")
            page.get_by_role("link", name="orders", exact=True).wait_for()
            browser.close()

    def test_a_backup_is_sound(self, terminal: Terminal, machine: Machine) -> None:
        said = terminal.run("\n".join(commands("Backups")))
        assert "sound" in said
        assert machine.property("ActiveState", "brokerd-backup.timer") == "active"

    def test_the_first_administrator_goes(self, terminal: Terminal, machine: Machine) -> None:
        assert "deleted the account admin" in terminal.run(
            "\n".join(commands("Clean up")), PASSWORD
        )
        users = terminal.run("brokerctl --json user list", PASSWORD)
        assert re.findall(r'"name": "(\w+)"', users) == ["ann", "billing", "prometheus"]
        assert machine.run("journalctl --no-pager --quiet -u brokerd -p err") == ""
        assert machine.run("systemctl --failed --no-legend") == ""

    def test_an_upgrade_and_a_downgrade_keep_all(
        self, terminal: Terminal, machine: Machine
    ) -> None:
        """By the commands of docs/install.rst. Configuration, accounts and records stay."""
        table = section("install.rst", "   * - Debian package\n     - ``apt-get")
        upgrade, downgrade = re.findall(r"``(?:apt-get)? ?(install .*?)``", "``" + table)[:2]
        read = "BROKERCTL_USER= BROKERCTL_KEY_FILE=/root/billing.key brokerctl tail orders --max 1"
        version = "dpkg-query --show --showformat='${Version}' brokerd"
        for command, expected in ((upgrade, f"{__version__}+next"), (downgrade, __version__)):
            process = machine.property("MainPID")
            terminal.run(f"cd /root; apt-get -y {command}".replace("OLD.deb", PACKAGE))
            assert machine.property("MainPID") != process
            assert machine.property("ActiveState") == "active"
            assert machine.property("ActiveState", "brokerd-backup.timer") == "active"
            assert machine.run(version) == expected
            assert "a first record" in terminal.run(f"{read} --from 0")
