# Tests: brokerd/groups/
"""Whatever is done to a lease store, in any order, it behaves as the naive model does.

After every step the store is also rebuilt twice, from its events and from its snapshot; both must
look the same as the model. HYPOTHESIS_PROFILE=long digs deeper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brokerd.errors import BrokerdError
from brokerd.groups import (
    EXAMINED_MAX,
    GONE,
    RANGES_MAX,
    STOP,
    TAKE,
    GroupSettings,
    LeaseStore,
    eligible,
    gone_until,
    store,
    tables,
)
from brokerd.groups import packed as packing
from brokerd.values import Grant
from brokerd.walformat import GroupEvent
from tests.groups.model import Model
from tests.strategies import groups as some

LOOKED_AT = sorted({*range(30), *some.BOUNDARIES})
"""Offsets whose attempts are compared."""


def outcome(command: Callable[[], Any]) -> Any:
    """What a command answers: its value, or the name of its error."""
    try:
        return command()
    except BrokerdError as error:
        return type(error).__name__


def seen(store: LeaseStore, end: int) -> dict[str, Any]:
    """All that can be seen of a store in which nothing is due."""
    return {
        "floor": min(store.floor, end),
        "lag": store.lag(end),
        "oldest": store.oldest_unsettled(end),
        "leases": list(store.leases()),
        "counts": (store.leased, store.ready, store.delayed, store.dead),
        "dead": list(store.dead_letters()),
        "attempts": {o: a for o in LOOKED_AT if (a := store.attempts(o)) != (0, 0)},
        "next due": store.next_due_us(),
        "committed": store.committed,
        "token": store.last_token,
        "settings": store.settings,
        "paused": store.paused,
    }


def expected(model: Model, now_us: int) -> dict[str, Any]:
    """The same of the model, in which nothing is due either."""
    floor, end = model.floor(), len(model.records)
    leases, dead = model.leases(), model.dead_letters()
    ready, delayed = model.ready(now_us), model.delayed(now_us)
    return {
        "floor": floor,
        "lag": model.lag(),
        "oldest": floor if floor < end else None,
        "leases": leases,
        "counts": (len(leases), len(ready), len(delayed), len(dead)),
        "dead": dead,
        "attempts": {o: a for o, a in model.attempts().items() if o in LOOKED_AT},
        "next due": model.next_due_us(now_us),
        "committed": model.committed,
        "token": model.token,
        "settings": model.settings,
        "paused": model.paused,
    }


class LeaseStoreMachine(RuleBasedStateMachine):
    """A store, its model, and everything a broker, a worker or an operator may do."""

    @initialize(
        group_settings=some.group_settings(),
        count=some.batch_sizes,
        looks_max=st.sampled_from([3, 40, EXAMINED_MAX]),
        ranges_max=st.sampled_from([1, RANGES_MAX]),
        large=st.sampled_from([1, 5, tables.LARGE]),
    )
    def begin(
        self,
        group_settings: GroupSettings,
        count: int,
        looks_max: int,
        ranges_max: int,
        large: int,
    ) -> None:
        self.bounds = pytest.MonkeyPatch()
        self.bounds.setattr(eligible, "EXAMINED_MAX", looks_max)
        self.bounds.setattr(eligible, "RANGES_MAX", ranges_max)
        self.bounds.setattr(tables, "LARGE", large)
        self.bounds.setattr(store, "LARGE", large)
        self.first_settings = group_settings
        self.store = LeaseStore(group_settings)
        self.model = Model(group_settings)
        self.journal: list[tuple[int, GroupEvent | None]] = []
        """What happened and when; None is a restart."""
        self.granted: dict[int, dict[int, None]] = {}
        """All tokens that were ever given for a record."""
        self.now = 0
        self.end = 0
        self.produce(count)

    def both(self, store: Callable[[], Any], model: Callable[[], Any]) -> None:
        """Do the same to the store and to the model; the answers must agree."""
        answer = outcome(store)
        self.drain()
        assert answer == outcome(model)

    def drain(self) -> None:
        self.journal.extend((self.now, event) for event in self.store.events)
        self.store.events.clear()

    def place(self, data: st.DataObject) -> int:
        """An offset, more often than not one where something happens."""
        places = [self.model.floor(), self.store._touched.floor]
        places += [lease.offset for lease in self.model.leases()[:8]]
        places += self.model.ready(self.now)[:4] + self.model.delayed(self.now)[:4]
        return data.draw(
            st.one_of(
                st.builds(int.__add__, st.sampled_from(places), some.near),
                some.offsets,
            ),
            label="offset",
        )

    def holder(self, data: st.DataObject, offset: int) -> tuple[str | None, int | None]:
        """An owner, a token, both or neither: the right ones, or somebody else's."""
        record = self.model.records[offset] if 0 <= offset < self.end else None
        right = record.owner if record is not None and record.owner else "ann"
        owner = data.draw(st.one_of(st.just(right), st.none(), some.owners), label="owner")
        token = record.token if record is not None else None
        tokens = [None, token, token, *self.granted.get(offset, ()), max(self.model.token, 1)]
        return owner, data.draw(st.sampled_from(tokens), label="token")

    @rule(count=some.batch_sizes)
    def produce(self, count: int) -> None:
        if self.end + count <= 2100:
            self.end += count
            self.model.produce(
                [some.key_of(offset) for offset in range(self.end - count, self.end)]
            )

    @rule(step=some.steps_us)
    def pass_time(self, step: int) -> None:
        self.now += step

    @rule(early=st.sampled_from([0, 0, 1]), look=st.booleans())
    def wait_for_the_next_deadline(self, early: int, look: bool) -> None:
        """To the last moment of a lease or a delay, or to the first after it."""
        due_us = self.model.next_due_us(self.now)
        if due_us is not None:
            self.now = max(due_us - early, self.now)
        if look:
            self.expire()

    @rule(
        owner=some.owners,
        ends=st.lists(st.sampled_from(some.ENDS)),
        again=st.booleans(),
        with_token=st.booleans(),
    )
    def work(self, owner: str, ends: list[str], again: bool, with_token: bool) -> None:
        """A worker takes one record after the other, and each ends in its own way."""
        for end in ends:
            self.acquire(owner, 10, 1)
            mine = [lease for lease in self.model.leases() if lease.token == self.model.token]
            if not mine or mine[0].owner != owner:
                return
            offset, token = mine[0].offset, mine[0].token if with_token else None
            if end in ("lapse", "late", "late fail"):
                self.now += 11
            if end == "give back":
                self.both(
                    lambda o=offset, t=token: self.store.release(self.now, o, owner, t, 0),
                    lambda o=offset, t=token: self.model.release(self.now, o, owner, t, 0),
                )
            elif end != "lapse":
                for _ in range(1 + again):
                    delay = some.DELAYS_US.get(end)
                    self.settle_at(offset, end in ("done", "late"), owner, token, delay, "")

    @rule(owner=some.owners, duration=some.durations_us, limit=some.limits)
    def acquire(self, owner: str, duration: int, limit: int) -> None:
        self.acquire_some(owner, duration, limit)

    @rule(
        owner=some.owners,
        limit=some.limits,
        gone=some.gone,
        stop=st.one_of(st.none(), some.offsets),
    )
    def acquire_what_is_left(
        self, owner: str, limit: int, gone: Callable[[int], bool], stop: int | None
    ) -> None:
        """Some records are removed, and not all that are left are taken."""
        self.acquire_some(owner, 10, limit, frozenset(filter(gone, range(self.end))), stop)

    @rule(owner=some.owners, limit=some.limits, first=some.offsets, last=some.offsets)
    def acquire_around_a_hole(self, owner: str, limit: int, first: int, last: int) -> None:
        """All records of a range are removed, whatever became of them before."""
        self.acquire_some(owner, 10, limit, hole=range(first, min(last + 1, self.end)))

    def acquire_some(
        self,
        owner: str,
        duration: int,
        limit: int,
        gone: frozenset[int] = frozenset(),
        stop: int | None = None,
        hole: range = range(0),
    ) -> None:
        def accept(offset: int) -> int:
            if offset in hole:
                return gone_until(hole.stop)
            return GONE if offset in gone else STOP if offset == stop else TAKE

        def accept_run(first: int, count: int) -> int:
            takes = [accept(offset) == TAKE for offset in range(first, first + count)]
            return [*takes, False].index(False)

        def acquire() -> list[Grant]:
            """Ask until it was not for a bound that it gave no more."""
            granted: list[Grant] = []
            first = True
            while True:
                granted += self.store.acquire(
                    self.now,
                    self.end,
                    owner,
                    duration,
                    limit - len(granted),
                    accept,
                    end_due_first=first,
                    key_of=some.key_of,
                    accept_run=accept_run if self.end & 1 else None,
                )
                first = False
                if not self.store.cut_short:
                    return granted

        self.both(
            acquire,
            lambda: self.model.acquire(self.now, owner, duration, limit, gone, stop, hole),
        )
        for lease in self.model.leases():
            self.granted.setdefault(lease.offset, {})[lease.token] = None

    @rule(
        data=st.data(),
        success=st.booleans(),
        delay=st.one_of(st.none(), some.delays_us),
        reason=some.reasons,
        again=st.booleans(),
    )
    def settle(
        self, data: st.DataObject, success: bool, delay: int | None, reason: str, again: bool
    ) -> None:
        offset = self.place(data)
        owner, token = self.holder(data, offset)
        for _ in range(1 + again):
            self.settle_at(offset, success, owner, token, delay, reason)

    def settle_at(
        self,
        offset: int,
        success: bool,
        owner: str | None = None,
        token: int | None = None,
        delay: int | None = None,
        reason: str = "",
    ) -> None:
        rest = (offset, success, owner, token, delay, reason)
        self.both(
            lambda: self.store.settle(self.now, self.end, *rest),
            lambda: self.model.settle(self.now, *rest),
        )

    @precondition(lambda self: self.model.leases())
    @rule(data=st.data(), success=st.booleans())
    def settle_some_of_mine(self, data: st.DataObject, success: bool) -> None:
        """A worker settles some of what it was granted, in any order."""
        leases = self.model.leases()[:40]
        chosen = data.draw(st.lists(st.sampled_from(leases), unique=True), label="settled")
        for lease in chosen:
            self.settle_at(lease.offset, success, lease.owner, lease.token, None, "")

    @precondition(lambda self: self.model.leases())
    @rule(data=st.data(), with_owner=st.booleans())
    def settle_run(self, data: st.DataObject, with_owner: bool) -> None:
        """A worker settles a batch; the store ends at the first one that is not a live lease."""
        leases = self.model.leases()[:40]
        chosen = data.draw(st.lists(st.sampled_from(leases), min_size=1), label="settled")
        owner = chosen[0].owner if with_owner else None
        offsets = [lease.offset for lease in chosen]
        tokens: list[int | None] = [
            data.draw(st.sampled_from([lease.token, lease.token, None, lease.token + 1]))
            for lease in chosen
        ]
        settled = self.store.settle_run(self.now, offsets, owner, tokens)
        self.drain()
        for offset, token in list(zip(offsets, tokens, strict=True))[:settled]:
            assert self.model.settle(self.now, offset, True, owner, token, None, "")
        if settled < len(offsets) and self.store._order is None and not self.is_large():
            record, token = self.model.records[offsets[settled]], tokens[settled]
            assert not (
                record.state == "leased"
                and record.deadline_us >= self.now
                and owner in (None, record.owner)
                and token in (None, record.token)
            )

    @precondition(lambda self: self.model.leases())
    @rule(data=st.data(), with_owner=st.booleans(), with_tokens=st.booleans())
    def settle_neighbours(self, data: st.DataObject, with_owner: bool, with_tokens: bool) -> None:
        """A worker settles adjacent records, all or a part of what one acquire gave it."""
        leases = self.model.leases()
        first = data.draw(st.integers(0, len(leases) - 1), label="first")
        count = data.draw(st.integers(1, 12), label="count")
        chosen = leases[first : first + count]
        owner = chosen[0].owner if with_owner else None
        tokens = [lease.token if with_tokens else None for lease in chosen]
        offsets = [lease.offset for lease in chosen]
        settled = self.store.settle_run(self.now, offsets, owner, tokens)
        self.drain()
        for offset, token in list(zip(offsets, tokens, strict=True))[:settled]:
            assert self.model.settle(self.now, offset, True, owner, token, None, "")
        if settled < len(offsets) and self.store._order is None and not self.is_large():
            record = self.model.records[offsets[settled]]
            assert record.deadline_us < self.now or owner not in (None, record.owner)

    def is_large(self) -> bool:
        return type(self.store._leases) is not dict

    @precondition(lambda self: self.model.delayed(self.now))
    @rule(data=st.data(), success=st.booleans())
    def settle_what_waits(self, data: st.DataObject, success: bool) -> None:
        """Somebody settles a record whose delay is not over."""
        offset = data.draw(st.sampled_from(self.model.delayed(self.now)[:20]), label="waiting")
        self.settle_at(offset, success)
        self.expire()

    @rule(data=st.data())
    def settle_leased(self, data: st.DataObject) -> None:
        offset = self.place(data)
        owner, token = self.holder(data, offset)
        self.both(
            lambda: self.store.settle_leased(self.now, offset, owner, token),
            lambda: self.model.settle_leased(self.now, offset, owner, token),
        )

    @rule(data=st.data(), duration=some.durations_us)
    def extend(self, data: st.DataObject, duration: int) -> None:
        offset = self.place(data)
        owner, token = self.holder(data, offset)
        self.both(
            lambda: self.store.extend(self.now, offset, duration, owner, token),
            lambda: self.model.extend(self.now, offset, duration, owner, token),
        )

    @rule(data=st.data(), delay=some.delays_us)
    def release(self, data: st.DataObject, delay: int) -> None:
        offset = self.place(data)
        owner, token = self.holder(data, offset)
        self.both(
            lambda: self.store.release(self.now, offset, owner, token, delay),
            lambda: self.model.release(self.now, offset, owner, token, delay),
        )

    @rule(owner=some.owners)
    def release_owner(self, owner: str) -> None:
        self.both(
            lambda: self.store.release_owner(self.now, owner),
            lambda: self.model.release_owner(self.now, owner),
        )

    @rule(data=st.data(), reason=some.reasons)
    def dead_letter(self, data: st.DataObject, reason: str) -> None:
        offset = self.place(data)
        self.both(
            lambda: self.store.dead_letter(self.now, self.end, offset, reason),
            lambda: self.model.dead_letter(self.now, offset, reason),
        )

    @rule(
        replay=st.booleans(),
        some_range=st.one_of(st.just((0, 3000)), some.close_ranges),
        reason=some.reasons,
        ago=st.none() | st.integers(0, 20),
    )
    def take_from_the_dead(
        self, replay: bool, some_range: tuple[int, int], reason: str, ago: int | None
    ) -> None:
        self.catch_up()
        store = self.store.replay_dead if replay else self.store.purge_dead
        model = self.model.replay_dead if replay else self.model.purge_dead
        before_us = None if ago is None else self.now - ago
        self.both(
            lambda: store(*some_range, reason, before_us),
            lambda: model(*some_range, reason, before_us),
        )

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        if paused:
            self.store.pause()
        else:
            self.store.unpause()
        self.model.paused = paused
        self.drain()

    @rule(data=st.data(), length=some.batch_sizes)
    def settle_range(self, data: st.DataObject, length: int) -> None:
        first = self.place(data)
        end = min(first + length, self.end)
        self.catch_up()
        self.both(
            lambda: self.store.settle_range(first, end),
            lambda: self.model.settle_range(first, end),
        )

    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        floor = min(max(self.place(data), 0), self.end)
        self.catch_up()
        self.both(lambda: self.store.seek(floor), lambda: self.model.seek(floor))

    @rule(offset=some.offsets)
    def commit_offset(self, offset: int) -> None:
        self.store.commit_offset(offset)
        self.model.committed = offset
        self.drain()

    @rule(group_settings=some.group_settings())
    def configure(self, group_settings: GroupSettings) -> None:
        self.catch_up()
        self.store.configure(group_settings)
        self.model.configure(group_settings)
        self.drain()

    @rule()
    def delete(self) -> None:
        self.both(self.store.delete, self.model.delete)

    @rule()
    def expire(self) -> None:
        self.catch_up()
        assert seen(self.store, self.end) == expected(self.model, self.now)

    @rule(from_snapshot=st.booleans())
    def restart(self, from_snapshot: bool) -> None:
        self.catch_up()
        self.store = self.thawed() if from_snapshot else self.replayed()
        self.store.resume(self.now)
        self.model.resume(self.now)
        self.journal.append((self.now, None))

    def catch_up(self) -> None:
        """End what lapsed, in both, so that what follows meets the same leases."""
        self.store.end_due(self.now)
        self.drain()
        self.model.lapse(self.now)

    def replayed(self) -> LeaseStore:
        store = LeaseStore(self.first_settings)
        for now_us, event in self.journal:
            if event is None:
                store.resume(now_us)
            else:
                store.apply(event, now_us)
        assert store.events == [], "replay makes no events"
        return store

    def thawed(self) -> LeaseStore:
        """The store as its snapshot gives it back."""
        chunks = self.store.freeze(self.now).encode()
        return LeaseStore.decode(list(chunks), self.now, self.first_settings)

    @invariant()
    def rebuilt_stores_look_the_same(self) -> None:
        self.model.lapse(self.now)
        for rebuild in (self.replayed, self.thawed):
            rebuilt = rebuild()
            rebuilt.end_due(self.now)
            rebuilt.events.clear()
            assert seen(rebuilt, self.end) == expected(self.model, self.now), rebuild.__name__

    @rule()
    def pack(self) -> None:
        """A packed and opened store goes on as if it had stayed open."""
        packed = packing.pack(self.store)
        if packed is not None:
            self.store = LeaseStore.decode(packed, 0, self.first_settings)

    @invariant()
    def packed_bytes_tell_what_the_store_tells(self) -> None:
        packed = packing.pack(self.store)
        if packed is None:
            return
        assert packing.can_stay_packed(packed)
        assert packing.position(packed) == packing.position_of(self.store)
        assert packing.last_token(packed) == self.store.last_token
        if not self.store.paused:
            assert packing.lowest_open(packed) == next(self.store.open(0, 1 << 62))
        own = self.store.settings if self.store.configured else None
        assert packing.settings(packed) == own
        again, due_us = packing.restart(packed, 0, self.now, 7)
        restarted = LeaseStore.decode(packed, 0, self.first_settings)
        restarted.resume(self.now, 7)
        assert due_us == restarted.next_due_us()
        opened = LeaseStore.decode(again, self.now, self.first_settings)
        assert seen(opened, self.end) == seen(restarted, self.end)

    def teardown(self) -> None:
        """In the end everything that is left can be leased, once, lowest offset first."""
        if not hasattr(self, "store"):
            return
        self.bounds.undo()
        self.now += 1_000
        self.pause(False)
        self.expire()
        self.acquire_some("last", 10, 4000)
        assert self.store.acquire(self.now, self.end, "nobody", 10, key_of=some.key_of) == []


TestLeaseStore = LeaseStoreMachine.TestCase
