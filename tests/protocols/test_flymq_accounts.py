"""FlyMQ with security on: logins, users, access lists, and who may do what."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.broker import BrokerSettings
from brokerd.codecs import flymq
from brokerd.protocols.flymq.connection import FlymqSettings
from brokerd.security import ADMIN, READ
from brokerd.security.accounts import AccessList
from brokerd.security.directory import Policy
from tests.codecs.test_flymq_golden import BYTES
from tests.protocols.flymq_desk import FlymqHouse
from tests.protocols.flymq_guarded import PASSWORD, PEOPLE, GuardedHouse

NOT_IN = flymq.Failed("authentication required")
MAY_NOT = flymq.Failed("unauthorized")
WRONG = flymq.Failed("invalid username or password")
DONE = flymq.Done()


@pytest.fixture
def house() -> GuardedHouse:
    return GuardedHouse()


# -- logging in -------------------------------------------------------------------------------


def test_who_logs_in_is_told_who_he_is(house: GuardedHouse) -> None:
    client = house.client()
    assert client.ask(flymq.WhoAmI()) == [flymq.Identity(False)]
    assert client.ask(flymq.Auth("carl", PASSWORD), flymq.WhoAmI()) == [
        flymq.LoggedIn("carl", ("consumer",)),
        flymq.Identity(True, "carl", ("consumer",), ("read",)),
    ]


@pytest.mark.parametrize(
    ("user", "password"),
    [("carl", "wrong"), ("nobody", PASSWORD), ("", ""), ("carl", ""), ("n" * 60_000, "p" * 60_000)],
)
def test_a_failed_login_tells_nothing_and_leaves_what_was(
    house: GuardedHouse, user: str, password: str
) -> None:
    client = house.client()
    assert client.ask(flymq.Auth(user, password), flymq.ListTopics()) == [WRONG, NOT_IN]
    client = house.log_in("pat")
    assert client.ask(flymq.Auth(user, password)) == [WRONG]
    assert client.ask(flymq.WhoAmI())[0].user == "pat"
    assert client.is_open


def test_a_second_login_replaces_the_first(house: GuardedHouse) -> None:
    client = house.log_in("carl")
    assert client.ask(flymq.Produce("t", None, b"x")) == [MAY_NOT]
    login, produced = client.ask(flymq.Auth("pat", PASSWORD), flymq.Produce("t", None, b"x"))
    assert (login.user, produced.offset) == ("pat", 0)


def test_a_disabled_account_is_told_so_only_with_its_password(house: GuardedHouse) -> None:
    house.update("carl", enabled=False)
    client = house.client()
    assert client.ask(flymq.Auth("carl", "wrong"), flymq.Auth("carl", PASSWORD)) == [
        WRONG,
        flymq.Failed("user account is disabled"),
    ]


def test_what_is_sent_behind_a_login_waits_for_it(house: GuardedHouse) -> None:
    """And is carried out as who has logged in; what came before is not."""
    house.threads.waits = True
    client, other = house.client(), house.client()
    client.send(flymq.ListTopics(), flymq.Auth("pat", PASSWORD), flymq.Produce("t", None, b"x"))
    client.send(flymq.WhoAmI())
    house.run()
    assert client.answers() == [NOT_IN]
    assert other.ask(flymq.WhoAmI()) == [flymq.Identity(False)]
    house.threads.finish()
    house.run()
    login, produced, who = client.answers()
    assert login == flymq.LoggedIn("pat", ("producer",))
    assert isinstance(produced, flymq.Produced)
    assert who.user == "pat"


def test_a_pool_of_workers_logs_in_at_once(house: GuardedHouse) -> None:
    """Its account and its address are not known yet, as after a start of the broker."""
    house.threads.waits = True
    workers = [house.client() for _ in range(50)]
    for worker in workers:
        worker.send(flymq.Auth("pat", PASSWORD))
    house.run()
    while house.threads.waiting:
        house.threads.finish()
        house.run()
    answers = [answer for worker in workers for answer in worker.answers()]
    assert answers == [flymq.LoggedIn("pat", ("producer",))] * 50
    assert house.broker.status()["audit"]["logins_failed"] == 0


def test_several_logins_of_a_connection_are_answered_in_order(house: GuardedHouse) -> None:
    house.threads.waits = True
    client = house.client()
    names = ("carl", "nobody", "root")
    client.send(*[flymq.Auth(name, PASSWORD) for name in names], flymq.WhoAmI())
    for _ in names:
        house.run()
        house.threads.finish()
    house.run()
    assert client.answers() == [
        flymq.LoggedIn("carl", ("consumer",)),
        WRONG,
        flymq.LoggedIn("root", ("admin",)),
        flymq.Identity(True, "root", ("admin",), ("read", "write", "admin", "monitor")),
    ]


def test_who_leaves_while_he_logs_in_is_forgotten(house: GuardedHouse) -> None:
    house.threads.waits = True
    client = house.client()
    client.send(flymq.Auth("pat", PASSWORD), flymq.Produce("t", None, b"x"))
    client.disconnect()
    assert client.protocol.pending_request is None
    house.threads.finish()
    house.run()
    assert house.log_in_at_once("root").ask(flymq.ListTopics()) == [flymq.Topics(())]


def test_who_closes_his_side_behind_a_login_is_answered(house: GuardedHouse) -> None:
    house.threads.waits = True
    client = house.client()
    client.send(flymq.Auth("pat", PASSWORD), flymq.WhoAmI())
    client.send_no_more()
    house.run()
    house.threads.finish()
    house.run()
    assert [type(one) for one in client.answers()] == [flymq.LoggedIn, flymq.Identity]
    assert not client.is_open


def test_a_login_may_be_compressed(house: GuardedHouse) -> None:
    client = house.client()
    client.send(flymq.Auth("pat", PASSWORD), flymq.WhoAmI(), gzip=True)
    house.run()
    assert [one.user for one in client.answers()] == ["pat", "pat"]


@pytest.mark.parametrize("name", ["seed-22a-auth", "seed-22b-auth-sdk", "seed-22c-auth-neutral"])
def test_the_golden_logins_are_answered_byte_for_byte(name: str) -> None:
    layout: Any = name.removeprefix("seed-22a-auth").partition("-auth-")[2] or "seed"
    house = GuardedHouse(FlymqSettings(auth_success_layout=layout))
    root = house.log_in("root")
    root.ask(flymq.CreateUser("bob", "pw", ("admin",)))
    client = house.client()
    client.send_bytes(BYTES[name, ">"])
    house.run()
    assert client.received_bytes() == BYTES[name, "<"]


def test_many_failures_are_told_to_wait_in_the_same_words_for_all(house: GuardedHouse) -> None:
    for name in ("carl", "nobody"):
        client = house.client()
        answers = client.ask(*[flymq.Auth(name, "wrong")] * 60)
        assert answers[0] == WRONG
        assert isinstance(answers[-1], flymq.Failed)
        assert answers[-1] != WRONG
        assert name not in answers[-1].text
        house.pass_time(3600.0)


# -- rights -----------------------------------------------------------------------------------

TOPIC_REQUESTS: list[tuple[str, Any]] = [
    ("write", flymq.Produce("t", None, b"x")),
    ("read", flymq.Consume("t", 0, 0)),
    ("read", flymq.Consume("t", 0, 0, flymq.Opcode.CONSUME_ZERO_COPY)),
    ("admin", flymq.CreateTopic("t", 1)),
    ("read", flymq.Metadata("t")),
    ("read", flymq.Subscribe("t", "g", 0, "earliest")),
    ("read", flymq.Commit("t", "g", 0, 0)),
    ("read", flymq.Fetch("t", 0, 0, 1)),
    ("read", flymq.Fetch("t", 0, 0, 1, "x", sdk=True)),
    ("read", flymq.Fetch("t", 0, 0, 1, opcode=flymq.Opcode.FETCH_BINARY)),
    ("read", flymq.ClusterMetadata("t")),
    ("read", flymq.GetOffset("t", "g", 0)),
    ("read", flymq.GetLag("t", "g", 0)),
    ("admin", flymq.ResetOffset("t", "g", 0, "earliest")),
    ("admin", flymq.DeleteTopic("t")),
]
ADMIN_REQUESTS: list[Any] = [
    flymq.CreateUser("new", "pw"),
    flymq.DeleteUser("gus"),
    flymq.UpdateUser("gus", ("guest",), True),
    flymq.ListUsers(),
    flymq.GetUser("gus"),
    flymq.ChangePassword("gus", "new"),
    flymq.SetAcl("t"),
    flymq.GetAcl("t"),
    flymq.DeleteAcl("t"),
    flymq.ListAcls(),
    flymq.QueryAudit(),
    flymq.QueryAudit(java=True),
    flymq.ExportAudit(flymq.QueryAudit(), "csv"),
]


@pytest.mark.parametrize("there_is_one", [True, False])
@pytest.mark.parametrize(("needs", "request_"), TOPIC_REQUESTS)
def test_a_topic_s_requests_need_their_permission(
    house: GuardedHouse, needs: str, request_: Any, there_is_one: bool
) -> None:
    """Who has it not is told the same whether or not the topic exists."""
    if there_is_one:
        house.log_in("root").ask(flymq.Produce("t", None, b"x"), flymq.Commit("t", "g", 0, 0))
    assert house.client().ask(request_) == [NOT_IN]
    may = {"read": "carl", "write": "pat", "admin": "root"}[needs]
    for name in sorted(PEOPLE.keys() - {may, "root"}):
        assert house.log_in(name).ask(request_) == [MAY_NOT]
    (answer,) = house.log_in(may).ask(request_)
    assert answer not in (NOT_IN, MAY_NOT)


@pytest.mark.parametrize("request_", ADMIN_REQUESTS)
def test_accounts_lists_and_the_trail_need_admin_by_role(
    house: GuardedHouse, request_: Any
) -> None:
    """Not by an access list, and whether or not there is who or what is named."""
    house.broker.accounts.set_access_list(
        house.log_in("root").protocol.access, AccessList("", True, users={"gus": ADMIN})
    )
    assert house.client().ask(request_) == [NOT_IN]
    for name in ("carl", "pat", "gus"):
        if not (isinstance(request_, flymq.ChangePassword) and name == "gus"):
            assert house.log_in(name).ask(request_) == [MAY_NOT]
    (answer,) = house.log_in("root").ask(request_)
    assert not isinstance(answer, flymq.Failed)


def test_lists_show_what_one_has_a_permission_for(house: GuardedHouse) -> None:
    house.log_in("root").ask(*[flymq.CreateTopic(name, 1) for name in ("a", "b", "c")])
    house.grant("b", "gus")
    house.broker.accounts.set_access_list(
        house.log_in("root").protocol.access, AccessList("c", users={"gus": ADMIN})
    )
    requests = (flymq.ListTopics(), flymq.ClusterMetadata())

    def seen(name: str) -> tuple[list[str], list[str]]:
        names, cluster = house.log_in(name).ask(*requests)
        return list(names.names), sorted(one.topic for one in cluster.topics)

    assert seen("gus") == (["b", "c"], ["b"])
    assert seen("carl") == (["a", "b", "c"], ["a", "b", "c"])
    assert seen("pat") == (["a", "b", "c"], [])
    assert seen("root") == (["a", "b", "c"], ["a", "b", "c"])
    assert house.client().ask(*requests, flymq.ListRoles()) == [NOT_IN] * 3


def test_a_listener_may_act_as_somebody_until_a_login() -> None:
    house = GuardedHouse(principal="pat")
    client = house.client()
    who, produced, refused = client.ask(
        flymq.WhoAmI(), flymq.Produce("t", None, b"x"), flymq.Fetch("t", 0, 0, 1)
    )
    assert (who.user, produced.offset, refused) == ("pat", 0, MAY_NOT)
    _, fetched = client.ask(flymq.Auth("carl", PASSWORD), flymq.Fetch("t", 0, 0, 1))
    assert len(fetched.records) == 1


def test_rights_that_are_taken_away_are_gone_at_the_next_request(house: GuardedHouse) -> None:
    """On a connection that is open: by other roles, disabled, deleted, and with another account."""
    root, carl = house.log_in("root"), house.log_in("carl")
    ask = flymq.Fetch("t", 0, 0, 1)
    root.ask(flymq.Produce("t", None, b"x"))
    assert len(carl.ask(ask)[0].records) == 1
    assert root.ask(flymq.UpdateUser("carl", ("producer",), True)) == [DONE]
    assert carl.ask(ask) == [MAY_NOT]
    assert root.ask(flymq.UpdateUser("carl", ("consumer",), True)) == [DONE]
    assert len(carl.ask(ask)[0].records) == 1
    assert root.ask(flymq.UpdateUser("carl", ("consumer",), False)) == [DONE]
    assert carl.ask(ask, flymq.WhoAmI(), flymq.ListTopics()) == [
        MAY_NOT,
        flymq.Identity(False),
        MAY_NOT,
    ]
    assert root.ask(flymq.UpdateUser("carl", ("consumer",), True)) == [DONE]
    assert root.ask(flymq.DeleteUser("carl")) == [DONE]
    root.ask(flymq.CreateUser("carl", PASSWORD, ("consumer",)))
    assert carl.ask(ask, flymq.WhoAmI()) == [MAY_NOT, flymq.Identity(False)]
    assert len(house.log_in("carl").ask(ask)[0].records) == 1


def test_public_topics_need_a_login_or_that_anonymous_is_allowed() -> None:
    house = GuardedHouse()
    house.grant("t", public=True)
    produce = flymq.Produce("t", None, b"x")
    assert house.client().ask(produce) == [NOT_IN]
    assert house.log_in("gus").ask(produce)[0].offset == 0
    settings = BrokerSettings(security=Policy(allow_anonymous=True))
    house = GuardedHouse(settings=settings)
    assert house.log_in("root").ask(flymq.SetAcl("t", public=True)) == [DONE]
    assert house.client().ask(produce)[0].offset == 0


def test_the_audit_trail_is_read_by_an_admin_and_written_by_nobody(house: GuardedHouse) -> None:
    name = "__brokerd.audit"
    root = house.log_in("root")
    assert isinstance(root.ask(flymq.Fetch(name, 0, 0, 10))[0], flymq.Fetched)
    assert house.log_in("carl").ask(flymq.Fetch(name, 0, 0, 10)) == [MAY_NOT]
    for request in (
        flymq.Produce(name, None, b"x"),
        flymq.DeleteTopic(name),
        flymq.CreateTopic(name, 2),
        flymq.ResetOffset(name, "g", 0, "earliest"),
    ):
        assert isinstance(root.ask(request)[0], flymq.Failed)
    names, cluster = root.ask(flymq.ListTopics(), flymq.ClusterMetadata())
    assert (names.names, cluster.topics) == ((), ())


# -- users ------------------------------------------------------------------------------------


def test_a_user_is_made_and_shown_and_logs_in(house: GuardedHouse) -> None:
    root = house.log_in("root")
    made, got = root.ask(flymq.CreateUser("bob", "pw", ("consumer", "team")), flymq.GetUser("bob"))
    assert made == flymq.User("bob", ("consumer", "team"), (), True, 0, 0)
    now = house.broker.time.time_us() // 1_000_000
    assert got == made._replace(permissions=("read",), created_seconds=now, updated_seconds=now)
    assert house.client().ask(flymq.Auth("bob", "pw")) == [flymq.LoggedIn("bob", got.roles)]
    (users,) = root.ask(flymq.ListUsers())
    assert [one.name for one in users.users] == sorted([*PEOPLE, "bob"])
    assert got._replace(permissions=()) in users.users


def test_users_survive_a_loss_of_power(house: GuardedHouse) -> None:
    root = house.log_in("root")
    root.ask(flymq.CreateUser("bob", "pw", ("consumer",)), flymq.SetAcl("t", users=("bob",)))
    house.disk.crash()
    house = GuardedHouse(disk=house.disk)
    client = house.client()
    assert client.ask(flymq.Auth("bob", "pw")) == [flymq.LoggedIn("bob", ("consumer",))]
    assert client.ask(flymq.Produce("t", None, b"x"))[0].offset == 0


REFUSED_CHANGES: list[tuple[Any, str]] = [
    (flymq.CreateUser("", "pw"), "username and password are required"),
    (flymq.CreateUser("bob", ""), "username and password are required"),
    (flymq.CreateUser("carl", "pw"), 'user "carl" already exists'),
    (flymq.DeleteUser("bob"), 'user "bob" not found'),
    (flymq.DeleteUser("root"), "cannot delete your own account"),
    (
        flymq.UpdateUser("root", ("admin",), False),
        "without 'root' no administrator could log in; give another account the role admin, and a "
        "password or a key, first",
    ),
    (flymq.UpdateUser("bob", (), True), 'user "bob" not found'),
    (flymq.GetUser("bob"), 'user "bob" not found'),
    (flymq.ChangePassword("bob", "new"), 'user "bob" not found'),
    (flymq.ChangePassword("root", "new", "wrong"), "invalid current password"),
    (flymq.ChangePassword("root", "new"), "invalid current password"),
    (
        flymq.SetAcl("t", public=True),
        "cannot make topic public because anonymous access is disabled in server configuration",
    ),
]


@pytest.mark.parametrize(("request_", "text"), REFUSED_CHANGES)
def test_what_cannot_be_is_refused_in_the_reference_s_words(
    house: GuardedHouse, request_: Any, text: str
) -> None:
    before = house.broker.accounts.accounts()
    root = house.log_in("root")
    assert root.ask(request_) == [flymq.Failed(text)]
    assert house.broker.accounts.accounts() == before
    assert root.is_open


@pytest.mark.parametrize(
    "request_",
    [
        flymq.CreateUser("b\0b", "pw"),
        flymq.CreateUser("bob", "p" * 1025),
        flymq.CreateUser("bob", "pw", ("",)),
        flymq.CreateUser("n" * 256, "pw"),
        flymq.ChangePassword("carl", ""),
        flymq.UpdateUser("carl", tuple(f"r{n}" for n in range(101)), True),
        flymq.SetAcl(""),
        flymq.SetAcl("t", users=("",)),
        flymq.SetAcl("t", users=tuple(f"u{n}" for n in range(1001))),
    ],
)
def test_names_and_passwords_have_limits(house: GuardedHouse, request_: Any) -> None:
    before = house.broker.accounts.accounts()
    (answer,) = house.log_in("root").ask(request_)
    assert isinstance(answer, flymq.Failed)
    assert house.broker.accounts.accounts() == before
    assert house.broker.accounts.access_lists() == []


def test_one_s_own_password_needs_the_old_one_and_anybody_s_an_admin(house: GuardedHouse) -> None:
    carl = house.log_in("carl")
    assert carl.ask(flymq.ChangePassword("carl", "new", PASSWORD)) == [DONE]
    assert carl.ask(flymq.ChangePassword("gus", "new", PASSWORD)) == [MAY_NOT]
    assert carl.ask(flymq.ChangePassword("nobody", "new", PASSWORD)) == [MAY_NOT]
    assert house.client().ask(flymq.Auth("carl", PASSWORD), flymq.Auth("carl", "new"))[0] == WRONG
    assert house.log_in("root").ask(flymq.ChangePassword("carl", "newer")) == [DONE]
    assert house.client().ask(flymq.Auth("carl", "newer"))[0].user == "carl"
    assert house.client().ask(flymq.ChangePassword("", "new")) == [NOT_IN]


def test_a_new_password_is_hashed_while_others_are_served(house: GuardedHouse) -> None:
    root, other = house.log_in("root"), house.log_in("carl")
    house.threads.waits = True
    root.send(flymq.CreateUser("bob", "pw"), flymq.GetUser("bob"))
    house.run()
    assert root.answers() == []
    assert other.ask(flymq.ListTopics()) == [flymq.Topics(())]
    house.threads.finish()
    house.run()
    assert [one.name for one in root.answers()] == ["bob", "bob"]


def test_two_who_make_the_same_user_at_once_make_one(house: GuardedHouse) -> None:
    one, two = house.log_in("root"), house.log_in("root")
    house.threads.waits = True
    one.send(flymq.CreateUser("bob", "pw"))
    two.send(flymq.CreateUser("bob", "other"))
    house.run()
    house.threads.finish()
    house.run()
    ((first,), (second,)) = (one.answers(), two.answers())
    assert first.name == "bob"
    assert second == flymq.Failed('user "bob" already exists')


# -- access lists and roles -------------------------------------------------------------------


def test_an_access_list_is_set_shown_and_deleted(house: GuardedHouse) -> None:
    root = house.log_in("root")
    orders = flymq.Acl("orders", True, False, ("bob", "gus"), ("team",))
    answers = root.ask(
        flymq.GetAcl("orders"),
        flymq.SetAcl("orders", False, ("gus", "bob"), ("team",)),
        flymq.GetAcl("orders"),
        flymq.ListAcls(),
        flymq.DeleteAcl("orders"),
        flymq.DeleteAcl("orders"),
        flymq.ListAcls(),
    )
    assert answers == [
        flymq.OneAcl(flymq.Acl("orders", False, False), False),
        DONE,
        flymq.OneAcl(orders, False),
        flymq.Acls((orders,), False),
        DONE,
        DONE,
        flymq.Acls((), False),
    ]


def test_an_access_list_lets_read_and_write_at_once(house: GuardedHouse) -> None:
    gus, root = house.log_in("gus"), house.log_in("root")
    requests = (flymq.Produce("t", None, b"x"), flymq.Fetch("t", 0, 0, 1), flymq.DeleteTopic("t"))
    assert gus.ask(*requests) == [MAY_NOT] * 3
    root.ask(flymq.SetAcl("t", users=("gus",)))
    produced, fetched, deleted = gus.ask(*requests)
    assert (produced.offset, len(fetched.records), deleted) == (0, 1, MAY_NOT)
    root.ask(flymq.SetAcl("t"))
    assert gus.ask(*requests) == [MAY_NOT] * 3


def test_lists_of_prefixes_and_grants_of_admin_alone_are_not_shown(house: GuardedHouse) -> None:
    root = house.log_in("root")
    access = root.protocol.access
    house.broker.accounts.set_access_list(access, AccessList("or", True, users={"gus": READ}))
    house.broker.accounts.set_access_list(access, AccessList("t", users={"gus": ADMIN}))
    (acls,) = root.ask(flymq.ListAcls())
    assert acls.acls == (flymq.Acl("t", True, False),)


def test_a_default_that_is_public_is_told_where_there_is_no_list() -> None:
    settings = BrokerSettings(security=Policy(default_public=True))
    house = GuardedHouse(settings=settings)
    root = house.log_in("root")
    root.ask(flymq.SetAcl("listed"))
    listed, unlisted, acls = root.ask(flymq.GetAcl("listed"), flymq.GetAcl("t"), flymq.ListAcls())
    assert (listed.default_public, unlisted.default_public) == (False, True)
    assert acls.default_public


def test_roles_are_sorted_and_say_what_they_give(house: GuardedHouse) -> None:
    (answer,) = house.log_in("gus").ask(flymq.ListRoles())
    assert {role.name: role.permissions for role in answer.roles} == {
        "admin": ("read", "write", "admin", "monitor"),
        "consumer": ("read",),
        "guest": (),
        "monitor": ("monitor",),
        "producer": ("write",),
    }
    assert [role.name for role in answer.roles] == sorted(role.name for role in answer.roles)
    assert all(role.description for role in answer.roles)


# -- the golden bytes, and security off -------------------------------------------------------


def test_the_golden_requests_of_accounts_are_answered_byte_for_byte() -> None:
    """In this order, for one who may do everything; times are the broker's."""
    settings = BrokerSettings(security=Policy(default_public=True))
    house = GuardedHouse(settings=settings, wall_seconds=1_700_000_000.0)
    for name in PEOPLE.keys() - {"root"}:
        house.broker.accounts.delete_account(house.log_in("root").protocol.access, name)
    root = house.log_in("root")
    for name in (
        "ours-user-create",
        "ours-user-get",
        "ours-user-update",
        "ours-password-change",
        "ours-acl-set",
        "ours-acl-get",
        "ours-acl-list",
        "ours-acl-delete",
        "ours-user-delete",
    ):
        root.send_bytes(BYTES[name, ">"])
        house.run()
        assert root.received_bytes() == BYTES[name, "<"], name


def test_whoami_of_the_golden_file_is_answered_byte_for_byte(house: GuardedHouse) -> None:
    client = house.client()
    client.send_bytes(BYTES["seed-23a-whoami-nobody", ">"])
    house.run()
    assert client.received_bytes() == BYTES["seed-23a-whoami-nobody", "<"]
    house.log_in("root").ask(flymq.CreateUser("bob", "pw", ("consumer", "producer")))
    client.ask(flymq.Auth("bob", "pw"))
    client.send_bytes(BYTES["ours-whoami", ">"])
    house.run()
    assert client.received_bytes() == BYTES["ours-whoami", "<"]


def test_with_security_off_every_login_succeeds_and_everything_is_allowed() -> None:
    house = FlymqHouse()
    client = house.client()
    assert client.ask(flymq.Auth("anybody", "x"), flymq.WhoAmI()) == [
        flymq.LoggedIn("anybody"),
        flymq.Identity(False),
    ]
    answers = client.ask(
        *[request for _, request in TOPIC_REQUESTS],
        flymq.CreateUser("bob", "pw"),
        flymq.ListUsers(),
        flymq.ListAcls(),
        flymq.ListRoles(),
    )
    refused = [one for one in answers if isinstance(one, flymq.Failed)]
    assert refused == []
