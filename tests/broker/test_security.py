"""Accounts, access lists and keys, and what is left of them after a restart."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.broker import BrokerSettings, Congested
from brokerd.broker.security.accounts import Accounts
from brokerd.errors import (
    AccountExists,
    AuthenticationRequired,
    BrokerdError,
    Denied,
    InvalidName,
    InvalidRequest,
    LimitExceeded,
    LoginFailed,
    LoginThrottled,
    NewerFormat,
    NoSpace,
    UnknownAccount,
    UnknownKey,
)
from brokerd.security.access import ADMIN, OPEN, READ, WRITE, Access
from brokerd.security.accounts import AccessList, Account
from brokerd.security.keys import find_key
from brokerd.security.passwords import verify_password
from brokerd.security.principal import Principal
from brokerd.walformat import Entry, EntryKind
from tests.broker.test_audit import AUDITED, ask, fill_disk
from tests.house import House


def somebody(house: House, name: str) -> Access:
    """Who has logged in by this name."""
    return Principal(
        house.broker.accounts.directory, house.broker.audit.record, name, "admin", "192.0.2.1"
    )


def told(call: Callable[..., None], *arguments: Any, **more: Any) -> Account:
    """What ``done`` is given; raises what it is given."""
    results: list[tuple[Account | None, BrokerdError | None]] = []

    def done(account: Account | None, error: BrokerdError | None) -> None:
        results.append((account, error))

    call(*arguments, done, **more)
    ((account, error),) = results
    if error is not None:
        raise error
    assert account is not None
    return account


def create(
    house: House, name: str, *roles: str, password: str = "", by: Access = OPEN, **more: Any
) -> Account:
    return told(house.broker.accounts.create_account, by, name, password, roles, **more)


def change_password(
    house: House, by: Access, name: str, password: str, current: str = ""
) -> Account:
    return told(house.broker.accounts.change_password, by, name, password, current=current)


def everything(accounts: Accounts) -> tuple[object, ...]:
    """All that is to be seen, but for the ids of accounts."""
    return (
        [
            (a.name, a.roles, a.enabled, a.password, a.created_us, a.updated_us)
            for a in accounts.accounts()
        ],
        accounts.access_lists(),
        accounts.keys(),
    )


class TestAccounts:
    def test_an_account_is_as_it_was_made(self) -> None:
        house = House()
        made = create(house, "ann", "consumer", "billing", "consumer", password="secret")
        assert made == house.broker.accounts.account("ann")
        assert made.roles == ("consumer", "billing")
        assert verify_password(made.password, "secret")
        assert made.created_us == made.updated_us == house.broker.time.time_us()
        create(house, "Ada", enabled=False)
        assert [one.name for one in house.broker.accounts.accounts()] == ["Ada", "ann"]
        assert not house.broker.accounts.account("Ada").enabled

    @pytest.mark.parametrize(
        ("name", "password", "roles", "error"),
        [
            ("", "", (), InvalidName),
            ("a\0", "", (), InvalidName),
            ("ann", "", (), AccountExists),
            ("bob", "x" * 1025, (), InvalidRequest),
            ("bob", "", ("",), InvalidName),
        ],
    )
    def test_what_cannot_be_is_refused_and_changes_nothing(
        self, name: str, password: str, roles: tuple[str, ...], error: type[BrokerdError]
    ) -> None:
        house = House()
        create(house, "ann")
        before = everything(house.broker.accounts)
        with pytest.raises(error):
            create(house, name, *roles, password=password)
        assert everything(house.broker.accounts) == before

    def test_an_update_changes_what_it_says_and_nothing_else(self) -> None:
        house = House()
        made = create(house, "ann", "consumer", password="secret")
        house.pass_time(1)
        accounts = house.broker.accounts
        changed = accounts.update_account(OPEN, "ann", enabled=False)
        assert (changed.roles, changed.enabled) == (("consumer",), False)
        assert (changed.password, changed.created_us) == (made.password, made.created_us)
        assert changed.updated_us > made.updated_us
        assert accounts.update_account(OPEN, "ann", roles=[]).roles == ()
        with pytest.raises(UnknownAccount):
            accounts.update_account(OPEN, "bob")
        with pytest.raises(InvalidName):
            accounts.update_account(OPEN, "ann", roles=["\n"])

    def test_who_is_connected_keeps_up_with_the_account(self) -> None:
        house = House()
        create(house, "ann", "consumer")
        ann = somebody(house, "ann")
        ann.require(READ, "t")
        house.broker.accounts.update_account(OPEN, "ann", roles=["producer"])
        ann.require(WRITE, "t")
        house.broker.accounts.delete_account(OPEN, "ann")
        create(house, "ann", "admin")
        with pytest.raises(Denied):
            ann.require(WRITE, "t")

    def test_a_deleted_account_takes_its_keys_along(self) -> None:
        house = House()
        create(house, "ann")
        create(house, "bob")
        accounts = house.broker.accounts
        accounts.make_key(OPEN, "ann")
        kept = accounts.make_key(OPEN, "bob").key
        accounts.set_access_list(OPEN, AccessList("t", users={"ann": READ}))
        accounts.delete_account(OPEN, "ann")
        assert accounts.keys() == [kept]
        assert accounts.access_list("t") is not None
        with pytest.raises(UnknownAccount):
            accounts.delete_account(OPEN, "ann")
        with pytest.raises(InvalidRequest, match="cannot delete your own account"):
            accounts.delete_account(somebody(house, "bob"), "bob")

    def test_there_is_a_limit(self) -> None:
        house = House()
        house.broker.accounts._each_max = 1  # a hundred thousand take long to make
        accounts = house.broker.accounts
        create(house, "ann")
        accounts.make_key(OPEN, "ann")
        accounts.set_access_list(OPEN, AccessList("t"))
        with pytest.raises(LimitExceeded):
            create(house, "bob")
        with pytest.raises(LimitExceeded):
            accounts.make_key(OPEN, "ann")
        with pytest.raises(LimitExceeded):
            accounts.set_access_list(OPEN, AccessList("u"))
        accounts.set_access_list(OPEN, AccessList("t", public=True))
        accounts.update_account(OPEN, "ann", roles=["admin"])


class TestLastAdministrator:
    """Nobody locks himself and everybody else out, whatever he changes."""

    def refused(self, call: Callable[[], object]) -> None:
        with pytest.raises(InvalidRequest, match="no administrator could log in; give another"):
            call()

    def test_the_last_one_is_neither_disabled_nor_stripped(self) -> None:
        house = House()
        accounts = house.broker.accounts
        create(house, "root", "admin", password="secret")
        create(house, "passwordless", "admin")
        create(house, "disabled", "admin", password="secret", enabled=False)
        create(house, "ann", "producer", password="secret")
        root = somebody(house, "root")
        before = everything(accounts)
        self.refused(lambda: accounts.update_account(root, "root", enabled=False))
        self.refused(lambda: accounts.update_account(root, "root", roles=["producer"]))
        assert everything(accounts) == before
        accounts.update_account(root, "root", roles=["producer", "admin"])
        accounts.update_account(root, "ann", roles=["admin"])
        accounts.update_account(root, "root", enabled=False)

    def test_two_that_disable_one_another_at_the_same_time_do_not_both_go(self) -> None:
        """Each was permitted to before the other's request was carried out."""
        house = House()
        accounts = house.broker.accounts
        for name in ("one", "other"):
            create(house, name, "admin", password="secret")
        one, other = somebody(house, "one"), somebody(house, "other")
        accounts.update_account(one, "other", enabled=False)
        self.refused(lambda: accounts.update_account(other, "one", enabled=False))
        self.refused(lambda: accounts.delete_account(other, "one"))

    def test_the_last_key_of_the_last_one_is_not_revoked_before_there_is_another(self) -> None:
        house = House()
        accounts = house.broker.accounts
        create(house, "root", "admin")
        leaked = accounts.make_key(OPEN, "root").key.key_id
        record = house.broker.audit.record
        root = Principal(accounts.directory, record, "root", "admin", "192.0.2.1", leaked)
        self.refused(lambda: accounts.revoke_key(root, leaked))
        accounts.make_key(root, "root")
        accounts.revoke_key(root, leaked)

    def test_who_came_without_password_and_key_can_come_again(self) -> None:
        """By a certificate, or by a listener."""
        house = House()
        accounts = house.broker.accounts
        create(house, "root", "admin")
        create(house, "other", "admin", password="secret")
        root = somebody(house, "root")
        accounts.update_account(root, "other", enabled=False)
        accounts.delete_account(root, "other")
        self.refused(lambda: accounts.update_account(root, "root", enabled=False))

    def test_while_security_is_off_everything_can_be_changed(self) -> None:
        house = House()
        create(house, "root", "admin", password="secret")
        house.broker.accounts.update_account(OPEN, "root", enabled=False)
        house.broker.accounts.delete_account(OPEN, "root")


