"""Schemas in the broker: versions, modes, deletions, and what is left of them after a restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.broker import BrokerSettings, Congested
from brokerd.broker.schemas import registry as module
from brokerd.broker.schemas.entries import SchemaVersion
from brokerd.errors import (
    BrokerdError,
    IncompatibleSchema,
    InvalidName,
    InvalidSchema,
    LimitExceeded,
    NewerFormat,
    NoSpace,
    UnknownSchema,
)
from brokerd.schemas.values import DEFINITION_BYTES_MAX, Mode, SchemaType
from brokerd.security.access import OPEN
from brokerd.walformat import Entry, EntryKind
from tests.broker.test_audit import AUDITED, ask, fill_disk
from tests.house import House

JSON = SchemaType.JSON
WIDE, NARROW = b'{"type": ["integer", "null"]}', b'{"type": "integer"}'


def told(call: Callable[..., None], *arguments: Any) -> Any:
    """What ``done`` is given; raises what it is given."""
    results: list[tuple[Any, BrokerdError | None]] = []
    call(*arguments, lambda *result: results.append(result))
    ((result, error),) = results
    if error is not None:
        raise error
    return result


def register(house: House, name: str, text: bytes = NARROW) -> SchemaVersion:
    made: SchemaVersion = told(house.broker.schemas.register, OPEN, name, JSON, text)
    return made


def at_once(house: House, *asked: tuple[str, bytes]) -> list[tuple[Any, BrokerdError | None]]:
    """What those are told who register while all of their schemas are looked at."""
    schemas = house.broker.schemas
    waiting: list[Callable[[], None]] = []
    schemas._checker._submit = lambda work, done: waiting.append(lambda: done(work(), None))
    results: list[tuple[Any, BrokerdError | None]] = []
    for name, text in asked:
        schemas.register(OPEN, name, JSON, text, lambda *result: results.append(result))
    while waiting:
        waiting.pop(0)()
    return results


def everything(house: House) -> object:
    return [
        (known.name, known.mode, known.last, list(known.versions.values()))
        for known in house.broker.schemas.names()
    ]


def versions(house: House, name: str) -> list[int]:
    return list(house.broker.schemas.find(name).versions)


class TestVersions:
    def test_each_registration_makes_the_next_one(self) -> None:
        """Of a text that is there already, too."""
        house = House()
        assert [register(house, "order", NARROW).version for _ in range(3)] == [1, 2, 3]
        register(house, "order", WIDE)
        schemas = house.broker.schemas
        assert schemas.get("order").text == WIDE
        assert schemas.get("order", 2).text == NARROW
        assert register(house, "other").version == 1

    def test_the_latest_is_the_highest_that_is_left(self) -> None:
        """And a number is not given again."""
        house = House()
        for _ in range(3):
            register(house, "order")
        schemas = house.broker.schemas
        schemas.delete(OPEN, "order", 3)
        assert schemas.get("order").version == 2
        schemas.delete(OPEN, "order", 1)
        assert register(house, "order").version == 4
        assert versions(house, "order") == [2, 4]

    def test_a_name_without_versions_is_forgotten(self) -> None:
        """With its mode; whoever registers it again begins with 1."""
        house = House()
        schemas = house.broker.schemas
        for version in (1, 0):
            register(house, "order")
            schemas.set_mode(OPEN, "order", Mode.NONE)
            schemas.delete(OPEN, "order", version)
            assert schemas.names() == []
        assert register(house, "order").version == 1
        assert schemas.find("order").mode is Mode.BACKWARD

    def test_what_is_not_there_is_told(self) -> None:
        house = House()
        schemas = house.broker.schemas
        register(house, "order")
        for call, text in (
            (lambda: schemas.get("nope"), "no schema found for topic: nope"),
            (lambda: schemas.get("nope", 1), "schema not found: nope v1"),
            (lambda: schemas.get("order", 2), "schema not found: order v2"),
            (lambda: schemas.find("nope"), "schema not found: nope"),
            (
                lambda: schemas.delete(OPEN, "order", 2),
                "failed to delete schema: schema not found: order v2",
            ),
            (
                lambda: schemas.delete(OPEN, "nope"),
                "failed to delete schema: schema not found: nope",
            ),
            (lambda: schemas.set_mode(OPEN, "nope", Mode.FULL), "schema not found: nope"),
            (lambda: told(schemas.validate, "nope", b"1"), "schema not found: nope"),
        ):
            with pytest.raises(UnknownSchema) as refused:
                call()
            assert str(refused.value) == text

    def test_names_follow_the_rules_of_topics(self) -> None:
        house = House()
        for name, why in (
            ("", "a name of 1 to 255 bytes"),
            ("x" * 256, "longer than 255 bytes"),
            ("a\nb", "a control character"),
            ("__brokerd.x", "the broker's own"),
        ):
            with pytest.raises(InvalidName, match=why):
                register(house, name)
        assert house.broker.schemas.names() == []
        register(house, "__brokerd")


class TestRefusals:
    def test_what_does_not_go_together_is_refused_by_the_mode(self) -> None:
        house = House()
        register(house, "order", WIDE)
        with pytest.raises(
            IncompatibleSchema, match=r"schema compatibility check failed: .*\(version 1\)"
        ):
            register(house, "order", NARROW)
        house.broker.schemas.set_mode(OPEN, "order", Mode.FORWARD)
        assert register(house, "order", NARROW).version == 2
        with pytest.raises(IncompatibleSchema):
            register(house, "order", WIDE)
        assert versions(house, "order") == [1, 2]

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            (b"", "schema definition cannot be empty"),
            (b" " * (DEFINITION_BYTES_MAX + 1), "262145 bytes; the limit is 262144"),
            (b"[]", "invalid JSON schema: an object is expected"),
        ],
    )
    def test_what_is_no_definition_is_refused(self, text: bytes, why: str) -> None:
        house = House()
        with pytest.raises(InvalidSchema, match=why) as refused:
            register(house, "order", text)
        assert str(refused.value).startswith(
            "failed to register schema: invalid schema definition: "
        )
        assert house.broker.schemas.names() == []

    @pytest.mark.parametrize(
        ("limit", "most", "what"),
        [
            ("NAMES_MAX", 2, "there may be 2 names"),
            ("VERSIONS_MAX", 3, "there may be 3 versions of schemas"),
            ("TEXT_BYTES_MAX", 4 * len(NARROW) - 1, "bytes of schemas"),
            ("NAME_VERSIONS_MAX", 2, "there may be 2 versions"),
            ("NAME_TEXT_BYTES_MAX", 3 * len(NARROW) - 1, "bytes of all versions of one name"),
        ],
    )
    def test_there_are_limits(
        self, limit: str, most: int, what: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is deleted makes room."""
        house = House()
        monkeypatch.setattr(module, limit, most)
        for name in ("a", "a", "b"):
            register(house, name)
        with pytest.raises(LimitExceeded, match=what):
            for name in ("a", "c"):
                register(house, name)
        house.broker.schemas.delete(OPEN, "a", 0)
        register(house, "c")

    def test_a_message_is_told_what_does_not_fit_the_latest_version(self) -> None:
        house = House()
        schemas = house.broker.schemas
        register(house, "order", NARROW)
        assert told(schemas.validate, "order", b"null") == [
            "type mismatch at $: expected integer, got null"
        ]
        register(house, "order", WIDE)
        assert told(schemas.validate, "order", b"null") == []

    def test_two_that_register_at_once_are_both_compared(self) -> None:
        """The second with what the first has made meanwhile."""
        (first, _), (second, error) = at_once(House(), ("order", WIDE), ("order", NARROW))
        assert first.version == 1
        assert second is None
        assert isinstance(error, IncompatibleSchema)

    def test_limits_hold_for_those_that_register_at_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "NAMES_MAX", 1)
        house = House()
        (_, (second, error)) = at_once(house, ("a", WIDE), ("b", WIDE))
        assert second is None
        assert isinstance(error, LimitExceeded)
        assert [known.name for known in house.broker.schemas.names()] == ["a"]


