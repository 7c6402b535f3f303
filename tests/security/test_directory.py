"""What accounts, access lists and the policy together allow on a topic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerd.security.access import ADMIN, READ, WRITE
from brokerd.security.accounts import AccessList, Account, ApiKey
from brokerd.security.directory import CACHE_MAX, Directory, Policy
from tests.security.hall import Hall


def test_lists_of_the_topic_and_of_all_its_prefixes_add_up() -> None:
    """A name, a prefix and the empty prefix each grant something to ann or to her role."""
    hall = Hall()
    ann = hall.add("ann", "billing")
    hall.grant("orders.eu", {"ann": READ})
    hall.grant("orders.", roles={"billing": WRITE}, prefix=True)
    assert hall.directory.permissions_on(ann, "orders.eu") == READ | WRITE
    assert hall.directory.permissions_on(ann, "orders.us") == WRITE
    assert hall.directory.permissions_on(ann, "order") == 0
    hall.grant("", {"ann": ADMIN}, prefix=True)
    assert hall.directory.permissions_on(ann, "order") == ADMIN
    assert hall.directory.permissions_on(ann, "") == ADMIN


def test_a_name_and_a_prefix_of_the_same_letters_are_two_lists() -> None:
    hall = Hall()
    ann = hall.add("ann")
    hall.grant("orders", {"ann": READ})
    hall.grant("orders", {"ann": WRITE}, prefix=True)
    assert hall.directory.permissions_on(ann, "orders") == READ | WRITE
    assert hall.directory.permissions_on(ann, "orders2") == WRITE
    assert hall.directory.remove_list("orders", True)
    assert not hall.directory.remove_list("orders", True)
    assert hall.directory.permissions_on(ann, "orders") == READ
    assert hall.directory.permissions_on(ann, "orders2") == 0


def test_public_is_for_those_who_logged_in_and_for_anonymous_only_where_that_is_allowed() -> None:
    for allow_anonymous in (False, True):
        hall = Hall(Policy(allow_anonymous=allow_anonymous))
        ann = hall.add("ann")
        hall.grant("news", public=True)
        assert hall.directory.permissions_on(ann, "news") == READ | WRITE
        assert hall.directory.permissions_on(None, "news") == (READ | WRITE) * allow_anonymous
        assert hall.directory.permissions_on(ann, "other") == 0


def test_topics_without_any_list_are_public_if_the_policy_says_so() -> None:
    hall = Hall(Policy(default_public=True))
    ann = hall.add("ann")
    hall.grant("private.", prefix=True)
    assert hall.directory.permissions_on(ann, "other") == READ | WRITE
    assert hall.directory.permissions_on(ann, "private.x") == 0
    assert hall.directory.permissions_on(None, "other") == 0


def test_the_brokers_own_topics_are_read_by_admins_and_written_by_nobody() -> None:
    """Whatever lists and roles say."""
    hall = Hall(Policy(allow_anonymous=True, default_public=True))
    hall.grant("__brokerd.audit", {"ann": READ | WRITE | ADMIN}, public=True)
    hall.grant("", {"ann": READ | WRITE | ADMIN}, prefix=True)
    for role, expected in (("admin", READ), ("consumer", 0), ("producer", 0)):
        ann = hall.add("ann", role)
        assert hall.directory.permissions_on(ann, "__brokerd.audit") == expected
    assert hall.directory.permissions_on(None, "__brokerd.audit") == 0


def test_an_account_takes_its_keys_along_and_leaves_lists() -> None:
    hall = Hall()
    hall.add("ann")
    hall.add("bob")
    for key_id, owner in (("1", "ann"), ("2", "bob"), ("3", "ann")):
        hall.directory.put_key(ApiKey(key_id, owner, b""))
    hall.grant("t", {"ann": READ})
    hall.directory.remove_account("ann")
    assert list(hall.directory.keys) == ["2"]
    assert ("t", False) in hall.directory.lists


def test_every_change_is_a_new_version() -> None:
    """Whoever remembers an answer sees that it is old."""
    directory = Directory(Policy())
    versions = [directory.version]

    def changed() -> None:
        assert directory.version > versions[-1]
        versions.append(directory.version)

    directory.put_account(Account(1, "ann"))
    changed()
    directory.put_list(AccessList("t"))
    changed()
    directory.put_key(ApiKey("1", "ann", b""))
    changed()
    directory.remove_key("1")
    changed()
    directory.remove_list("t", False)
    changed()
    directory.remove_account("ann")
    changed()


def test_a_walk_over_any_number_of_names_takes_bounded_memory() -> None:
    """Names that nobody uses can be asked for at will."""
    directory = Directory(Policy())
    for number in range(CACHE_MAX + 10):
        directory.permissions_on(None, f"name {number}")
    assert len(directory._cache) <= CACHE_MAX  # what takes the memory


_NAMES = st.text("ab", max_size=3)
_LISTS = st.builds(
    AccessList,
    _NAMES,
    st.booleans(),
    st.booleans(),
    st.dictionaries(st.sampled_from(["ann", "bob"]), st.integers(1, 7), max_size=2),
    st.dictionaries(st.sampled_from(["admin", "consumer", "x"]), st.integers(1, 7), max_size=2),
)


@given(
    st.lists(st.tuples(st.booleans(), _LISTS), max_size=8),
    st.lists(st.sampled_from(["admin", "consumer", "x"]), max_size=2),
    st.booleans(),
    _NAMES,
)
def test_the_rules_are_those_of_the_page(
    changes: list[tuple[bool, AccessList]], roles: list[str], default_public: bool, topic: str
) -> None:
    """The same as going through all lists, one rule after the other, after any changes."""
    directory = Directory(Policy(default_public=default_public))
    ann = Account(1, "ann", tuple(roles))
    lists: dict[tuple[str, bool], AccessList] = {}
    for sets, one in changes:
        directory.permissions_on(ann, topic)
        if sets:
            lists[one.key] = one
            directory.put_list(one)
        else:
            assert directory.remove_list(*one.key) == (lists.pop(one.key, None) is not None)
    fitting = [
        one
        for one in lists.values()
        if (topic.startswith(one.topic) if one.prefix else topic == one.topic)
    ]
    expected = ann.permissions & (READ | WRITE | ADMIN)
    for one in fitting:
        expected |= one.users.get("ann", 0)
        for role in roles:
            expected |= one.roles.get(role, 0)
    if any(one.public for one in fitting) or (not fitting and default_public):
        expected |= READ | WRITE
    assert directory.permissions_on(ann, topic) == expected


def test_names_that_no_topic_can_have_take_no_memory() -> None:
    """Anybody may ask for them, before any login."""
    directory = Directory(Policy(False, False))
    for number in range(100):
        assert directory.permissions_on(None, f"{number}" * 60_000) == 0
    assert not directory._cache  # what takes the memory
