"""What somebody may do, told at each request, also when accounts change meanwhile."""

from __future__ import annotations

import pytest

from brokerd.errors import AuthenticationRequired, BrokerdError, Denied
from brokerd.security.access import ADMIN, ANY, MONITOR, READ, WRITE
from brokerd.security.directory import Policy
from brokerd.security.principal import Principal
from tests.security.hall import Hall


def allowed(principal: Principal, topic: str = "t") -> int:
    """The permissions on a topic that `require` lets pass; the others are refused."""
    found = 0
    for permission in (READ, WRITE, ADMIN):
        try:
            principal.require(permission, topic)
        except BrokerdError:
            assert not principal.may(permission, topic)
        else:
            assert principal.may(permission, topic)
            found |= permission
    return found


@pytest.mark.parametrize(
    ("role", "topics", "server"),
    [
        ("admin", READ | WRITE | ADMIN, READ | WRITE | ADMIN | MONITOR),
        ("producer", WRITE, WRITE),
        ("consumer", READ, READ),
        ("monitor", 0, MONITOR),
        ("guest", 0, 0),
        ("of-our-own", 0, 0),
    ],
)
def test_each_role_may_what_the_page_says(role: str, topics: int, server: int) -> None:
    hall = Hall()
    hall.add("ann", role)
    ann = hall.somebody("ann")
    assert allowed(ann) == topics
    assert ann.permissions == server
    for permission in (READ, WRITE, ADMIN, MONITOR):
        if server & permission:
            ann.require_server(permission)
        else:
            with pytest.raises(Denied):
                ann.require_server(permission)


def test_anonymous_is_asked_to_log_in_and_others_are_refused() -> None:
    """Anonymous might be somebody; who has a name is not told to try another."""
    hall = Hall()
    hall.add("ann")
    for topic in ("there", "not there"):
        with pytest.raises(AuthenticationRequired, match=r"^authentication required$"):
            hall.somebody().require(READ, topic)
        with pytest.raises(Denied, match=r"^unauthorized$"):
            hall.somebody("ann").require(READ, topic)
    with pytest.raises(AuthenticationRequired):
        hall.somebody().require_known()
    with pytest.raises(AuthenticationRequired):
        hall.somebody().require_server(MONITOR)
    with pytest.raises(AuthenticationRequired):
        hall.somebody().require_any("t")
    hall.somebody("ann").require_known()


def test_a_list_is_made_for_nobody_who_could_see_nothing_in_it() -> None:
    """Anonymous may, where he may see public topics."""
    hall = Hall()
    hall.add("ann")
    hall.somebody("ann").require_lists()
    with pytest.raises(AuthenticationRequired):
        hall.somebody().require_lists()
    Hall(Policy(allow_anonymous=True)).somebody().require_lists()


def test_any_permission_lets_one_know_of_a_topic() -> None:
    hall = Hall()
    hall.add("ann")
    ann = hall.somebody("ann")
    with pytest.raises(Denied):
        ann.require_any("t")
    for permission in (READ, WRITE, ADMIN):
        hall.grant("t", {"ann": permission})
        ann.require_any("t")
        assert ann.may(ANY, "t")


def test_each_topic_is_judged_by_itself_in_whatever_order_they_come() -> None:
    """What was allowed on the topic of the request before says nothing of this one."""
    hall = Hall()
    hall.add("ann")
    hall.grant("mine", {"ann": READ | WRITE})
    hall.grant("yours", {"ann": READ})
    ann = hall.somebody("ann")
    for topic, expected in (("mine", READ | WRITE), ("other", 0), ("yours", READ)) * 2:
        assert allowed(ann, topic) == expected
        assert ann.may(ANY, topic) == bool(expected)


def test_admin_over_a_topic_by_a_list_is_not_admin_over_the_broker() -> None:
    hall = Hall()
    hall.add("ann")
    hall.grant("", {"ann": READ | WRITE | ADMIN}, prefix=True)
    ann = hall.somebody("ann")
    assert allowed(ann) == READ | WRITE | ADMIN
    with pytest.raises(Denied):
        ann.require_server(ADMIN)


