"""How a connection becomes somebody while security is on, and what those are told who fail."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

from brokerd.errors import BrokerdError, Denied, LoginFailed, LoginThrottled
from brokerd.security.access import READ, Access
from brokerd.security.directory import Policy
from brokerd.security.keys import new_key
from brokerd.security.login import AccountGuard
from brokerd.security.passwords import (
    RUNNING_MAX,
    SOURCE_MAX,
    WAITING_MAX,
    Passwords,
    hash_password,
)
from brokerd.security.throttle import Rate, Throttle
from tests.security.hall import Hall
from tests.security.test_passwords import Elsewhere

PEER = "192.0.2.1"
HASH = hash_password("right", bytes(16))
SECOND_US = 1_000_000


class Door(Hall):
    """A hall with a guard; passwords are checked when `check` says."""

    def __init__(
        self, policy: Policy | None = None, throttle: Throttle | None = None, **options: Any
    ) -> None:
        super().__init__(policy)
        self.now_us = 0
        self.elsewhere = Elsewhere()
        self.guard = AccountGuard(
            self.directory,
            Passwords(self.elsewhere.submit, os.urandom),
            throttle or Throttle(Rate(1000, SECOND_US), Rate(1000, SECOND_US)),
            self.told.append,
            lambda: self.now_us,
            options.pop("principals", {}),
            options.pop("certificates", {}),
            options.pop("blipmq_keys", ()),
        )

    def log_in(self, name: str, password: str, peer: str = PEER) -> Access | BrokerdError:
        """Who somebody is then, or why not."""
        told: list[Access | BrokerdError] = []

        def done(access: Access | None, error: BrokerdError | None) -> None:
            assert (access is None) != (error is None)
            told.append(access or error)  # type: ignore[arg-type]

        self.guard.log_in("flymq", peer, name, password, done)
        self.check()
        (found,) = told
        return found

    def check(self) -> int:
        """Check all the passwords that wait, and return how many were hashed."""
        hashed = 0
        for work, done in self.elsewhere.work:
            found = work()
            hashed += found is not None
            done(found, None)
        self.elsewhere.work.clear()
        return hashed

    def key(self, owner: str) -> str:
        made = new_key(owner, "", 0, os.urandom)
        self.directory.put_key(made.key)
        return made.secret


def test_a_connection_is_the_principal_of_its_listener_and_else_anonymous() -> None:
    door = Door(principals={"mega": "ann", "blipmq": "bob"})
    door.add("ann", "consumer")
    assert door.guard.auth
    ann = door.guard.begin("mega", PEER)
    assert (ann.name, ann.wire_format, ann.peer, ann.is_known) == ("ann", "mega", PEER, True)
    ann.require(READ, "t")
    for form in ("flymq", "blipmq", "admin"):
        assert door.guard.begin(form, PEER).name == ""


def test_a_right_password_lets_in() -> None:
    door = Door()
    door.add("ann", "consumer", password=HASH)
    ann = door.log_in("ann", "right")
    assert isinstance(ann, Access)
    assert (ann.name, ann.roles) == ("ann", ("consumer",))
    assert door.trail() == [("auth.success", "ann", "ann", "password", "success")]


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("ann", "wrong"),
        ("ann", ""),
        ("ann", "right" + "x" * 10_000),
        ("nobody", "right"),
        ("", ""),
        ("\ud800", "\ud800"),
        ("disabled", "wrong"),
        ("passwordless", ""),
        ("passwordless", "right"),
    ],
)
def test_whatever_is_wrong_is_told_in_the_same_words_after_the_same_work(
    name: str, password: str
) -> None:
    """One hash is made for each, so that neither text nor time tells which names exist."""
    door = Door()
    door.add("ann", password=HASH)
    door.add("disabled", password=HASH, enabled=False)
    door.add("passwordless")
    work: list[object] = []
    submit = door.elsewhere.submit
    door.guard._passwords._submit = lambda *job: (work.append(job), submit(*job))  # type: ignore
    error = door.log_in(name, password)
    assert isinstance(error, LoginFailed)
    assert str(error) == "invalid username or password"
    assert len(work) == 1
    shown = name.replace("\ud800", "?")
    assert door.trail() == [("auth.failure", shown, shown, "password", "failure")]


def test_only_who_knows_the_password_hears_that_the_account_is_disabled() -> None:
    door = Door()
    door.add("ann", password=HASH, enabled=False)
    error = door.log_in("ann", "right")
    assert isinstance(error, LoginFailed)
    assert str(error) == "user account is disabled"


def test_the_right_password_of_a_disabled_account_counts_as_a_failure() -> None:
    """Or its answer would be a guess for free."""
    door = Door(throttle=Throttle(Rate(1000, SECOND_US), Rate(2, SECOND_US)))
    door.add("ann", password=HASH, enabled=False)
    kinds = [type(door.log_in("ann", "right")) for _ in range(3)]
    assert kinds == [LoginFailed, LoginFailed, LoginThrottled]


@pytest.mark.parametrize("change", ["deleted", "password", "disabled"])
def test_what_changes_while_a_password_is_checked_counts(change: str) -> None:
    """A login that was begun before an account was taken away does not come through after it."""
    door = Door()
    door.add("ann", password=HASH)
    told: list[BrokerdError | None] = []
    door.guard.log_in("flymq", PEER, "ann", "right", lambda _, error: told.append(error))
    if change == "deleted":
        door.directory.remove_account("ann")
    elif change == "password":
        door.add("ann", password=hash_password("other", bytes(16)))
    else:
        door.add("ann", password=HASH, enabled=False)
    door.check()
    assert isinstance(told[0], LoginFailed)


def test_failures_are_throttled_alike_for_names_that_exist_and_that_do_not() -> None:
    texts = {}
    for name in ("ann", "nobody"):
        door = Door(throttle=Throttle(Rate(100, SECOND_US), Rate(3, SECOND_US)))
        door.add("ann", password=HASH)
        texts[name] = [str(door.log_in(name, "wrong")) for _ in range(5)]
        assert isinstance(door.log_in(name, "right"), LoginThrottled)
        assert door.told[-1].details == {"reason": "throttled"}
    assert texts["ann"] == texts["nobody"]


def test_success_is_not_throttled_and_time_heals() -> None:
    """Nor is who has been in from there, by what others try from elsewhere."""
    door = Door(throttle=Throttle(Rate(100, SECOND_US), Rate(2, SECOND_US)))
    door.add("ann", password=HASH)
    for _ in range(10):
        assert isinstance(door.log_in("ann", "right"), Access)
    for _ in range(2):
        assert isinstance(door.log_in("ann", "wrong", "192.0.2.66"), LoginFailed)
    assert isinstance(door.log_in("ann", "right", "192.0.2.2"), LoginThrottled)
    assert isinstance(door.log_in("ann", "right"), Access)
    door.now_us = 2 * SECOND_US
    assert isinstance(door.log_in("ann", "right", "192.0.2.2"), Access)


def test_a_flood_of_logins_is_refused_and_none_of_it_counts_as_a_failure() -> None:
    most = RUNNING_MAX + SOURCE_MAX
    door = Door(throttle=Throttle(Rate(most + 1, SECOND_US), Rate(1000, SECOND_US)))
    door.add("ann", password=HASH)
    told: list[BrokerdError | None] = []
    for _ in range(most + 5):
        door.guard.log_in("flymq", PEER, "ann", "right", lambda _, error: told.append(error))
    assert [str(error) for error in told] == ["too many logins at once; try again in a second"] * 5
    assert all(isinstance(error, LoginThrottled) for error in told)


def test_the_networks_of_successful_logins_are_known() -> None:
    door = Door()
    door.add("ann", "consumer", password=HASH)
    assert isinstance(door.log_in("ann", "wrong", "192.0.2.1"), LoginFailed)
    assert isinstance(door.log_in("ann", "right", "2001:db8::1"), Access)
    assert not door.guard.knows("192.0.2.1") and door.guard.knows("2001:db8::/64")
    assert door.guard.log_in_with_key("admin", "192.0.2.3", door.key("ann")).name == "ann"
    assert door.guard.knows("192.0.2.3")


def test_an_address_that_has_logged_in_does_not_wait_behind_a_flood() -> None:
    door = Door()
    door.add("ann", password=HASH)
    assert isinstance(door.log_in("ann", "right"), Access)
    order: list[str] = []
    for number in range(100):
        peer = f"198.51.100.{number}"
        door.guard.log_in("flymq", peer, f"n{number}", "x", lambda *_: order.append("flood"))
    door.guard.log_in("flymq", PEER, "ann", "right", lambda *_: order.append("ann"))
    door.check()
    assert len(order) == 101 and order.index("ann") == RUNNING_MAX


def test_a_key_is_its_owner_until_it_is_revoked_or_the_owner_is_not_let_in() -> None:
    door = Door()
    door.add("ann", "consumer")
    key = door.key("ann")
    assert door.guard.log_in_with_key("admin", PEER, key).name == "ann"
    door.add("ann", "consumer", enabled=False)
    with pytest.raises(LoginFailed, match="invalid API key"):
        door.guard.log_in_with_key("admin", PEER, key)
    door.add("ann", "consumer")
    door.directory.remove_key(key.split("_")[1])
    with pytest.raises(LoginFailed, match="invalid API key"):
        door.guard.log_in_with_key("admin", PEER, key)
    assert [line[0] for line in door.trail()] == ["auth.success", *["auth.failure"] * 2]
    assert {event.details["key"] for event in door.told} == {key.split("_")[1]}


def test_a_revoked_key_ends_what_it_let_in_and_nothing_else() -> None:
    """Open connections may do nothing at their next request; those of another key go on."""
    door = Door(Policy(allow_anonymous=True, default_public=True))
    door.add("ann", "admin", password=HASH)
    leaked, kept = door.key("ann"), door.key("ann")
    thief = door.guard.log_in_with_key("blipmq", PEER, leaked)
    ann = door.guard.log_in_with_key("blipmq", PEER, kept)
    by_password = door.log_in("ann", "right")
    assert isinstance(by_password, Access)
    thief.require(READ, "t")
    door.directory.remove_key(leaked.split("_")[1])
    for call in (thief.require_known, lambda: thief.require(READ, "t")):
        with pytest.raises(Denied):
            call()
    assert not thief.may(READ, "t") and thief.permissions == 0
    ann.require(READ, "t")
    by_password.require(READ, "t")


def test_a_changed_password_ends_what_the_former_one_let_in_and_nothing_else() -> None:
    door = Door(Policy(allow_anonymous=True, default_public=True), principals={"mega": "ann"})
    door.add("ann", "admin", password=HASH)
    thief = door.log_in("ann", "right")
    others = [
        door.guard.begin("mega", PEER),
        door.guard.by_certificate("mega", PEER, "CN=ann", "ann"),
        door.guard.log_in_with_key("blipmq", PEER, door.key("ann")),
    ]
    assert isinstance(thief, Access)
    thief.require(READ, "t")
    door.add("ann", "admin", password=hash_password("other", bytes(16)))
    with pytest.raises(Denied):
        thief.require(READ, "t")
    door.add("ann", "consumer", password=door.directory.accounts["ann"].password)
    assert not thief.is_known
    others.append(door.log_in("ann", "other"))  # type: ignore[arg-type]
    for access in others:
        access.require(READ, "t")


def test_what_is_no_key_does_not_get_into_the_trail() -> None:
    """People give a password where the key belongs; only the shape of a key shows its id."""
    door = Door()
    for text in ("my password, very long indeed", "bk_secret-secret-se_x", "bk_0123456789abcdef_x"):
        with pytest.raises(LoginFailed):
            door.guard.log_in_with_key("blipmq", PEER, text)
    shown = [event.details.get("key") for event in door.told]
    assert shown == [None, None, "0123456789abcdef"]


def test_keys_that_nobody_has_are_throttled_by_address() -> None:
    door = Door(throttle=Throttle(Rate(3, SECOND_US), Rate(1, SECOND_US)))
    door.add("ann")
    key = door.key("ann")
    for _ in range(10):
        door.guard.log_in_with_key("blipmq", PEER, key)
    for _ in range(3):
        with pytest.raises(LoginFailed):
            door.guard.log_in_with_key("blipmq", PEER, "a guess")
    with pytest.raises(LoginThrottled):
        door.guard.log_in_with_key("blipmq", PEER, "another guess")
    door.guard.log_in_with_key("blipmq", "192.0.2.2", key)


def test_a_right_key_is_let_in_whatever_wrong_ones_come_from_its_address() -> None:
    """Nobody guesses 32 random bytes. A key of the configuration may be short: it waits too."""
    door = Door(throttle=Throttle(Rate(3, SECOND_US), Rate(1, SECOND_US)), blipmq_keys=("short",))
    door.add("ann")
    key = door.key("ann")
    for _ in range(3):
        with pytest.raises(LoginFailed):
            door.guard.log_in_with_key("blipmq", PEER, "a guess")
    assert door.guard.log_in_with_key("blipmq", PEER, key).name == "ann"
    for guess in ("short", key + "x"):
        with pytest.raises(LoginThrottled):
            door.guard.log_in_with_key("blipmq", PEER, guess)


def test_blipmqs_own_keys_are_its_principal_and_nothing_elsewhere() -> None:
    door = Door(principals={"blipmq": "robots"}, blipmq_keys=("one", "two"))
    door.add("robots", "producer")
    for key in ("one", "two"):
        assert door.guard.log_in_with_key("blipmq", PEER, key).name == "robots"
        with pytest.raises(LoginFailed):
            door.guard.log_in_with_key("admin", PEER, key)
    with pytest.raises(LoginFailed):
        door.guard.log_in_with_key("blipmq", PEER, "three")


def test_a_certificate_is_the_account_that_it_names_or_else_who_came_in_without() -> None:
    door = Door(principals={"mega": "bob"})
    door.add("ann", "consumer")
    door.add("bob")
    assert door.guard.by_certificate("mega", PEER, "CN=ann,O=x", "ann").name == "ann"
    assert door.guard.by_certificate("mega", PEER, "O=x", "").name == "bob"
    unknown = door.guard.by_certificate("mega", PEER, "CN=eve", "eve")
    assert unknown.name == "eve"
    with pytest.raises(Denied):
        unknown.require_known()
    mapped = Door(certificates={"CN=ann,O=x": "bob"})
    assert mapped.guard.by_certificate("mega", PEER, "CN=ann,O=x", "ann").name == "bob"
    assert mapped.guard.by_certificate("mega", PEER, "CN=bob,O=y", "bob").name == ""


def test_a_certificate_that_lets_nobody_in_is_told_of_with_the_reason() -> None:
    """Else nobody finds out why its client is anonymous."""
    told: list[tuple[str, ...]] = []
    door = Door(certificates={"O=x,CN=ann": "ann", "CN=bob,O=x": "bob"})
    door.guard._log_certificate = lambda *line: told.append(line)
    door.add("ann")
    for subject in ("CN=ann,O=x", "CN=eve,O=x", "CN=bob,O=x", "O=x,CN=ann"):
        door.guard.by_certificate("mega", PEER, subject, "")
    door.add("bob", enabled=False)
    door.guard.by_certificate("mega", PEER, "CN=bob,O=x", "bob")
    door.guard._certificates = {}
    door.guard.by_certificate("mega", PEER, "O=x", "")
    assert [line[:2] for line in told] == [("mega", PEER)] * 5
    assert [line[2:] for line in told] == [
        ("CN=ann,O=x", "tls.principals has its parts in another order: O=x,CN=ann"),
        ("CN=eve,O=x", "tls.principals does not name it"),
        ("CN=bob,O=x", "there is no account bob"),
        ("CN=bob,O=x", "the account bob is disabled"),
        ("O=x", "its subject has no common name, or several"),
    ]


def test_a_change_of_accounts_is_seen_in_the_version() -> None:
    door = Door()
    before = door.guard.version
    door.add("ann")
    assert door.guard.version > before


def many(door: Door, count: int, name: str, password: str, peer: str = PEER) -> list[Any]:
    """Begin logins, and return where their outcomes will be."""
    told: list[Any] = []
    for _ in range(count):
        door.guard.log_in(
            "flymq", peer, name, password, lambda access, error: told.append(access or error)
        )
    return told


@pytest.mark.parametrize("is_known", [True, False])
def test_right_logins_at_once_are_all_let_in(is_known: bool) -> None:
    """A pool of workers connects again after a break of the network, or a start of the broker."""
    door = Door(throttle=Throttle())
    door.add("ann", password=HASH)
    if is_known:
        assert isinstance(door.log_in("ann", "right"), Access)
    told = many(door, 50, "ann", "right")
    door.check()
    assert [type(one).__name__ for one in told] == ["Principal"] * 50
    assert {event.type for event in door.told} == {"auth.success"}


def test_guesses_at_once_of_one_address_are_as_few_as_one_after_the_other() -> None:
    door = Door(throttle=Throttle())
    told = [many(door, 1, f"n{n}", "guess") for n in range(60)]
    hashed = door.check()
    kinds = Counter(type(one).__name__ for (one,) in told)
    assert kinds == {"LoginFailed": 20, "LoginThrottled": 40} and hashed == 20
    assert len([event for event in door.told if event.details == {"reason": "throttled"}]) == 40


def test_an_address_that_has_failed_too_often_takes_no_place_in_the_queue() -> None:
    door = Door(throttle=Throttle(Rate(1, SECOND_US), Rate(1000, SECOND_US)))
    many(door, 1, "ann", "guess")
    door.check()
    for number in range(RUNNING_MAX):
        many(door, 1, "ann", "guess", f"198.51.100.{number}")
    (refusal,) = many(door, 1, "ann", "guess")
    assert str(refusal) == "too many failed logins; try again in 1 s"


def test_guesses_at_once_of_one_account_are_as_few_as_one_after_the_other() -> None:
    door = Door(throttle=Throttle())
    door.add("ann", password=HASH)
    told = [many(door, 1, "ann", "guess", f"198.51.100.{n}") for n in range(200)]
    hashed = door.check()
    kinds = Counter(type(one).__name__ for (one,) in told)
    assert kinds == {"LoginFailed": 10, "LoginThrottled": 190} and hashed == 10


def test_right_logins_of_one_account_give_no_more_guesses_of_another() -> None:
    """Whatever order they have: a success gives back what it took, and nothing of a failure."""
    door = Door(throttle=Throttle(Rate(20, SECOND_US), Rate(1000, SECOND_US)))
    door.add("ann", password=HASH)
    door.add("eve", password=HASH)
    guesses: list[list[Any]] = []
    own: list[list[Any]] = []
    for _ in range(30):
        guesses.append(many(door, 1, "ann", "guess"))
        own.append(many(door, 1, "eve", "right"))
        door.check()
    kinds = Counter(type(one).__name__ for (one,) in guesses)
    assert kinds == {"LoginFailed": 20, "LoginThrottled": 10}
    assert [isinstance(one, Access) for (one,) in own] == [True] * 19 + [False] * 11
    door = Door(throttle=Throttle(Rate(20, SECOND_US), Rate(1000, SECOND_US)))
    door.add("ann", password=HASH)
    door.add("eve", password=HASH)
    both = [many(door, 1, *who) for _ in range(33) for who in (("ann", "guess"), ("eve", "right"))]
    door.check()
    kinds = Counter(type(one).__name__ for (one,) in both)
    assert kinds["LoginFailed"] == 20 and kinds["Principal"] + kinds["LoginThrottled"] == 46


def test_a_success_that_took_long_gives_back_nothing_of_later_failures() -> None:
    """Or right logins that wait would pay for guesses."""
    door = Door(throttle=Throttle(Rate(3, SECOND_US), Rate(1000, SECOND_US)))
    door.add("eve", password=HASH)
    late = many(door, 1, "eve", "right")
    (slow,) = door.elsewhere.work
    door.elsewhere.work.clear()
    door.now_us = 10 * SECOND_US
    guesses = [many(door, 1, f"n{n}", "guess") for n in range(2)]
    door.check()
    work, done = slow
    done(work(), None)
    assert isinstance(late[0], Access)
    guesses += [many(door, 1, f"m{n}", "guess") for n in range(2)]
    door.check()
    kinds = [type(one).__name__ for (one,) in guesses]
    assert kinds == ["LoginFailed"] * 3 + ["LoginThrottled"]


@pytest.mark.parametrize("by", ["address", "account"])
def test_a_login_waits_while_the_last_free_place_for_a_failure_is_in_doubt(by: str) -> None:
    one, many_ = Rate(1, SECOND_US), Rate(1000, SECOND_US)
    for first in ("right", "wrong"):
        door = Door(throttle=Throttle(one, many_) if by == "address" else Throttle(many_, one))
        door.add("ann", password=HASH)
        told = many(door, 1, "ann", first)
        other = "192.0.2.2" if by == "account" else PEER
        told_then = many(door, 1, "ann", "right", other)
        elsewhere = many(door, 1, "bob", "right", "192.0.2.3")
        assert len(door.elsewhere.work) == 2 and not told_then
        door.check()
        assert isinstance(told[0], Access if first == "right" else LoginFailed)
        assert isinstance(told_then[0], Access if first == "right" else LoginThrottled)
        assert isinstance(elsewhere[0], LoginFailed)


def test_after_a_right_login_the_others_of_its_account_and_address_come_first() -> None:
    door = Door()
    door.add("ann", password=HASH)
    order: list[str] = []
    for number in range(100):
        peer = f"198.51.100.{number}"
        door.guard.log_in("flymq", peer, f"n{number}", "x", lambda *_: order.append("flood"))
        if number < 50:
            door.guard.log_in("flymq", PEER, "ann", "right", lambda *_: order.append("ann"))
    door.check()
    first = order.index("ann")
    assert order.count("ann") == 50
    assert order[: first + 50 + 2 * RUNNING_MAX].count("ann") == 50


def test_a_login_without_a_place_is_no_failure_and_has_an_event_of_its_own() -> None:
    """Its address has too many logins, or another address needs its place."""
    door = Door()
    told = many(door, RUNNING_MAX + SOURCE_MAX + 1, "ann", "guess")
    text = "too many logins at once; try again in a second"
    assert [str(one) for one in told] == [text]
    assert door.trail() == [("auth.refused", "ann", "ann", "password", "failure")]
    assert door.told[0].details == {"reason": "too many logins at once"}
    for number in range(1, WAITING_MAX // SOURCE_MAX):
        many(door, SOURCE_MAX, f"n{number}", "guess", f"198.51.100.{number}")
    assert len(door.told) == 1
    many(door, 1, "new", "guess", "203.0.113.1")
    assert len(door.told) == 2 and door.told[1].type == "auth.refused"
    assert door.told[1].user != "new"


def test_a_key_of_the_configuration_waits_for_no_password_but_is_no_further_guess() -> None:
    door = Door(throttle=Throttle(Rate(1, SECOND_US), Rate(1, SECOND_US)), blipmq_keys=("short",))
    door.add("ann", password=HASH)
    many(door, 1, "ann", "right")
    with pytest.raises(LoginThrottled, match="too many logins at once"):
        door.guard.log_in_with_key("blipmq", PEER, "short")
    assert [event.type for event in door.told] == ["auth.refused"]
    door.check()
    door.guard.log_in_with_key("blipmq", PEER, "short")


def test_a_remembered_password_is_of_no_use_beside_guesses_without_a_verdict() -> None:
    """Or one of many guesses at once would show that it is right before any of them counts."""
    door = Door(throttle=Throttle(Rate(3, SECOND_US), Rate(1000, SECOND_US)))
    door.add("ann", password=HASH)
    assert door.guard.may_skip_check("admin", PEER, "ann")
    many(door, 2, "ann", "guess")
    assert door.guard.may_skip_check("admin", PEER, "ann")
    many(door, 1, "ann", "right")
    assert not door.guard.may_skip_check("admin", PEER, "ann")
    assert door.guard.may_skip_check("admin", "192.0.2.2", "ann")
    door.check()
    assert door.guard.may_skip_check("admin", PEER, "ann")
    many(door, 1, "ann", "guess")
    door.check()
    with pytest.raises(LoginThrottled):
        door.guard.may_skip_check("admin", PEER, "ann")
