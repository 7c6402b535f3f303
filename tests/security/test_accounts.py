"""What accounts, access lists and keys may be called and hold; that none shows a secret."""

from __future__ import annotations

import pytest

from brokerd.errors import BrokerdError, InvalidName, InvalidRequest, LimitExceeded
from brokerd.security.access import ADMIN, MONITOR, READ, WRITE
from brokerd.security.accounts import (
    GRANTS_MAX,
    PASSWORD_BYTES_MAX,
    ROLES_MAX,
    AccessList,
    Account,
    ApiKey,
    NewKey,
    check_access_list,
    check_account_name,
    check_label,
    check_password,
    check_roles,
)


def test_a_role_gives_its_permissions_and_an_unknown_one_nothing() -> None:
    """Roles add up; one that is not built in only matters to access lists."""
    assert Account(1, "ann", ("producer", "consumer")).permissions == READ | WRITE
    assert Account(1, "ann", ("admin",)).permissions == READ | WRITE | ADMIN | MONITOR
    assert Account(1, "ann", ("monitor",)).permissions == MONITOR
    assert Account(1, "ann", ("guest", "billing")).permissions == 0


def test_nothing_shows_a_secret() -> None:
    """Neither hashes nor keys stand in what a log or an error would print."""
    account = Account(1, "ann", password="$argon2id$secret")
    key = ApiKey("00ff", "ann", b"secret digest")
    for shown in (repr(account), repr(key), repr(NewKey(key, "the secret")), str(key)):
        assert "secret" not in shown


@pytest.mark.parametrize("name", ["", "a" * 256, "a\nb", "a\x7f", "\ud800"])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        check_account_name(name)


def test_names_that_people_have_are_taken() -> None:
    for name in ("ann", "Björn", "ann@example.org", "CN=a,O=b", "a" * 255):
        check_account_name(name)


@pytest.mark.parametrize(
    ("access_list", "error"),
    [
        (AccessList(""), InvalidName),
        (AccessList("__brokerd.audit", users={"ann": READ}), InvalidName),
        (AccessList("__brokerd.", prefix=True, public=True), InvalidName),
        (AccessList("t", users={"ann": 0}), InvalidRequest),
        (AccessList("t", users={"ann": MONITOR}), InvalidRequest),
        (AccessList("t", roles={"": READ}), InvalidName),
        (AccessList("t", users={str(n): READ for n in range(GRANTS_MAX + 1)}), LimitExceeded),
    ],
)
def test_a_list_that_cannot_be_is_refused(
    access_list: AccessList, error: type[BrokerdError]
) -> None:
    with pytest.raises(error):
        check_access_list(access_list)


def test_the_empty_prefix_is_that_of_all_topics() -> None:
    check_access_list(AccessList("", prefix=True, roles={"billing": READ | WRITE | ADMIN}))
    check_access_list(AccessList("__brokerd", prefix=True))


def test_passwords_labels_and_roles_have_limits() -> None:
    check_password("x" * PASSWORD_BYTES_MAX)
    check_label("")
    for password in ("", "x" * (PASSWORD_BYTES_MAX + 1)):
        with pytest.raises(InvalidRequest):
            check_password(password)
    for label in ("x" * 256, "\n"):
        with pytest.raises(InvalidRequest):
            check_label(label)
    with pytest.raises(LimitExceeded):
        check_roles(("r",) * (ROLES_MAX + 1))
    with pytest.raises(InvalidName):
        check_roles(("",))
