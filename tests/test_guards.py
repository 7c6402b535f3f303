"""A broker that asks who it is: the first administrator, logins in threads, what lasts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from msgspec import structs
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs

from brokerd.errors import (
    AuthenticationRequired,
    BrokerdError,
    ConfigError,
    Denied,
    LoginFailed,
    ShuttingDown,
)
from brokerd.security import ADMIN, OPEN, OPEN_GUARD, READ, WRITE, Access
from brokerd.server.assembly import BrokerCore, make_core
from brokerd.server.certificate_log import CertificateLog
from brokerd.server.config import Config
from brokerd.server.guards import make_guard
from brokerd.server.sections import Blipmq, Mega, Security, Tls
from tests.house import House
from tests.protocols.serving import CONFIG, no_faults, opened, reactor

__all__ = ["no_faults"]

PASSWORD = "correct horse"


def asking(**security: Any) -> Config:
    """A configuration with security on."""
    options = {"auth": "on", "admin_password": (PASSWORD,), **security}
    return structs.replace(CONFIG, security=Security(**options))


async def log_in(core: BrokerCore, name: str, password: str) -> Access | BrokerdError:
    """Who that is, or why it is nobody."""
    result: Deferred[Access | BrokerdError] = Deferred()
    core.guard.log_in(
        "flymq", "192.0.2.1", name, password, lambda access, error: result.callback(access or error)
    )
    return await result


def events(logged: list[Any]) -> list[str]:
    """Those about accounts."""
    names = [line.get("event_id") or "" for line in logged]
    return [name for name in names if name.startswith(("admin-", "principal-"))]


@pytest_twisted.ensureDeferred
async def test_the_first_administrator_is_made_once_and_logs_in(
    tmp_path: Path, no_faults: None
) -> None:
    """Its password is the one of the first start; who changes it later is not overruled."""
    with capturedLogs() as logged:
        async with opened(tmp_path, asking()) as core:
            root = await log_in(core, "admin", PASSWORD)
            assert isinstance(root, Access)
            root.require_server(ADMIN)
            assert isinstance(await log_in(core, "admin", "wrong"), LoginFailed)
            account = core.broker.accounts.account("admin")
        assert events(logged) == ["admin-made"]
    assert PASSWORD not in repr(logged)
    assert account.password not in repr(logged)
    with capturedLogs() as logged:
        async with opened(tmp_path, asking(admin_password=("another",))) as core:
            assert isinstance(await log_in(core, "admin", PASSWORD), Access)
            assert isinstance(await log_in(core, "admin", "another"), LoginFailed)
        assert events(logged) == []


@pytest_twisted.ensureDeferred
async def test_a_broker_without_an_administrator_says_so(tmp_path: Path, no_faults: None) -> None:
    with capturedLogs() as logged:
        async with opened(tmp_path, asking(admin_password=())) as core:
            assert core.broker.accounts.accounts() == []
    assert events(logged) == ["admin-missing"]
    assert advice(logged) == "set security.admin_password_file and start again"


def advice(logged: list[Any]) -> str:
    """What to do without an administrator."""
    (line,) = [line for line in logged if line.get("event_id") == "admin-missing"]
    return str(line["advice"])


@pytest_twisted.ensureDeferred
async def test_a_broker_whose_administrator_is_disabled_says_how_to_make_another(
    tmp_path: Path, no_faults: None
) -> None:
    """The one that is there is not made anew; following the advice lets somebody in again."""
    async with opened(tmp_path, asking()) as core:
        core.broker.accounts.update_account(OPEN, "admin", enabled=False)
    with capturedLogs() as logged:
        async with opened(tmp_path, asking()):
            pass
    assert "another name as security.admin_user" in advice(logged)
    with capturedLogs() as logged:
        async with opened(tmp_path, asking(admin_user="rescue")) as core:
            assert isinstance(await log_in(core, "rescue", PASSWORD), Access)
    assert events(logged) == ["admin-made"]


@pytest.mark.parametrize("auth", ["on", "off"])
@pytest_twisted.ensureDeferred
async def test_each_start_says_whether_anybody_is_asked_who_he_is(
    tmp_path: Path, no_faults: None, auth: str
) -> None:
    with capturedLogs() as logged:
        async with opened(tmp_path, asking(auth=auth)):
            pass
    found = [line for line in logged if (line.get("event_id") or "").startswith("security-")]
    assert [line["event_id"] for line in found] == [f"security-{auth}"]
    if auth == "on":
        assert (found[0]["accounts"], found[0]["trail"]) == (1, "with an")


@pytest_twisted.ensureDeferred
async def test_failures_and_denials_and_certificates_are_counted(
    tmp_path: Path, no_faults: None
) -> None:
    """With a trail and without one."""
    for trail in (True, False):
        async with opened(tmp_path, asking(audit=trail)) as core:
            await log_in(core, "admin", "wrong")
            with pytest.raises(AuthenticationRequired):
                core.guard.begin("mega", "192.0.2.1").require(READ, "t")
            core.guard.by_certificate("mega", "192.0.2.1", "O=x", "")
            status = core.status()
        assert (status["audit"]["logins_failed"], status["audit"]["denied"]) == (1, 1)
        assert status["certificates_refused"] == 1


@pytest_twisted.ensureDeferred
async def test_a_principal_that_nobody_is_is_told_of(tmp_path: Path, no_faults: None) -> None:
    config = structs.replace(asking(), mega=Mega("robots"))
    with capturedLogs() as logged:
        async with opened(tmp_path, config) as core:
            with pytest.raises(Denied):
                core.guard.begin("mega", "192.0.2.1").require(READ, "t")
    assert events(logged) == ["admin-made", "principal-unknown"]


@pytest_twisted.ensureDeferred
async def test_a_password_that_no_account_may_have_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"security\.admin_password: a password has 1 to 1024"):
        async with opened(tmp_path, asking(admin_password=("x" * 1025,))):
            raise AssertionError("it started")


@pytest_twisted.ensureDeferred
async def test_accounts_can_be_made_before_they_are_asked_for(
    tmp_path: Path, no_faults: None
) -> None:
    """With security off everybody may, and nobody is made by itself."""
    config = asking(auth="off")
    async with opened(tmp_path, config) as core:
        assert core.guard is OPEN_GUARD
        assert core.broker.accounts.accounts() == []
        assert not core.broker.audit.enabled
        made: Deferred[object] = Deferred()
        core.broker.accounts.create_account(
            OPEN, "ann", "secret", ["consumer"], lambda *result: made.callback(result)
        )
        await made
    async with opened(tmp_path, asking()) as core:
        assert core.broker.audit.enabled
        ann = await log_in(core, "ann", "secret")
        assert isinstance(ann, Access)
        ann.require(READ, "t")
        with pytest.raises(Denied):
            ann.require(WRITE, "t")


def test_each_option_reaches_the_guard() -> None:
    """Listeners, certificates, keys of BlipMQ's own."""
    house = House()
    lines = CertificateLog(lambda: 0.0)
    config = structs.replace(
        asking(),
        mega=Mega("robots"),
        blipmq=Blipmq(("a key",), principal="blips"),
        tls=Tls(principals=("CN=x,O=y => ann",)),
    )
    guard = make_guard(config, house.broker, lambda: True, lines)
    peer = "192.0.2.1"
    assert guard.begin("mega", peer).name == "robots"
    assert guard.begin("mamamia", peer).name == ""
    assert guard.log_in_with_key("blipmq", peer, "a key").name == "blips"
    assert guard.by_certificate("flymq", peer, "CN=x,O=y", "x").name == "ann"
    with pytest.raises(LoginFailed):
        guard.log_in_with_key("blipmq", peer, "another")
    with pytest.raises(ConfigError):
        wrong = structs.replace(config, tls=Tls(principals=("nonsense",)))
        make_guard(wrong, house.broker, lambda: True, lines)


@pytest_twisted.ensureDeferred
async def test_before_the_log_is_read_nobody_is_let_in_nor_told_that_he_is_wrong(
    tmp_path: Path, no_faults: None
) -> None:
    """The admin site is open by then; nothing is written down, and no failure is counted."""
    core = make_core(asking(), tmp_path, reactor)
    core.lock()
    guard, peer = core.guard, "192.0.2.1"
    for _ in range(30):
        assert isinstance(await log_in(core, "admin", PASSWORD), ShuttingDown)
    for enter in (
        lambda: guard.begin("admin", peer),
        lambda: guard.log_in_with_key("admin", peer, "key"),
        lambda: guard.by_certificate("admin", peer, "CN=admin", "admin"),
    ):
        with pytest.raises(ShuttingDown):
            enter()
    await core.open()
    assert isinstance(await log_in(core, "admin", PASSWORD), Access)
    assert guard.begin("admin", peer).name == ""
    await core.close()