class TestPasswords:
    def test_ones_own_needs_the_current_one(self) -> None:
        house = House()
        create(house, "ann", "admin", password="old")
        ann = somebody(house, "ann")
        for current in ("", "wrong"):
            with pytest.raises(LoginFailed, match="invalid current password"):
                change_password(house, ann, "ann", "new", current)
        changed = change_password(house, ann, "ann", "new", "old")
        assert verify_password(changed.password, "new")

    def test_anybody_elses_needs_admin(self) -> None:
        house = House()
        create(house, "ann", "producer", password="old")
        create(house, "root", "admin")
        create(house, "bob", "consumer")
        with pytest.raises(Denied):
            change_password(house, somebody(house, "bob"), "ann", "new", "old")
        with pytest.raises(AuthenticationRequired):
            change_password(house, somebody(house, ""), "ann", "new", "old")
        assert verify_password(
            change_password(house, somebody(house, "root"), "ann", "new").password, "new"
        )
        with pytest.raises(UnknownAccount):
            change_password(house, somebody(house, "root"), "nobody", "new")

    def test_who_may_not_does_not_learn_which_accounts_there_are(self) -> None:
        house = House()
        create(house, "ann", password="old")
        create(house, "bob")
        texts = set()
        for name in ("ann", "nobody"):
            with pytest.raises(Denied) as caught:
                change_password(house, somebody(house, "bob"), name, "new", "old")
            texts.add(str(caught.value))
        assert len(texts) == 1

    def test_a_disabled_account_changes_no_password(self) -> None:
        house = House()
        create(house, "ann", password="old", enabled=False)
        with pytest.raises(Denied):
            change_password(house, somebody(house, "ann"), "ann", "new", "old")

    @pytest.mark.parametrize("password", ["", "x" * 1025])
    def test_no_password_is_none(self, password: str) -> None:
        house = House()
        create(house, "ann", password="old")
        for by, current in ((OPEN, ""), (somebody(house, "ann"), "old")):
            with pytest.raises(InvalidRequest):
                change_password(house, by, "ann", password, current)

    def test_the_current_one_cannot_be_found_out_by_trying(self) -> None:
        """Who has taken over a connection has few guesses."""
        house = House()
        create(house, "ann", password="old")
        ann = somebody(house, "ann")
        with pytest.raises(LoginThrottled):
            for _ in range(30):
                with pytest.raises(LoginFailed):
                    change_password(house, ann, "ann", "new", "guess")
        house.pass_time(60, step=30)
        for number in range(30):
            change_password(house, ann, "ann", f"{number + 1}", f"{number}" if number else "old")

    def test_what_happens_while_a_password_is_hashed_counts(self) -> None:
        """The password of an account that is gone meanwhile, or that was made meanwhile."""
        house = House()
        accounts = house.broker.accounts
        create(house, "ann")
        waiting: list[Callable[[], None]] = []
        accounts.passwords._submit = lambda work, done: waiting.append(lambda: done(work(), None))
        errors: list[BrokerdError | None] = []
        accounts.change_password(OPEN, "ann", "new", lambda _, error: errors.append(error))
        accounts.create_account(OPEN, "bob", "x", (), lambda _, error: errors.append(error))
        accounts.create_account(OPEN, "bob", "y", (), lambda _, error: errors.append(error))
        accounts.delete_account(OPEN, "ann")
        assert errors == []
        for one in waiting:
            one()
        assert [type(error) for error in errors] == [UnknownAccount, type(None), AccountExists]
        assert verify_password(accounts.account("bob").password, "x")

    def test_the_current_password_must_still_be_the_current_one(self) -> None:
        """An administrator who changes it meanwhile is not overruled by who knew the old one."""
        house = House()
        accounts = house.broker.accounts
        create(house, "ann", password="old")
        waiting: list[Callable[[], None]] = []
        accounts.passwords._submit = lambda work, done: waiting.append(lambda: done(work(), None))
        errors: list[BrokerdError | None] = []

        def done(_: Account | None, error: BrokerdError | None) -> None:
            errors.append(error)

        accounts.change_password(OPEN, "ann", "by an administrator", done)
        accounts.change_password(somebody(house, "ann"), "ann", "new", done, "old")
        for one in waiting:
            one()
        assert [type(error) for error in errors] == [type(None), LoginFailed]
        assert verify_password(accounts.account("ann").password, "by an administrator")

    def logged_in(self, house: House, name: str) -> Access:
        """Who came by the password that the account has now."""
        accounts = house.broker.accounts
        password = accounts.account(name).password
        record = house.broker.audit.record
        return Principal(accounts.directory, record, name, "flymq", "192.0.2.1", password=password)

    def test_who_changes_his_own_stays_and_his_other_connections_do_not(self) -> None:
        house = House()
        create(house, "ann", "consumer", password="old")
        create(house, "root", "admin")
        here, elsewhere = self.logged_in(house, "ann"), self.logged_in(house, "ann")
        change_password(house, here, "ann", "new", "old")
        here.require(READ, "t")
        with pytest.raises(Denied):
            elsewhere.require(READ, "t")
        change_password(house, somebody(house, "root"), "ann", "newer")
        with pytest.raises(Denied):
            here.require(READ, "t")

    def test_who_lost_his_login_while_he_changes_the_password_changes_nothing(self) -> None:
        """An administrator's change in between counts, not that of who knew the old one."""
        house = House()
        accounts = house.broker.accounts
        create(house, "ann", password="old")
        thief = self.logged_in(house, "ann")
        waiting: list[Callable[[], None]] = []
        errors: list[BrokerdError | None] = []
        accounts.passwords._submit = lambda work, done: waiting.append(lambda: done(work(), None))

        def done(_: Account | None, error: BrokerdError | None) -> None:
            errors.append(error)

        accounts.change_password(thief, "ann", "the thief's", done, "old")
        accounts.change_password(OPEN, "ann", "by an administrator", done)
        for _ in range(3):  # the thief's is checked, the other made, the thief's made
            waiting.pop(0)()
        assert [type(error) for error in errors] == [type(None), Denied]
        assert verify_password(accounts.account("ann").password, "by an administrator")

    @pytest.mark.parametrize("meanwhile", ["reset", "made anew", "disabled"])
    def test_one_who_came_without_a_password_overrules_nobody_either(self, meanwhile: str) -> None:
        """Such as by a certificate: what an administrator does while he waits is what holds."""
        house = House()
        accounts = house.broker.accounts
        create(house, "ann", password="old")
        ann = somebody(house, "ann")
        waiting, errors = self.slowly(house)

        def done(_: Account | None, error: BrokerdError | None) -> None:
            errors.append(error)

        accounts.change_password(ann, "ann", "the thief's", done, "old")
        waiting.pop()()
        if meanwhile == "reset":
            accounts.change_password(OPEN, "ann", "by an administrator", done)
            waiting.pop()()
        elif meanwhile == "made anew":
            accounts.delete_account(OPEN, "ann")
            create(house, "ann", "admin")
        else:
            accounts.update_account(OPEN, "ann", enabled=False)
        before = everything(accounts)
        waiting.pop()()
        assert isinstance(errors[-1], LoginFailed if meanwhile == "reset" else Denied)
        assert everything(accounts) == before

    @pytest.mark.parametrize("meanwhile", ["deleted", "no administrator any more"])
    def test_what_an_administrator_asked_for_does_not_come_about_when_he_is_none(
        self, meanwhile: str
    ) -> None:
        """However many passwords were waiting to be hashed."""
        house = House()
        accounts = house.broker.accounts
        for name, role in (("ann", "consumer"), ("mole", "admin"), ("root", "admin")):
            create(house, name, role, password="old")
        mole = somebody(house, "mole")
        waiting, errors = self.slowly(house)

        def done(_: Account | None, error: BrokerdError | None) -> None:
            errors.append(error)

        for number in range(20):
            accounts.create_account(mole, f"m{number}", "x", ("admin",), done)
        accounts.change_password(mole, "ann", "x", done)
        if meanwhile == "deleted":
            accounts.delete_account(OPEN, "mole")
        else:
            accounts.update_account(OPEN, "mole", roles=("consumer",))
        before = everything(accounts)
        for one in waiting:
            one()
        assert [type(error) for error in errors] == [Denied] * 21
        assert everything(accounts) == before

    def test_nor_does_what_waited_for_room_in_the_log(self) -> None:
        """He was asked before; until there is room, the same is tried again and again."""
        house = House()
        accounts = house.broker.accounts
        roles = {"ann": "consumer", "mole": "admin", "root": "admin", "rita": "admin"}
        for name, role in roles.items():
            create(house, name, role, password="old")
        key = accounts.make_key(OPEN, "root").key
        mole = somebody(house, "mole")
        accounts.delete_account(OPEN, "mole")
        before = everything(accounts)
        for change in (
            lambda: accounts.update_account(mole, "ann", roles=("admin",)),
            lambda: accounts.delete_account(mole, "root"),
            lambda: accounts.make_key(mole, "root"),
            lambda: accounts.revoke_key(mole, key.key_id),
            lambda: accounts.set_access_list(mole, AccessList("t", public=True)),
        ):
            with pytest.raises(Denied):
                change()
        assert everything(accounts) == before

    def test_a_password_given_to_an_account_is_not_that_of_its_successor(self) -> None:
        house = House()
        accounts = house.broker.accounts
        create(house, "ann", password="old")
        waiting, errors = self.slowly(house)
        accounts.change_password(OPEN, "ann", "new", lambda _, error: errors.append(error))
        accounts.delete_account(OPEN, "ann")
        create(house, "ann", "admin")
        waiting.pop()()
        assert [type(error) for error in errors] == [UnknownAccount]
        assert accounts.account("ann").password == ""

    @staticmethod
    def slowly(house: House) -> tuple[list[Callable[[], None]], list[BrokerdError | None]]:
        """Passwords that are hashed when the test says; and a list for errors."""
        waiting: list[Callable[[], None]] = []
        house.broker.accounts.passwords._submit = lambda work, done: waiting.append(
            lambda: done(work(), None)
        )
        return waiting, []

    def test_while_the_log_has_no_room_the_change_waits(self) -> None:
        house = House()
        group_commit = house.broker.group_commit
        admit_events, calls = group_commit.admit_events, []

        def congested_once(size: int) -> None:
            calls.append(size)
            if len(calls) == 1:
                raise Congested("log space is being allocated; try again")
            admit_events(size)

        group_commit.admit_events = congested_once  # type: ignore[method-assign]
        results: list[Account | None] = []
        house.broker.accounts.create_account(
            OPEN, "ann", "x", (), lambda account, _: results.append(account)
        )
        assert results == []
        group_commit._retry_congested()
        assert results == [house.broker.accounts.account("ann")]


