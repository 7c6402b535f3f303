"""The broker against a model that was written from docs/leases.rst and docs/broker.rst alone.

Random requests go to both, time passes for both, the broker is stopped or loses power. After each
step everything that can be seen of the groups must be what the pages say, and a long poll that
waits must be served within a tenth of a second of the moment at which there is something for it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

import pytest

from brokerd.broker import BrokerSettings
from brokerd.errors import BrokerdError, LeaseLost, NotLeaseOwner
from brokerd.groups import GroupSettings
from tests.broker.desk import SECOND_US, grants, settle
from tests.broker.test_broker import Poll
from tests.house import House

IN_TIME_SECONDS = 0.06
"""More than a step of the clocks, and less than a tenth of a second."""
NEAR_SECONDS = 0.002
"""No two things are compared that are closer to one another than this."""
POLL_SECONDS = 10_000.0
FORGETFUL = BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0)


@dataclass
class Entry:
    """What a group knows of a record."""

    state: str = "untouched"
    grants: int = 0
    failures: int = 0
    token: int | None = None
    counted: bool = False
    """Whether the last grant has failed already."""
    until: float = 0.0
    """Deadline of a leased one, end of the delay of a delayed one."""
    owner: str = ""
    duration: float = 0.0
    reason: str = ""

    @property
    def is_open(self) -> bool:
        return self.state not in ("settled", "dead")


@dataclass
class Group:
    """A group as the pages have it: settings, and an entry for each record."""

    partitions: list[list[Entry]]
    settings: GroupSettings = field(default_factory=GroupSettings)
    paused: bool = False
    last_token: int = 0

    def entries(self) -> Iterator[Entry]:
        for part in self.partitions:
            yield from part


@dataclass
class Message:
    """A record, or a delayed message."""

    key: bytes | None
    expires: float
    due: float = 0.0
    index: int = 0


class Pages:
    """One topic and two groups, in the broker and in the model."""

    def __init__(self, seed: int, partitions: int) -> None:
        self.random = random.Random(seed)
        self.house = House(settings=self.random.choice([None, FORGETFUL]))
        self.now = 0.0
        self.count = partitions
        self.records: list[list[Message]] = [[] for _ in range(partitions)]
        self.starts = [0] * partitions
        self.groups: dict[str, Group] = {}
        self.scheduled: dict[int, Message] = {}
        self.next_schedule_id = 0
        self.poll: Poll | None = None
        self.house.broker.topics.create("t", partitions)
        self.house.run()

    # -- the model ----------------------------------------------------------------------------

    def group(self, name: str) -> Group:
        """A group; one that does not exist is made as its first event would make it."""
        group = self.groups.setdefault(name, Group([[] for _ in range(self.count)]))
        for index, part in enumerate(group.partitions):
            for offset in range(len(part), len(self.records[index])):
                gone = offset < self.starts[index]
                part.append(Entry("settled" if gone else "untouched"))
        return group

    def eligible(self, group: Group, index: int) -> list[int]:
        """What an acquire would give, expired ones included."""
        if group.paused:
            return []
        keys = [message.key for message in self.records[index]]
        part = group.partitions[index]
        busy = {keys[offset] for offset, one in enumerate(part) if one.state == "leased"} - {None}
        found = []
        for offset, one in enumerate(part):
            if not one.is_open or one.state == "leased":
                continue
            if group.settings.key_ordered and keys[offset] is not None:
                if keys[offset] in busy:
                    continue
                busy.add(keys[offset])
            if one.state != "delayed":
                found.append(offset)
        return found

    def give(self, group: Group, index: int, owner: str, seconds: float, limit: int) -> list[int]:
        """Lease as the pages say, lowest first; the offsets."""
        given: list[int] = []
        while len(given) < limit and (offsets := self.eligible(group, index)):
            one, message = group.partitions[index][offsets[0]], self.records[index][offsets[0]]
            if message.expires <= self.now:
                one.state = "settled"
            else:
                self.lease(one, owner, seconds)
                given.append(offsets[0])
        return given

    def lease(self, one: Entry, owner: str, seconds: float) -> None:
        one.state, one.owner, one.duration = "leased", owner, seconds
        one.until = self.now + seconds
        one.grants += 1
        one.counted = False

    def come_back(self, one: Entry, until: float) -> None:
        one.state, one.until = ("delayed", until) if until > self.now else ("ready", 0.0)

    def bury(self, one: Entry) -> None:
        one.state, one.reason = "dead", "max_attempts"

    def lapse(self, group: Group, one: Entry) -> None:
        if group.settings.attempts == "grants" and one.grants >= group.settings.max_attempts:
            self.bury(one)
        else:
            self.come_back(one, one.until + group.settings.backoff_us(one.failures) / 1e6)

    def fail(self, group: Group, one: Entry, delay: float | None) -> None:
        settings = group.settings
        one.failures += 1
        one.counted = True
        tried = one.grants if settings.attempts == "grants" else one.failures
        if tried >= settings.max_attempts:
            self.bury(one)
        else:
            wait = settings.backoff_us(one.failures) / 1e6 if delay is None else delay
            self.come_back(one, self.now + wait)

    def moments(self) -> list[float]:
        """When something happens by itself."""
        found = [message.due for message in self.scheduled.values()]
        found += [message.expires for part in self.records for message in part]
        for group in self.groups.values():
            found += [one.until for one in group.entries() if one.state in ("leased", "delayed")]
        return [moment for moment in found if moment > self.now]

    def happen(self) -> None:
        """Let happen in the model what time has brought."""
        due = sorted((one.due, key) for key, one in self.scheduled.items() if one.due <= self.now)
        for _, schedule_id in due:
            message = self.scheduled.pop(schedule_id)
            if message.expires > message.due:
                self.records[message.index].append(message)
        for name in self.groups:
            group = self.group(name)
            for one in group.entries():
                if one.state == "leased" and one.until < self.now:
                    self.lapse(group, one)
                if one.state == "delayed" and one.until <= self.now:
                    one.state = "ready"

    # -- time -----------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        """Let time pass, from one moment at which something happens to the next."""
        end = self.now + seconds
        while self.now < end:
            moments = self.moments()
            stop = min([*moments, end]) + IN_TIME_SECONDS
            while any(abs(moment - stop) < NEAR_SECONDS for moment in moments):
                stop += 2 * NEAR_SECONDS
            self.house.pass_time(stop - self.now)
            self.now = stop
            self.happen()
            self.look_at_poll()

    def look_at_poll(self) -> None:
        """A long poll has what it waited for, or there is nothing for it."""
        if self.poll is None:
            return
        group = self.group(self.poll.group)
        if self.poll.found:
            ((offset, _),) = self.poll.found
            assert self.give(group, 0, "poll", 30.0, 1) == [offset]
            group.partitions[0][offset].token = None
            self.poll = None
        else:
            assert self.give(group, 0, "nobody", 1.0, 1) == [], "a long poll sleeps too long"

    def restart(self) -> None:
        self.produce()  # the end of a lease forces no commit of its own
        if self.poll is not None:
            self.poll.waiter.cancel()
            self.poll = None
        self.house.run()
        if self.random.random() < 0.5:
            self.house.stop()
            self.house = self.house.again(wall_seconds=self.house.wall_seconds)
        else:
            self.house = self.house.crash(wall_seconds=self.house.wall_seconds)
        self.house.run()
        for group in self.groups.values():
            for one in group.entries():
                if one.state == "leased":
                    one.until = self.now + one.duration

    # -- requests -------------------------------------------------------------------------------

    def name(self) -> str:
        return self.random.choice("gh")

    def index(self) -> int:
        return self.random.randrange(self.count)

    def produce(self) -> None:
        broker, index = self.house.broker, self.index()
        for _ in range(self.random.randint(1, 4)):
            key = self.random.choice([None, b"a", b"b", b"c"])
            life = self.random.choice([None] * 6 + [3.5, 40.5])
            expires_at_us = 0 if life is None else broker.appender.expiry_us(int(life * SECOND_US))
            partition = broker.topics.existing("t").partition(index)
            broker.appender.produce(partition, b"v", key=key, expires_at_us=expires_at_us)
            self.records[index].append(Message(key, self.now + (life or 1e9)))

    def produce_later(self) -> None:
        broker, delay = self.house.broker, self.random.randint(1, 30) + 0.2
        life, key = self.random.choice([None, 5.1]), self.random.choice([None, b"a"])
        message = Message(key, self.now + (life or 1e9), self.now + delay, self.index())
        schedule_id = broker.delayed.produce(
            broker.topics.existing("t"),
            b"later",
            key=key,
            partition_index=message.index,
            delay_us=int(delay * SECOND_US),
            expires_at_us=broker.appender.expiry_us(int(life * SECOND_US)) if life else 0,
        )
        assert schedule_id == self.next_schedule_id
        self.next_schedule_id += 1
        self.scheduled[schedule_id] = message

    def cancel(self) -> None:
        schedule_id = self.random.randint(0, self.next_schedule_id)
        waits = self.scheduled.pop(schedule_id, None) is not None
        assert self.house.broker.delayed.cancel("t", schedule_id) == waits

    def acquire(self) -> None:
        if not any(self.records):
            return
        name, owner = self.name(), self.random.choice(["ann", "bob"])
        limit = self.random.choice([1, 2, 5, 1000]) if self.count == 1 else 1000
        seconds = self.random.choice([3, 10, 30])
        given = []
        while len(given) < limit and (
            more := grants(self.house, "t", name, owner, seconds, limit - len(given))
        ):
            given += [grant for grant, _ in more]
        existed, group = name in self.groups, self.group(name)
        was_open = sum(one.is_open for one in group.entries())
        expected = [self.give(group, index, owner, seconds, limit) for index in range(self.count)]
        offsets = [grant.offset for grant in given]
        if self.count > 1:
            assert sorted(offsets) == sorted(chain.from_iterable(expected))
        else:
            assert offsets == expected[0]
            for grant in given:
                one = group.partitions[0][grant.offset]
                assert (grant.grants, grant.failures) == (one.grants, one.failures)
                assert grant.token > group.last_token
                one.token = group.last_token = grant.token
        if not (existed or given or was_open > sum(one.is_open for one in group.entries())):
            del self.groups[name]

    def settle(self) -> None:
        index = self.index()
        if self.groups and self.records[index]:
            name = self.random.choice(sorted(self.groups))
            group = self.group(name)
            offset = self.random.randrange(len(group.partitions[index]))
            one = group.partitions[index][offset]
            success, owner = self.random.random() < 0.5, self.random.choice(["ann", "bob"])
            delay = self.random.choice([None, None, 0, 4.3, 20.3])
            token = self.random.choice([None, one.token, 1 << 60]) if self.count == 1 else None
            refused: type[BrokerdError] | None = None
            if token is not None and one.is_open and token != one.token:
                refused = LeaseLost
            elif token is None and one.state == "leased" and owner != one.owner:
                refused = NotLeaseOwner
            owner_or_none = owner if token is None else None
            arguments = (offset, success, "t", name, owner_or_none, delay, index, token)
            if refused is not None:
                with pytest.raises(refused):
                    settle(self.house, *arguments)
                return
            again = not success and one.counted and one.state != "leased"
            assert settle(self.house, *arguments) == (one.is_open and not again)
            if one.is_open and success:
                one.state = "settled"
            elif one.is_open and not again:
                self.fail(group, one, delay)

    def leased(self) -> tuple[str, int, int, Entry] | None:
        """Any record that is leased."""
        found = [
            (name, index, offset, one)
            for name, group in sorted(self.groups.items())
            for index, part in enumerate(group.partitions)
            for offset, one in enumerate(part)
            if one.state == "leased"
        ]
        return self.random.choice(found) if found else None

    def extend(self) -> None:
        if found := self.leased():
            name, index, offset, one = found
            seconds = self.random.choice([2, 50])
            group_partition = self.house.broker.leases.group_partition("t", name, index, offset)
            self.house.broker.leases.extend(
                group_partition, offset, seconds * SECOND_US, owner=one.owner
            )
            one.until, one.duration = self.now + seconds, seconds

    def release(self) -> None:
        if found := self.leased():
            name, index, offset, one = found
            delay = self.random.choice([0, 5.3])
            group_partition = self.house.broker.leases.group_partition("t", name, index, offset)
            self.house.broker.leases.release(
                group_partition, offset, delay_us=int(delay * SECOND_US)
            )
            self.come_back(one, self.now + delay)

    def release_owner(self) -> None:
        if found := self.leased():
            name, owner = found[0], found[3].owner
            theirs = [
                one
                for one in self.groups[name].entries()
                if one.state == "leased" and one.owner == owner
            ]
            assert self.house.broker.groups.release_owner("t", name, owner) == (len(theirs), False)
            for one in theirs:
                self.come_back(one, self.now)

    def pause(self) -> None:
        name = self.name()
        self.house.broker.groups.pause("t", name)
        self.group(name).paused = True

    def resume(self) -> None:
        for name, group in self.groups.items():
            self.house.broker.groups.resume("t", name)
            group.paused = False

    def end_leases(self, parts: list[list[Entry]]) -> None:
        for part in parts:
            for one in part:
                if one.state in ("leased", "delayed"):
                    one.state = "ready"

    def configure(self) -> None:
        name, settings = (
            self.name(),
            GroupSettings(
                max_attempts=self.random.choice([1, 2, 3]),
                attempts=self.random.choice(["failures", "grants"]),
                backoff_base_us=self.random.choice([0, 1_200_000]),
                backoff_max_us=5_000_000,
                key_ordered=self.random.random() < 0.7,
            ),
        )
        self.house.broker.groups.configure("t", name, settings)
        group = self.group(name)
        if group.settings.key_ordered != settings.key_ordered:
            self.end_leases(group.partitions)
        group.settings = settings

    def seek(self) -> None:
        name, index = self.name(), self.index()
        to = self.random.choice(["start", "end", self.random.randint(0, 30)])
        self.house.broker.groups.seek("t", name, to, index)
        part, start = self.group(name).partitions[index], self.starts[index]
        self.end_leases([part])
        end = len(part)
        floor = {"start": start, "end": end}.get(to)
        if floor is None:
            floor = min(max(to, start), end)
        for offset, one in enumerate(part):
            if offset >= floor and not one.is_open:
                part[offset] = Entry()
            elif offset < floor and one.state != "dead":
                part[offset] = Entry("settled")

    def bury_again(self) -> None:
        """Replay dead letters, or purge them."""
        if not self.groups:
            return
        name, first = self.random.choice(sorted(self.groups)), self.random.randint(0, 20)
        end, purges = self.random.choice([None, 30]), self.random.random() < 0.3
        broker = self.house.broker
        bury = broker.groups.purge_dead_letters if purges else broker.groups.replay_dead_letters
        count = 0
        for part in self.group(name).partitions:
            for offset in range(first, min(len(part), end or len(part))):
                if part[offset].state == "dead":
                    part[offset] = Entry("settled" if purges else "ready")
                    count += 1
        assert bury("t", name, None, first, end) == count

    def trim(self) -> None:
        index = self.index()
        start = min(self.starts[index] + self.random.randint(0, 4), len(self.records[index]))
        assert self.house.broker.topics.trim("t", index, start) == start
        self.starts[index] = start
        for name in self.groups:
            self.group(name).partitions[index][:start] = [Entry("settled") for _ in range(start)]

    def delete_group(self) -> None:
        if self.groups and self.random.random() < 0.3 and self.poll is None:
            name = self.random.choice(sorted(self.groups))
            self.house.broker.groups.delete("t", name)
            del self.groups[name]

    def wait(self) -> None:
        """Begin a long poll, of a group that exists and has nothing to give."""
        for name, group in self.groups.items():
            if self.count == 1 and self.poll is None and not self.eligible(group, 0):
                self.poll = Poll(self.house, name, seconds=POLL_SECONDS)
                self.group(name)

    def let_time_pass(self) -> None:
        self.pass_time(self.random.choice([0.41, 1.7, 6.13, 33.3]))

    # -- comparing ------------------------------------------------------------------------------

    def compare(self) -> None:
        broker = self.house.broker
        topic = broker.topics.existing("t")
        assert [part.next_offset for part in topic.partitions] == list(map(len, self.records))
        assert [one.id for one in broker.delayed.scheduled("t")] == sorted(self.scheduled)
        assert set(topic.groups) == set(self.groups)
        for name in self.groups:
            group = self.group(name)
            told = broker.overview.group_info("t", name)
            states = [one.state for one in group.entries()]
            counted = [states.count(state) for state in ("leased", "delayed", "dead")]
            assert [told.leased, told.delayed, told.dead] == counted
            assert told.lag == sum(one.is_open for one in group.entries())
            floors = [
                next((at for at, one in enumerate(part) if one.is_open), len(part))
                for part in group.partitions
            ]
            assert told.floor == sum(floors)
            places = [
                (index, offset, one)
                for index, part in enumerate(group.partitions)
                for offset, one in enumerate(part)
            ]
            assert [
                (index, one.offset, one.owner, one.grants, one.failures)
                for index, one in broker.groups.leases("t", name)
            ] == [
                (index, offset, one.owner, one.grants, one.failures)
                for index, offset, one in places
                if one.state == "leased"
            ]
            assert [
                (index, one.offset, one.reason, one.grants, one.failures)
                for index, one in broker.leases.dead_letters("t", name)
            ] == [
                (index, offset, one.reason, one.grants, one.failures)
                for index, offset, one in places
                if one.state == "dead"
            ]

    def run(self, steps: int) -> None:
        often = [self.produce, self.acquire, self.acquire, self.settle, self.settle]
        rarely = [
            self.produce_later, self.cancel, self.extend, self.release, self.release_owner,
            self.pause, self.resume, self.configure, self.seek, self.bury_again, self.bury_again,
            self.trim, self.delete_group, self.restart, self.wait, self.wait, self.wait,
        ]  # fmt: skip
        requests = [*(4 * often), *(5 * [self.let_time_pass]), *rarely]
        for _ in range(steps):
            self.random.choice(requests)()
            self.house.run()
            self.look_at_poll()
            self.compare()


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_asked_the_broker_does_what_the_pages_say(seed: int, partitions: int) -> None:
    Pages(seed, partitions).run(120)
