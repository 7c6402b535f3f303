"""What a connection costs that has not logged in, and may do nothing without."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.protocols.base.connection import Limits
from brokerd.protocols.base.framing import STRANGER_BYTES_MAX
from brokerd.security import OPEN, Access
from brokerd.security.directory import Policy
from brokerd.server.assembly import FACTORIES, FactoryContext
from brokerd.server.config import Config
from tests.guards import GuardOf
from tests.house import House, Wire
from tests.security.hall import Hall

BEGINNINGS = {
    "mamamia": b"\x00\x80\x00\x00",
    "flymq": b"\xaf\x01\x01\x00\x01\x00\x00\x00",
    "blipmq": b"\x00\x80\x00\x00\x01",
    "rustlog": b"\x00\x80\x00\x00\x01",
}
"""Of frames of megabytes."""


def taken(form: str, access: Access, size: int) -> int:
    """How much of a frame that does not end is taken in before the connection is cut off."""
    house = House()
    factory: Any = FACTORIES[form](
        FactoryContext(house.broker, house.clock, house.limits, Config())
    )
    factory.guard = GuardOf(access)
    wire = Wire(factory, house.clock)
    wire.send_bytes(BEGINNINGS[form] + bytes(size))
    return size - wire.unread_bytes


@pytest.mark.parametrize("form", ["mamamia", "flymq", "blipmq", "rustlog"])
def test_who_may_do_nothing_fills_no_memory_with_frames_that_do_not_end(form: str) -> None:
    """He is cut off, and the audit trail tells of it."""
    hall = Hall()
    assert taken(form, hall.somebody(), 4 << 20) <= STRANGER_BYTES_MAX + (64 << 10)
    assert hall.trail() == [("access.denied", "", "", "login", "denied")]


@pytest.mark.parametrize("form", ["mamamia", "flymq", "blipmq", "rustlog"])
def test_who_has_logged_in_or_need_not_sends_large_frames(form: str) -> None:
    hall, open_hall = Hall(), Hall(Policy(allow_anonymous=True))
    hall.add("ann")
    for access in (hall.somebody("ann"), open_hall.somebody(), OPEN):
        assert taken(form, access, 4 << 20) == 4 << 20
    assert hall.trail() == open_hall.trail() == []


def test_an_account_that_is_disabled_is_a_stranger() -> None:
    hall = Hall()
    hall.add("ann")
    ann = hall.somebody("ann")
    hall.add("ann", enabled=False)
    assert taken("flymq", ann, 4 << 20) < 1 << 20


@pytest.mark.parametrize("form", ["mamamia", "flymq", "blipmq", "rustlog", "mega"])
def test_a_client_without_permissions_has_a_deadline_for_its_login(form: str) -> None:
    """Bytes do not move it, as those of the requests that it may make."""
    hall = Hall()
    hall.add("ann")
    house = House(limits=Limits(login_us=60_000_000, first_byte_us=0, sweep_seconds=5))
    factory: Any = FACTORIES[form](
        FactoryContext(house.broker, house.clock, house.limits, Config())
    )
    factory.startFactory()
    factory.guard = GuardOf(hall.somebody())
    stranger = Wire(factory, house.clock)
    factory.guard = GuardOf(hall.somebody("ann"))
    known = Wire(factory, house.clock)
    house.pass_time(50, step=5)
    assert stranger.transport.connected
    house.pass_time(20, step=5)
    assert not stranger.transport.connected
    assert known.transport.connected
    factory.stopFactory()