class TestLists:
    def test_a_list_takes_the_place_of_the_former_one(self) -> None:
        accounts = House().broker.accounts
        one = AccessList("t", users={"ann": READ}, roles={"r": WRITE | ADMIN})
        other = AccessList("t", public=True)
        prefix = AccessList("t", prefix=True, users={"bob": READ})
        accounts.set_access_list(OPEN, one)
        assert accounts.access_list("t") == one
        accounts.set_access_list(OPEN, prefix)
        accounts.set_access_list(OPEN, other)
        accounts.set_access_list(OPEN, AccessList("a"))
        assert accounts.access_lists() == [AccessList("a"), other, prefix]
        assert accounts.access_list("t", True) == prefix
        assert accounts.delete_access_list(OPEN, "t")
        assert not accounts.delete_access_list(OPEN, "t")
        assert accounts.access_list("t") is None
        assert accounts.access_list("t", True) == prefix

    def test_a_list_that_cannot_be_is_refused(self) -> None:
        accounts = House().broker.accounts
        with pytest.raises(InvalidName):
            accounts.set_access_list(OPEN, AccessList(""))
        assert accounts.access_lists() == []


class TestKeys:
    def test_a_key_is_shown_once_and_gone_when_it_is_revoked(self) -> None:
        house = House()
        accounts = house.broker.accounts
        create(house, "ann")
        create(house, "bob")
        made = accounts.make_key(OPEN, "ann", "laptop")
        other = accounts.make_key(OPEN, "bob")
        assert find_key(accounts.directory.keys, made.secret) == made.key
        assert (made.key.owner, made.key.label) == ("ann", "laptop")
        assert accounts.keys() == [made.key, other.key]
        assert accounts.keys("bob") == [other.key]
        accounts.revoke_key(OPEN, made.key.key_id)
        assert find_key(accounts.directory.keys, made.secret) is None
        with pytest.raises(UnknownKey):
            accounts.revoke_key(OPEN, made.key.key_id)
        with pytest.raises(UnknownAccount):
            accounts.make_key(OPEN, "nobody")
        with pytest.raises(InvalidRequest):
            accounts.make_key(OPEN, "ann", "\n")


