"""Audit events: what they say, which of them a question wants, and what a flood of them costs."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.errors import DamagedData, Denied, InvalidRequest
from brokerd.security import ADMIN, ANY, OPEN, READ, WRITE, audit
from brokerd.security.audit import (
    AT_ONCE_MAX,
    AUDIT_TOPIC,
    EVENT_BYTES_MAX,
    EVENTS_MAX,
    LIMIT_MAX,
    SENDERS_MAX,
    SKIP_MAX,
    Actor,
    AuditEvent,
    AuditFilter,
    EventType,
    RepeatFilter,
    Result,
    decode_event,
    denied,
    encode_event,
    event,
    logged_in,
    login_failed,
    network_of,
)
from brokerd.values import MAX_NAME_BYTES

texts = st.text(max_size=300)


BOB = Actor("bob", "192.0.2.7", "flymq")


def attack(address: str, user: str = "") -> AuditEvent:
    return login_failed(Actor(user, address, "mega"), "password", "wrong")


class TestEvents:
    def test_an_event_is_a_json_object_with_the_names_that_its_readers_know(self) -> None:
        said = event(BOB, EventType.TOPIC_DELETED, "orders", "admin", details={"a": "b"})
        assert json.loads(encode_event(said)) == {
            "type": "topic.delete",
            "user": "bob",
            "client_ip": "192.0.2.7",
            "format": "flymq",
            "resource": "orders",
            "action": "admin",
            "result": "success",
            "details": {"a": "b"},
            "time_us": 0,
        }

    @given(texts, texts, texts, texts, texts, st.dictionaries(texts, texts, max_size=5))
    def test_whatever_names_clients_give_an_event_is_small_and_comes_back_as_it_was(
        self, user: str, peer: str, form: str, resource: str, action: str, details: dict[str, str]
    ) -> None:
        said = event(
            Actor(user, peer, form), EventType.DENIED, resource, action, Result.DENIED, details
        )
        value = encode_event(said)
        assert len(value) <= EVENT_BYTES_MAX
        back = decode_event(value, 7)
        assert back.event_id == 7
        assert encode_event(back) == value
        assert (back.user, back.resource, back.details) == (
            said.user,
            said.resource,
            said.details,
        )

    @pytest.mark.parametrize("letter", ['"', "\\", "\x1b", "\udfff", "\U0001f600", "a"])
    def test_the_longest_names_make_no_long_event_and_move_no_terminal(self, letter: str) -> None:
        long = letter * 1_000_000
        said = event(
            Actor(long, long, long),
            EventType.DENIED,
            long,
            long,
            Result.DENIED,
            {"a": long, "b": long},
        )
        assert MAX_NAME_BYTES - 6 <= len(said.user.encode()) <= MAX_NAME_BYTES
        assert len(encode_event(said)) <= EVENT_BYTES_MAX
        assert said.user.endswith("\u2026")
        assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in said.user)
        assert said.details["\u2026"] == "\u2026", "what is left out shows"

    def test_control_characters_can_be_read(self) -> None:
        assert denied(BOB, "write", "a\x1b[2Jb").resource == "a\\x1b[2Jb"

    def test_a_name_that_just_fits_is_whole_and_a_longer_one_shows_that_it_is_cut(self) -> None:
        whole, longer = "x" * MAX_NAME_BYTES, "x" * (MAX_NAME_BYTES + 1)
        assert denied(BOB, "read", whole).resource == whole
        assert denied(BOB, "read", longer).resource == "x" * (MAX_NAME_BYTES - 3) + "\u2026"

    def test_logins_and_denials_say_how_they_ended_and_about_whom(self) -> None:
        login, refused = logged_in(BOB, "key"), denied(BOB, "admin", "t")
        failed = login_failed(BOB, "password", "wrong password")
        assert (login.type, login.result, login.resource) == ("auth.success", "success", "bob")
        assert (failed.type, failed.result) == ("auth.failure", "failure")
        assert failed.details == {"reason": "wrong password"}
        assert (refused.type, refused.result) == ("access.denied", "denied")
        assert (refused.action, refused.resource) == ("admin", "t")

    @pytest.mark.parametrize("value", [b"", b"{}", b"[1]", b'{"type": 1}', b"\xff", b"null"])
    def test_a_record_that_holds_no_event_is_told_by_its_place(self, value: bytes) -> None:
        with pytest.raises(DamagedData, match="audit event 12 "):
            decode_event(value, 12)


def seen(
    kind: str = "access.denied",
    user: str = "bob",
    resource: str = "orders",
    action: str = "write",
    time_us: int = 100,
) -> AuditEvent:
    return AuditEvent(
        kind, user, "::1", "mega", resource, action, "denied", {"reason": "No Luck"}, time_us
    )


class TestWithSecurityOff:
    def test_a_trail_that_is_left_from_before_may_be_read_and_not_changed(self) -> None:
        """Nor is it in any list."""
        OPEN.require(READ, AUDIT_TOPIC)
        for permission in (WRITE, ADMIN):
            with pytest.raises(Denied, match="by the broker alone"):
                OPEN.require(permission, AUDIT_TOPIC)
        assert OPEN.may(ANY, "orders") and not OPEN.may(ANY, AUDIT_TOPIC)


class TestFilters:
    @pytest.mark.parametrize(
        ("wanted", "is_found"),
        [
            (AuditFilter(), True),
            (AuditFilter(types=frozenset({"access.denied", "x"})), True),
            (AuditFilter(types=frozenset({"x"})), False),
            (AuditFilter(user="bob"), True),
            (AuditFilter(user="bo"), False),
            (AuditFilter(result="denied"), True),
            (AuditFilter(result="deni"), False),
            (AuditFilter(resource="rder"), True),
            (AuditFilter(resource="RDER"), False),
            (AuditFilter(search="RDER"), True),
            (AuditFilter(search="Writ"), True),
            (AuditFilter(search="no luck"), True),
            (AuditFilter(search="bob"), False),
            (AuditFilter(search="::"), True),
            (AuditFilter(search="Mega"), True),
            (AuditFilter(client_ip="::1"), True),
            (AuditFilter(client_ip="::"), False),
            (AuditFilter(wire_format="mega"), True),
            (AuditFilter(wire_format="me"), False),
            (AuditFilter(start_us=100, end_us=101), True),
            (AuditFilter(start_us=101), False),
            (AuditFilter(end_us=100), False),
        ],
    )
    def test_a_filter_finds_what_it_names_and_nothing_else(
        self, wanted: AuditFilter, is_found: bool
    ) -> None:
        """A part of the resource, a search in any case, and everything else as a whole."""
        assert wanted.matches(seen()) is is_found

    @pytest.mark.parametrize(
        "wanted",
        [
            AuditFilter(limit=0),
            AuditFilter(limit=LIMIT_MAX + 1),
            AuditFilter(skip=-1),
            AuditFilter(skip=SKIP_MAX + 1),
        ],
    )
    def test_a_filter_that_asks_for_too_much_is_refused(self, wanted: AuditFilter) -> None:
        with pytest.raises(InvalidRequest):
            wanted.check()

    def test_the_largest_answer_may_be_asked_for(self) -> None:
        AuditFilter(limit=LIMIT_MAX, skip=SKIP_MAX).check()


class TestFloods:
    def test_the_first_is_written_and_the_rest_is_one_event_with_a_count(self) -> None:
        repeats = RepeatFilter()
        assert repeats.should_write(denied(BOB, "read", "t"))
        assert not any(repeats.should_write(denied(BOB, "read", "t")) for _ in range(1_000))
        (summary,) = repeats.end_window()
        assert (summary.user, summary.client_ip, summary.resource) == ("bob", "192.0.2.7", "t")
        assert summary.details == {"repeated": "1000"}
        assert repeats.is_idle and repeats.end_window() == []

    def test_after_the_window_the_first_is_written_again(self) -> None:
        repeats = RepeatFilter()
        for _ in range(2):
            assert repeats.should_write(denied(BOB, "read", "t"))
            repeats.end_window()

    def test_different_events_of_one_sender_are_written_up_to_a_limit(self) -> None:
        """Who tries topic after topic fills no disk."""
        repeats = RepeatFilter()
        taken = [repeats.should_write(denied(BOB, "read", f"t{n}")) for n in range(1_000)]
        assert taken == [True] * AT_ONCE_MAX + [False] * (1_000 - AT_ONCE_MAX)
        (summary,) = repeats.end_window()
        assert summary.details["repeated"] == str(1_000 - AT_ONCE_MAX)
        assert summary.resource == "t999"

    def test_names_tried_from_one_address_are_one_sender(self) -> None:
        """Whoever guesses names does not get a share for each of them."""
        repeats = RepeatFilter()
        taken = sum(repeats.should_write(attack("192.0.2.1", f"user{n}")) for n in range(5_000))
        assert taken == AT_ONCE_MAX
        assert len(repeats.end_window()) == 1

    def test_addresses_of_one_ipv6_network_are_one_sender(self) -> None:
        repeats = RepeatFilter()
        taken = sum(repeats.should_write(attack(f"2001:db8::{n:x}")) for n in range(5_000))
        assert taken == 1
        (summary,) = repeats.end_window()
        assert summary.client_ip == "2001:db8::1387"

    def test_a_flood_of_one_sender_hides_no_other(self) -> None:
        repeats = RepeatFilter()
        for _ in range(10_000):
            repeats.should_write(attack("192.0.2.1"))
        assert repeats.should_write(attack("192.0.2.2"))
        assert repeats.should_write(denied(BOB, "read", "t"))

    def test_a_flood_of_one_user_hides_no_other_behind_the_same_address(self) -> None:
        repeats = RepeatFilter()
        for number in range(1_000):
            repeats.should_write(denied(BOB, "read", f"t{number}"))
        assert repeats.should_write(denied(Actor("ann", BOB.client_ip, "flymq"), "read", "t"))

    def test_many_senders_together_are_bounded_too(self) -> None:
        repeats = RepeatFilter()
        written = sum(
            repeats.should_write(attack(f"10.0.0.{sender}", f"user{number}"))
            for sender in range(100)
            for number in range(AT_ONCE_MAX)
        )
        assert written == EVENTS_MAX
        counted = sum(int(one.details["repeated"]) for one in repeats.end_window())
        assert written + counted == 100 * AT_ONCE_MAX

    def test_a_flood_of_failures_hides_no_login_that_went_well(self) -> None:
        repeats = RepeatFilter()
        for n in range(10_000):
            repeats.should_write(attack(f"10.0.{n >> 8}.{n & 255}", f"user{n}"))
        assert repeats.should_write(logged_in(BOB, "password"))

    def test_senders_beyond_number_are_counted_together_and_nothing_is_lost(self) -> None:
        repeats = RepeatFilter()
        count = 20_000
        written = sum(
            repeats.should_write(attack(f"10.1.{n >> 8}.{n & 255}")) for n in range(count)
        )
        assert written == min(SENDERS_MAX, EVENTS_MAX)
        (others,) = repeats.end_window()
        assert (others.user, others.client_ip, others.type) == ("", "", "auth.failure")
        assert others.details == {"repeated": str(count - written), "senders": "others"}

    @given(
        st.lists(
            st.builds(
                attack,
                st.integers(0, 400).map("10.0.0.{}".format),
                st.sampled_from(["", "a", "b"]),
            ),
            max_size=2_000,
        )
    )
    def test_each_event_is_written_or_counted_once_and_writes_are_bounded(
        self, events: list[AuditEvent]
    ) -> None:
        repeats = RepeatFilter()
        written = sum(map(repeats.should_write, events))
        summaries = repeats.end_window()
        assert written <= EVENTS_MAX
        assert len(summaries) <= SENDERS_MAX + 1
        assert written + sum(int(one.details["repeated"]) for one in summaries) == len(events)

    @pytest.mark.parametrize(
        ("address", "network"),
        [
            ("192.0.2.7", "192.0.2.7"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("fe80::1%eth0", "fe80::/64"),
            ("not:an:address", "not:an:address"),
            ("", ""),
        ],
    )
    def test_a_network_is_what_one_customer_has(self, address: str, network: str) -> None:
        assert network_of(address) == network

    def test_types_are_those_that_flymq_programs_look_for(self) -> None:
        """docs/security.rst lists them all."""
        names = {kind.value for kind in audit.EventType}
        assert {
            "auth.success",
            "auth.failure",
            "access.denied",
            "topic.create",
            "topic.delete",
            "user.create",
            "user.delete",
        } <= names
