"""FlyMQ's users, access lists and roles on the wire, and what is never shown of a password."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs import flymq as fm
from brokerd.codecs.flymq import Opcode
from tests.codecs.test_flymq_answers import read
from tests.strategies.flymq import acls, roles, texts, users

BOB = fm.User("bob", ("consumer",), ("read",), True, 1_700_000_000, 1_700_000_000)
ORDERS = fm.Acl("orders", True, False, ("bob",), ("team",))


@given(users)
def test_a_user_comes_as_it_is(user):
    assert read(fm.GetUser("u"), fm.user(Opcode.USER_GET, user)) == user
    request = fm.CreateUser("u", "p")
    assert read(request, fm.user(Opcode.USER_CREATE, user)) == user


@given(st.lists(users, max_size=4).map(tuple))
def test_all_users_come_as_they_are(found):
    assert read(fm.ListUsers(), fm.users(found)) == fm.Users(found)


@given(acls, st.booleans())
def test_an_access_list_comes_as_it_is_and_the_default_only_without_one(acl, default_public):
    answer = read(fm.GetAcl("t"), fm.acl(acl, default_public))
    assert answer == fm.OneAcl(acl, default_public and not acl.exists)


@given(st.lists(acls, max_size=4).map(tuple), st.booleans())
def test_all_access_lists_come_as_they_are(found, default_public):
    assert read(fm.ListAcls(), fm.acls(found, default_public)) == fm.Acls(found, default_public)


@given(st.lists(roles, max_size=4).map(tuple))
def test_roles_come_as_they_are(found):
    assert read(fm.ListRoles(), fm.roles(found)) == fm.Roles(found)


@given(texts)
def test_what_is_done_tells_to_whom(name):
    for request in (fm.DeleteUser(name), fm.UpdateUser(name), fm.ChangePassword(name, "new")):
        opcode = fm.opcode_of(request)
        answer = fm.ok(opcode, name)
        assert answer[8:11] == b"\x01" + len(name.encode()).to_bytes(2, "big")
        assert read(request, answer) == fm.Done()


ANSWERS: list[tuple[fm.Request, bytes]] = [
    (fm.GetUser("bob"), fm.user(Opcode.USER_GET, BOB)),
    (fm.ListUsers(), fm.users([BOB, BOB])),
    (fm.GetAcl("orders"), fm.acl(ORDERS, False)),
    (fm.ListAcls(), fm.acls([ORDERS, ORDERS], True)),
    (fm.ListRoles(), fm.roles([fm.Role("consumer", ("read",), "reads")] * 2)),
    (fm.DeleteUser("bob"), fm.ok(Opcode.USER_DELETE, "bob")),
]


@pytest.mark.parametrize(("request_", "answer"), ANSWERS)
def test_an_answer_that_is_cut_or_too_long_is_not_believed(request_, answer):
    opcode, payload = answer[2], answer[8:]
    for end in range(len(payload)):
        if end == 1 and isinstance(request_, fm.DeleteUser):
            continue  # the success alone, as the reference sends it
        with pytest.raises(fm.AnswerError, match=r"cannot be read|left over"):
            fm.decode_answer(request_, opcode, payload[:end])
    with pytest.raises(fm.AnswerError, match="1 bytes left over"):
        fm.decode_answer(request_, opcode, payload + b"\0")


@pytest.mark.parametrize(
    ("request_", "spare"),
    [(fm.ListUsers(), 26), (fm.ListAcls(), 11), (fm.ListRoles(), 7)],
)
def test_a_count_is_compared_with_the_bytes_that_are_left(request_, spare):
    opcode = fm.opcode_of(request_)
    tracemalloc.start()
    try:
        for claim in (b"\0\0\0\1", b"\xff" * 4):
            with pytest.raises(fm.AnswerError, match=rf"says \d+ items and {spare} bytes"):
                fm.decode_answer(request_, opcode, claim + bytes(spare))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


@given(st.sampled_from([request for request, _ in ANSWERS]), st.binary(max_size=80))
def test_any_bytes_are_an_answer_or_a_named_error(request, payload):
    try:
        fm.decode_answer(request, fm.opcode_of(request), payload)
    except fm.AnswerError as error:
        assert str(error)


@pytest.mark.parametrize("byte", [0, 2, 255])
def test_only_01_is_true_so_that_a_slip_opens_nothing(byte):
    user = b"\0\3bob" + bytes(2 + 2 + 4)
    flag = bytes([byte])
    assert fm.decode_request(Opcode.USER_UPDATE, 1, user + b"\1") == fm.UpdateUser("bob", (), True)
    assert fm.decode_request(Opcode.USER_UPDATE, 1, user + flag) == fm.UpdateUser("bob")
    acl = b"\0\1t" + flag + bytes(8)
    assert fm.decode_request(Opcode.ACL_SET, 1, acl) == fm.SetAcl("t", public=False)


def test_a_missing_enabled_disables():
    user = b"\0\3bob" + bytes(2 + 2 + 4)
    assert fm.decode_request(Opcode.USER_UPDATE, 1, user) == fm.UpdateUser("bob", (), False)


@pytest.mark.parametrize(
    "request_",
    [
        fm.Auth("bob", "s3cret"),
        fm.CreateUser("bob", "s3cret"),
        fm.ChangePassword("bob", "s3cret", "s3cret"),
    ],
)
def test_no_repr_shows_a_password(request_):
    assert "bob" in repr(request_)
    assert "s3cret" not in repr(request_)
    assert "s3cret" not in str([request_])