class TestRestart:
    def fill(self, house: House) -> Accounts:
        accounts = house.broker.accounts
        create(house, "ann", "admin", password="secret")
        create(house, "bob", enabled=False)
        create(house, "eve")
        accounts.set_access_list(OPEN, AccessList("t", users={"ann": READ}, roles={"r": ADMIN}))
        accounts.set_access_list(OPEN, AccessList("t", prefix=True, public=True))
        accounts.set_access_list(OPEN, AccessList("gone"))
        accounts.make_key(OPEN, "ann", "laptop")
        accounts.revoke_key(OPEN, accounts.make_key(OPEN, "ann").key.key_id)
        accounts.make_key(OPEN, "eve")
        accounts.delete_account(OPEN, "eve")
        accounts.delete_access_list(OPEN, "gone")
        return accounts

    @pytest.mark.parametrize("ends", ["crash", "stop", "both"])
    def test_everything_is_as_it_was(self, ends: str) -> None:
        house = House()
        before = everything(self.fill(house))
        house.run()
        if ends != "crash":
            house.stop()
            house = house.again()
        if ends != "stop":
            house = house.crash()
        assert everything(house.broker.accounts) == before
        assert find_key(house.broker.accounts.directory.keys, "nothing") is None

    def test_what_was_not_durable_is_not_there(self) -> None:
        house = House()
        create(house, "ann")
        house.run()
        create(house, "bob")
        house = house.crash()
        assert [one.name for one in house.broker.accounts.accounts()] == ["ann"]

    def test_who_is_deleted_does_not_come_back_by_a_snapshot(self) -> None:
        """Also when nobody is left of whom a snapshot could tell."""
        house = House()
        create(house, "ann")
        house.broker.accounts.delete_account(OPEN, "ann")
        house.stop()
        house = house.again().crash()
        assert everything(house.broker.accounts) == ([], [], [])

    def test_changes_while_a_snapshot_is_taken_are_kept_once(self) -> None:
        house = House(settings=BrokerSettings(snapshot_interval_bytes=1))
        for number in range(700):  # so that accounts are not captured where the snapshot begins
            house.broker.topics.create(f"other{number}")
        for number in range(30):
            create(house, f"a{number % 7}{number}")
            if number % 3 == 2:
                house.broker.accounts.delete_account(OPEN, f"a{(number - 1) % 7}{number - 1}")
            house.pass_time(0.01, step=0.01)
        assert house.broker.status()["snapshots_written"] > 2
        before = everything(house.broker.accounts)
        house = house.crash()
        assert everything(house.broker.accounts) == before

    def test_more_than_a_chunk_comes_back(self) -> None:
        house = House()
        for number in range(5_100):
            house.broker.accounts.set_access_list(OPEN, AccessList(f"t{number}"))
            if not number % 100:
                house.run()
        house.stop()
        house = house.again()
        assert len(house.broker.accounts.access_lists()) == 5_100

    def test_what_a_newer_version_says_is_refused_and_not_passed_over(self) -> None:
        house = House()
        body = msgpack.packb({"op": "decree"})
        house.broker.group_commit.admit(100)
        house.broker.group_commit.add_entry(Entry(EntryKind.SECURITY, 0, 0, 0, 0, body))
        house.run()
        with pytest.raises(NewerFormat, match="'decree' of security"):
            house.crash()

    def test_a_key_can_be_revoked_on_a_full_disk(self) -> None:
        house = House(settings=AUDITED)
        create(house, "ann")
        key = house.broker.accounts.make_key(OPEN, "ann").key
        house.run()
        fill_disk(house)
        house.broker.accounts.revoke_key(OPEN, key.key_id)
        house.run()
        house = house.crash()
        assert house.broker.accounts.keys() == []

    def test_whoever_uses_up_the_reserve_can_still_be_shut_out(self) -> None:
        """A reader commits until the log takes no more; neither he nor a guest keeps others out."""
        house = House(settings=AUDITED)
        accounts = house.broker.accounts
        create(house, "root", "admin", password="r")
        create(house, "carl", "consumer", password="c")
        key = accounts.make_key(OPEN, "carl").key
        house.broker.topics.create("t")
        house.run()
        fill_disk(house)
        root, carl = somebody(house, "root"), somebody(house, "carl")

        def commit() -> None:
            for number in range(100_000):
                with suppress(Congested):
                    house.broker.groups.commit_offset("t", f"{number % 9}" + "g" * 200, 0, 0)
                house.run()

        with pytest.raises(NoSpace):
            commit()
        for refused in (
            lambda: change_password(house, carl, "carl", "new", "c"),
            lambda: create(house, "bob", by=root),
            lambda: accounts.make_key(root, "carl"),
        ):
            with pytest.raises(NoSpace, match="not even the reserve"):
                refused()
        accounts.set_access_list(root, AccessList("t", False, False, {}, {}))
        accounts.revoke_key(root, key.key_id)
        change_password(house, root, "carl", "by root")
        accounts.update_account(root, "carl", enabled=False)
        house.run()
        house = house.crash()
        assert house.broker.accounts.keys() == []
        assert not house.broker.accounts.account("carl").enabled

    def test_without_any_room_nothing_is_changed(self) -> None:
        house = House()
        create(house, "ann")

        def full(size: int) -> None:
            raise NoSpace("the disk is full")

        house.broker.group_commit.admit_events = full  # type: ignore[method-assign]
        house.broker.group_commit.admit_revocation = full  # type: ignore[method-assign]
        before = everything(house.broker.accounts)
        for change in (
            lambda: house.broker.accounts.update_account(OPEN, "ann", enabled=False),
            lambda: house.broker.accounts.delete_account(OPEN, "ann"),
            lambda: create(house, "bob"),
            lambda: house.broker.accounts.make_key(OPEN, "ann"),
        ):
            with pytest.raises(NoSpace):
                change()
        assert everything(house.broker.accounts) == before