def test_other_roles_hold_at_the_next_request() -> None:
    """The connection stays open; nobody logs in again."""
    hall = Hall()
    hall.add("ann", "consumer")
    ann = hall.somebody("ann")
    assert allowed(ann) == READ
    hall.add("ann", "producer")
    assert allowed(ann) == WRITE
    assert ann.roles == ("producer",)


def test_a_disabled_account_may_nothing_until_it_is_enabled() -> None:
    """Not even what anonymous may."""
    hall = Hall(Policy(allow_anonymous=True, default_public=True))
    hall.add("ann", "admin")
    ann = hall.somebody("ann")
    hall.add("ann", "admin", enabled=False)
    for somebody in (ann, hall.somebody("ann")):
        assert allowed(somebody) == 0
        assert not somebody.is_known
        assert (somebody.permissions, somebody.roles) == (0, ())
        with pytest.raises(Denied):
            somebody.require_known()
    hall.add("ann", "admin")
    assert allowed(ann) == READ | WRITE | ADMIN


def test_a_deleted_account_may_nothing_even_if_another_takes_its_name() -> None:
    """Who logged in as the old ann is not the new ann."""
    hall = Hall(Policy(allow_anonymous=True, default_public=True))
    hall.add("ann", "consumer")
    ann = hall.somebody("ann")
    hall.directory.remove_account("ann")
    assert allowed(ann) == 0
    hall.add("ann", "admin")
    assert allowed(ann) == 0
    assert allowed(hall.somebody("ann")) == READ | WRITE | ADMIN


def test_a_new_password_ends_the_permissions_of_a_login_by_the_old_one() -> None:
    hall = Hall()
    hall.add("ann", "consumer", password="old")
    logged_in = Principal(hall.directory, hall.told.append, "ann", "flymq", password="old")
    by_listener = hall.somebody("ann")
    assert allowed(logged_in) == READ
    hall.add("ann", "consumer", password="new")
    assert allowed(logged_in) == 0
    assert allowed(by_listener) == READ


def test_a_name_without_an_account_is_as_anonymous_until_there_is_one() -> None:
    """A listener or a certificate may name who is not known yet."""
    hall = Hall(Policy(allow_anonymous=True))
    hall.grant("news", public=True)
    ann = hall.somebody("ann")
    assert allowed(ann, "news") == READ | WRITE
    assert not ann.is_known
    with pytest.raises(Denied):
        ann.require_known()
    hall.add("ann", "consumer")
    assert ann.is_known
    assert allowed(ann) == READ


def test_no_list_shows_the_brokers_own_topics() -> None:
    """Not even an admin's, who may read them."""
    hall = Hall()
    hall.add("ann", "admin")
    ann = hall.somebody("ann")
    ann.require(READ, "__brokerd.audit")
    assert not ann.may(ANY, "__brokerd.audit")
    hall.add("bob", "producer")
    for topic in ("__brokerd.audit", "__brokerd.there is none"):
        for permission in (WRITE, ADMIN):
            with pytest.raises(Denied, match=r"^unauthorized: topics .* are the broker's own$"):
                ann.require(permission, topic)
        with pytest.raises(Denied, match=r"^unauthorized$"):
            hall.somebody("bob").require(WRITE, topic)


def test_denials_are_told_with_who_what_and_where_and_looking_at_lists_is_none() -> None:
    hall = Hall()
    hall.add("ann")
    ann = hall.somebody("ann")
    ann.may(READ, "t")
    with pytest.raises(Denied):
        ann.require(WRITE, "t")
    with pytest.raises(AuthenticationRequired):
        hall.somebody().require_server(ADMIN)
    assert hall.trail() == [
        ("access.denied", "ann", "t", "write", "denied"),
        ("access.denied", "", "", "admin", "denied"),
    ]
    assert (ann.wire_format, ann.peer) == ("mega", "192.0.2.1")