class TestDurability:
    def change(self, house: House) -> None:
        schemas = house.broker.schemas
        for name in ("a", "b", "c"):
            for _ in range(3):
                register(house, name)
        schemas.set_mode(OPEN, "a", Mode.FULL_TRANSITIVE)
        schemas.delete(OPEN, "a", 3)
        schemas.delete(OPEN, "b")
        schemas.delete(OPEN, "c", 1)
        house.run()

    @pytest.mark.parametrize("clean", [True, False])
    def test_everything_survives_a_restart(self, clean: bool) -> None:
        """From the log, and from a snapshot; what was deleted stays so."""
        house = House()
        self.change(house)
        before = everything(house)
        for _ in range(2):
            if clean:
                house.stop()
                house = house.again()
            else:
                house = house.crash()
            assert everything(house) == before
        assert register(house, "a").version == 4
        assert register(house, "b").version == 1

    def test_what_is_not_durable_is_gone(self) -> None:
        house = House()
        register(house, "a")
        house.run()
        register(house, "a")
        house = house.crash()
        assert versions(house, "a") == [1]

    def test_snapshots_in_the_midst_of_changes_agree_with_the_log(self) -> None:
        house = House(settings=BrokerSettings(snapshot_interval_bytes=4_000))
        for number in range(60):
            register(house, f"s{number % 5}")
            if number % 3 == 0:
                house.broker.schemas.delete(OPEN, f"s{number % 5}")
            house.pass_time(0.01, step=0.01)
        assert house.broker.status()["snapshots_written"] > 2
        before = everything(house)
        assert everything(house.crash()) == before

    def test_what_changes_while_a_snapshot_is_taken_leaves_the_mode(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The snapshot has the change, and so has the log behind its beginning."""
        monkeypatch.setattr("brokerd.broker.model.snapshotter.STEP_THINGS", 1)
        house = House()
        for name in ("a", "b", "c"):
            house.broker.topics.create(name)
        register(house, "order")
        house.broker.schemas.set_mode(OPEN, "order", Mode.FULL)
        house.run()
        house.broker.snapshotter.begin()
        register(house, "order")
        house.broker.schemas.delete(OPEN, "order", 1)
        house.pass_time(1.0, step=0.01)
        assert house.broker.snapshotter.written == 1
        before = everything(house)
        house = house.crash()
        assert everything(house) == before
        assert house.broker.schemas.find("order").mode is Mode.FULL

    def test_more_than_a_chunk_comes_back(self) -> None:
        house = House()
        text = b'{"title": "%s"}' % (b"x" * 200_000)
        for number in range(30):
            told(house.broker.schemas.register, OPEN, f"s{number // 15}", JSON, text)
            house.run()
        before = everything(house)
        house.stop()
        assert everything(house.again()) == before

    @pytest.mark.parametrize("body", [{"op": "blessed"}])
    def test_what_a_newer_version_says_is_refused_and_not_passed_over(self, body: Any) -> None:
        house = House()
        house.broker.group_commit.admit(100)
        house.broker.group_commit.add_entry(
            Entry(EntryKind.SCHEMA, 0, 0, 0, 0, msgpack.packb(body))
        )
        house.run()
        with pytest.raises(NewerFormat, match="'blessed' of a schema"):
            house.crash()

    def test_on_a_full_disk_schemas_can_be_deleted_and_not_registered(self) -> None:
        house = House()
        register(house, "order")
        house.run()
        fill_disk(house)
        with pytest.raises(NoSpace):
            register(house, "order")
        house.broker.schemas.delete(OPEN, "order")
        house.run()
        assert everything(house.crash()) == []

    def test_a_registration_waits_for_room_in_the_log(self) -> None:
        house = House()
        register(house, "other")  # a commit is under way
        group_commit = house.broker.group_commit
        admit, calls = group_commit.admit, []

        def congested_once(size: int) -> None:
            calls.append(size)
            if len(calls) == 1:
                raise Congested("log space is being allocated; try again")
            admit(size)

        group_commit.admit = congested_once  # type: ignore[method-assign, assignment]
        results: list[Any] = []
        house.broker.schemas.register(
            OPEN, "order", JSON, NARROW, lambda *result: results.append(result)
        )
        assert results == []
        house.run()
        ((made, error),) = results
        assert error is None
        assert made.version == 1
        assert everything(house.crash()) == everything(house) != []

    def test_not_many_wait_for_room_in_the_log(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Clients may have left meanwhile, and others come."""
        monkeypatch.setattr(module, "WAITING_MAX", 2)
        house = House()
        group_commit = house.broker.group_commit
        admit = group_commit.admit

        def congested(size: int) -> None:
            raise Congested("log space is being allocated; try again")

        for names in ("abc", "def"):
            register(house, "other")  # a commit is under way
            group_commit.admit = congested  # type: ignore[method-assign, assignment]
            results: list[Any] = []
            for name in names:
                house.broker.schemas.register(
                    OPEN, name, JSON, NARROW, lambda *result, to=results: to.append(result)
                )
            ((made, error),) = results
            assert made is None
            assert isinstance(error, LimitExceeded)
            group_commit.admit = admit  # type: ignore[method-assign]
            house.run()
        known = [known.name for known in house.broker.schemas.names()]
        assert known == ["a", "b", "d", "e", "other"]


def test_each_change_is_in_the_audit_trail() -> None:
    house = House(settings=AUDITED)
    schemas = house.broker.schemas
    register(house, "order")
    schemas.set_mode(OPEN, "order", Mode.NONE)
    schemas.delete(OPEN, "order", 1)
    with pytest.raises(UnknownSchema):
        schemas.delete(OPEN, "order", 1)
    house.run()
    page = ask(house.crash())
    assert [(e.type, e.resource, e.details) for e in reversed(page.events)] == [
        ("schema.register", "order", {"version": "1", "type": "json"}),
        ("schema.configure", "order", {"compatibility": "none"}),
        ("schema.delete", "order", {"version": "1"}),
    ]


_CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["register", "delete", "mode", "crash", "stop"]),
        st.sampled_from(["a", "b"]),
        st.integers(0, 4),
    ),
    max_size=25,
)


@given(_CHANGES)
def test_any_changes_leave_what_they_should(changes: list[tuple[str, str, int]]) -> None:
    """As a model has it that is a dict of dicts, through crashes and clean stops."""
    house = House()
    model: dict[str, dict[int, bytes]] = {}
    last: dict[str, int] = {}
    for what, name, number in changes:
        if what == "register":
            text = b'{"title": "%d"}' % number
            last[name] = last.get(name, 0) + 1
            model.setdefault(name, {})[last[name]] = text
            assert register(house, name, text).version == last[name]
        elif what == "delete" and name in model and (not number or number in model[name]):
            house.broker.schemas.delete(OPEN, name, number)
            model[name] = {one: text for one, text in model[name].items() if number not in (0, one)}
            if not model[name]:
                del model[name], last[name]
        elif what == "mode" and name in model:
            house.broker.schemas.set_mode(OPEN, name, list(Mode)[number])
        elif what == "crash":
            house.run()
            house = house.crash()
        elif what == "stop":
            house.stop()
            house = house.again()
        found = {
            known.name: {number: one.text for number, one in known.versions.items()}
            for known in house.broker.schemas.names()
        }
        assert found == model