def test_each_change_is_in_the_audit_trail_and_no_secret_is() -> None:
    house = House(settings=AUDITED)
    accounts = house.broker.accounts
    create(house, "root", "admin")
    root = somebody(house, "root")
    create(house, "ann", "consumer", password="hush hush", by=root)
    accounts.update_account(root, "ann", roles=["producer"], enabled=False)
    change_password(house, root, "ann", "hush again")
    accounts.set_access_list(root, AccessList("t", True, users={"ann": READ | WRITE}))
    accounts.delete_access_list(root, "t", True)
    made = accounts.make_key(root, "ann", "laptop")
    accounts.revoke_key(root, made.key.key_id)
    accounts.delete_account(root, "ann")
    house.run()
    house = house.crash()
    page = ask(house, user="root")
    assert [(e.type, e.resource, e.details) for e in reversed(page.events)] == [
        ("user.create", "ann", {"roles": "consumer", "enabled": "true"}),
        ("user.update", "ann", {"roles": "producer", "enabled": "false"}),
        ("password.change", "ann", {}),
        ("acl.set", "t*", {"public": "false", "users": "ann:read+write", "roles": ""}),
        ("acl.delete", "t*", {}),
        ("key.create", made.key.key_id, {"owner": "ann", "label": "laptop"}),
        ("key.delete", made.key.key_id, {"owner": "ann", "label": "laptop"}),
        ("user.delete", "ann", {}),
    ]
    assert {(e.client_ip, e.wire_format, e.result) for e in page.events} == {
        ("192.0.2.1", "admin", "success")
    }
    assert "hush" not in repr(page)
    assert made.secret not in repr(page)


