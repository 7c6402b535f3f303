"""What a connection may do while security is off: everything, and nobody is asked who he is."""

from __future__ import annotations

import pytest

from brokerd.security import ADMIN, MONITOR, OPEN, OPEN_GUARD, READ, WRITE, Access


@pytest.mark.parametrize("permission", [READ, WRITE, ADMIN, MONITOR])
def test_without_security_everything_is_allowed(permission: int) -> None:
    OPEN.require(permission, "orders")
    OPEN.require_any("orders")
    OPEN.require_server(permission)
    OPEN.require_known()
    assert OPEN.may(permission, "orders")


def test_without_security_every_way_in_leads_to_the_same_access() -> None:
    logged_in: list[tuple[Access | None, object]] = []
    OPEN_GUARD.log_in("flymq", "127.0.0.1", "a", "b", lambda *result: logged_in.append(result))
    assert logged_in == [(OPEN, None)]
    assert OPEN_GUARD.begin("mega", "127.0.0.1") is OPEN
    assert OPEN_GUARD.by_certificate("mega", "127.0.0.1", "CN=a", "a") is OPEN
    assert OPEN_GUARD.log_in_with_key("blipmq", "127.0.0.1", "key") is OPEN