_NAMES = st.sampled_from(["ann", "bob", "eve"])
_CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("create"), _NAMES, st.sampled_from(["admin", "r"])),
        st.tuples(st.just("update"), _NAMES, st.sampled_from(["admin", "r"])),
        st.tuples(st.just("delete"), _NAMES, st.just("")),
        st.tuples(st.just("grant"), _NAMES, st.sampled_from(["t", "u"])),
        st.tuples(st.just("ungrant"), _NAMES, st.sampled_from(["t", "u"])),
        st.tuples(st.just("key"), _NAMES, st.just("")),
        st.tuples(st.just("revoke"), _NAMES, st.just("")),
        st.tuples(st.sampled_from(["crash", "stop"]), _NAMES, st.just("")),
    ),
    max_size=25,
)


@given(_CHANGES)
def test_any_changes_and_restarts_leave_what_was_acknowledged(
    changes: list[tuple[str, str, str]],
) -> None:
    house = House()
    for what, name, other in changes:
        accounts = house.broker.accounts
        try:
            if what == "create":
                create(house, name, other)
            elif what == "update":
                accounts.update_account(OPEN, name, roles=[other])
            elif what == "delete":
                accounts.delete_account(OPEN, name)
            elif what == "grant":
                accounts.set_access_list(OPEN, AccessList(other, name == "ann", name == "bob"))
            elif what == "ungrant":
                accounts.delete_access_list(OPEN, other, name == "ann")
            elif what == "key":
                accounts.make_key(OPEN, name)
            elif what == "revoke" and accounts.keys(name):
                accounts.revoke_key(OPEN, accounts.keys(name)[0].key_id)
        except (AccountExists, UnknownAccount):
            continue
        house.run()
        if what in ("crash", "stop"):
            before = everything(accounts)
            if what == "stop":
                house.stop()
                house = house.again()
            else:
                house = house.crash()
            assert everything(house.broker.accounts) == before
