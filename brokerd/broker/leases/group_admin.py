# Tests: tests/broker/test_group_admin.py
"""Changes of whole consumer groups: pause, seek, settings, deletion, leases of an owner.

Each change is one frame of the log, over all partitions. It is admitted before the first event, so
it happens as a whole or not at all. Long polls of the group try again in the same turn of the
reactor. docs/leases.rst, section "Rules", is the contract.

Settings, a pause or a seek create the group if it does not exist. Other changes need a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

from brokerd.broker.context import Context
from brokerd.broker.group_commit import EVENT_PAIR_BYTES, GROUP_EVENTS_OVERHEAD_BYTES
from brokerd.broker.leases.service import OPENS_MAX, LeaseService
from brokerd.broker.model.group_stores import NEW_STATE_MEMORY
from brokerd.broker.model.topics import ConsumerGroup, GroupPartition, Partition, unknown_group
from brokerd.errors import InvalidRequest, LimitExceeded
from brokerd.groups import GroupSettings, Lease, LeaseStore
from brokerd.groups.view import END_OF_OFFSETS, NO_OFFSET

Target = int | Literal["start", "end"]
"""The position of a seek: an offset, the first record, or after the last record."""


RELEASE_MAX = 4_096
"""The most leases that one call of `GroupAdmin.release_owner` ends."""

DEAD_LETTER_COST_MAX = 100_000
"""The most time that one replay or purge of dead letters may take, in units of 0.5 us."""


class DeadLetterFilter(NamedTuple):
    """Selects the dead letters to replay or purge. ``before_us`` is monotonic time."""

    first: int
    end: int
    reason: str
    before_us: int | None


class GroupAdmin:
    """Changes of groups. All raise `UnknownTopic`, `NoSpace` and `Congested`. A change that begins
    state in a partition raises `LimitExceeded` if the state of groups has no memory for it.

    ``moved_back()`` is called when a group may lease records again that it had settled.
    ``end_subscription(topic, group)`` ends the subscription that owns a group, in the frame that
    deletes the group, and returns whether the group had one.
    """

    def __init__(
        self,
        context: Context,
        leases: LeaseService,
        moved_back: Callable[[], None],
        end_subscription: Callable[[str, str], bool],
    ) -> None:
        self._state = context.state
        self._group_commit = context.group_commit
        self._leases = leases
        self._time = context.time
        self._moved_back = moved_back
        self._end_subscription = end_subscription

    # -- settings and state ----------------------------------------------------------------------

    def configure(self, topic: str, group: str, settings: GroupSettings) -> None:
        """Set the settings of a group. Creates the group if it does not exist.

        A change of ``key_ordered`` ends all its leases and delays. Raises `InvalidName`, and
        `InvalidRequest` for a changed back-off with a base above its maximum.
        """
        text_bytes = 4 * len(settings.to_json())
        self._check_backoff(topic, group, settings)
        self._change(
            self._group_or_new(topic, group),
            lambda group_partition: group_partition.store.configure(settings),
            text_bytes,
            change_packed=lambda group_partition: group_partition.change_packed(settings),
        )

    def _check_backoff(self, topic: str, group: str, settings: GroupSettings) -> None:
        """Let a group keep the back-off that an earlier version accepted."""
        found = self._state.existing_topic(topic).groups.get(group)
        before = None if found is None else found.settings
        if before is None or (before.backoff_base_us, before.backoff_max_us) != (
            settings.backoff_base_us,
            settings.backoff_max_us,
        ):
            settings.check_backoff()

    def settings(self, topic: str, group: str) -> GroupSettings:
        """Return the settings of a group. Raises `UnknownGroup`."""
        return self._group(topic, group).settings

    def pause(self, topic: str, group: str) -> None:
        """Grant the group no leases until `resume`. Creates the group if it does not exist.

        Live leases continue: consumers may settle and extend them. Raises `InvalidName`.
        """
        found = self._group_or_new(topic, group)
        self._change(
            found,
            lambda group_partition: group_partition.store.pause(),
            change_packed=lambda group_partition: group_partition.change_packed(pauses=True),
        )

    def resume(self, topic: str, group: str) -> None:
        """Grant leases to a paused group again. Raises `UnknownGroup`."""
        found = self._group(topic, group)
        self._change(
            found,
            lambda group_partition: group_partition.store.unpause(),
            group_partitions=found.used(),
            change_packed=lambda group_partition: group_partition.change_packed(pauses=False),
        )

    def seek(
        self,
        topic: str,
        group: str,
        to: Target | Mapping[int, Target],
        partition: int | None = None,
    ) -> dict[int, int]:
        """Move a group to ``to``, in one partition or all. Returns the new floor by partition.

        A map has a position for each partition to move. Records below the position are settled,
        records from there on are open. Leases and delays end. A committed offset becomes the new
        floor. An offset outside of the partition is cut to its ends. Creates the group if it does
        not exist. Raises `UnknownPartition` and `InvalidName`.
        """
        found = self._group_or_new(topic, group)
        if not isinstance(to, Mapping):
            to = dict.fromkeys(
                range(len(found.partitions)) if partition is None else [partition], to
            )
        floors: dict[int, int] = {}
        for index, target in to.items():
            floors[index] = seek_floor(found.topic.partition(index), target)

        def seek(group_partition: GroupPartition) -> None:
            floor = floors[group_partition.partition.index]
            group_partition.store.seek(floor)
            group_partition.settle_gaps()
            if group_partition.store.committed != NO_OFFSET:
                group_partition.store.commit_offset(floor)

        self._change(
            found,
            seek,
            group_partitions=[found.partitions[index] for index in floors],
            change_packed=lambda group_partition: group_partition.change_packed(
                floor=floors[group_partition.partition.index]
            ),
        )
        self._moved_back()
        return floors

    def delete(self, topic: str, group: str) -> None:
        """Delete a group: leases, attempts, dead letters, settings. Raises `UnknownGroup`.

        Ends the group's subscription too, if it has one. A later group of that name is a new group,
        in which no token of this group is valid.
        """
        if self._end_subscription(topic, group):
            return
        found = self._group(topic, group)
        self._change(
            found,
            GroupPartition.delete,
            group_partitions=found.used(),
            change_packed=GroupPartition.delete_packed,
        )
        self._leases.remove_group(found)

    # -- committed offsets -----------------------------------------------------------------------

    def commit_offset(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Store an offset that consumers commit. Creates the group if it does not exist.

        The broker does not interpret the offset: no floor moves and no lease ends. `NO_OFFSET`
        deletes it. Raises `UnknownPartition`, `InvalidName`, and `InvalidRequest` for a number that
        is not an offset.
        """
        if not NO_OFFSET <= offset < END_OF_OFFSETS:
            raise InvalidRequest(
                f"offset {offset} cannot be committed: offsets go from 0 to {END_OF_OFFSETS - 1}"
            )
        found = self._group_or_new(topic, group)
        group_partition = found.partitions[found.topic.partition(partition).index]
        goes_back = offset < group_partition.store.committed
        self._change(
            found,
            lambda group_partition: group_partition.store.commit_offset(offset),
            group_partitions=[group_partition],
        )
        if goes_back:
            self._moved_back()

    def committed_offset(self, topic: str, group: str, partition: int) -> int | None:
        """Return the offset last committed for a partition; None without a commit.

        Raises `UnknownGroup` and `UnknownPartition`.
        """
        found = self._group(topic, group)
        committed = found.partitions[found.topic.partition(partition).index].position.committed
        return None if committed == NO_OFFSET else committed

    # -- leases ----------------------------------------------------------------------------------

    def release_owner(self, topic: str, group: str, owner: str) -> tuple[int, bool]:
        """Release leases of ``owner`` without failures; return how many, and whether more exist.

        One call ends at most `RELEASE_MAX` and opens at most `OPENS_MAX` stores, so that it does
        not block the reactor. Raises `UnknownGroup`.
        """
        found = self._group(topic, group)
        left = min(RELEASE_MAX, self._leases.events_max)
        owning = [
            group_partition for group_partition in found.used() if group_partition.may_own(owner)
        ]
        some = owning[:OPENS_MAX]
        self._group_commit.admit_events(
            left * EVENT_PAIR_BYTES + len(some) * GROUP_EVENTS_OVERHEAD_BYTES
        )
        released = 0
        for group_partition in some:
            before = len(group_partition.store.events)
            released += group_partition.store.release_owner(self._time.monotonic_us(), owner, left)
            left -= len(group_partition.store.events) - before
            self._leases.add_new_events(group_partition, before)
            self._leases.timers.schedule(group_partition)
        more = len(some) < len(owning) or any(one.may_own(owner) for one in some)
        return released, more

    def leases(
        self, topic: str, group: str, partition: int = 0, offset: int = 0
    ) -> Iterator[tuple[int, Lease]]:
        """Yield a group's leases as (partition, lease), in order, from a partition's offset on.

        The first step raises `UnknownGroup`.
        """
        for group_partition in self._group(topic, group).used():
            index = group_partition.partition.index
            if index < partition or not group_partition.position.leased:
                continue
            first = offset if index == partition else 0
            for lease in group_partition.store.leases(first):
                yield index, lease

    # -- dead letters ----------------------------------------------------------------------------

    def replay_dead_letters(
        self,
        topic: str,
        group: str,
        partition: int | None = None,
        first: int = 0,
        end: int | None = None,
        reason: str | None = None,
        before_us: int | None = None,
    ) -> int:
        """Make dead letters ready again, with no failed attempts; return how many.

        The arguments select dead letters by partition, by offset from ``first`` to below ``end``,
        by reason, and by a last attempt before the broker time ``before_us``. None selects all.
        Raises `UnknownGroup`, `UnknownPartition`, and `LimitExceeded` if they are too many for one
        reactor turn: docs/leases.rst, section "Cost".
        """
        return self._take_dead_letters(
            LeaseStore.replay_runs,
            self._group_partitions(topic, group, partition),
            DeadLetterFilter(
                first,
                END_OF_OFFSETS if end is None else end,
                reason or "",
                self._before(before_us),
            ),
        )

    def purge_dead_letters(
        self,
        topic: str,
        group: str,
        partition: int | None = None,
        first: int = 0,
        end: int | None = None,
        reason: str | None = None,
        before_us: int | None = None,
    ) -> int:
        """Delete dead letters, selected as by `replay_dead_letters`; return how many.

        The broker never delivers their records to this group again.
        """
        return self._take_dead_letters(
            LeaseStore.purge_runs,
            self._group_partitions(topic, group, partition),
            DeadLetterFilter(
                first,
                END_OF_OFFSETS if end is None else end,
                reason or "",
                self._before(before_us),
            ),
        )

    def _take_dead_letters(
        self,
        take: Callable[..., int],
        group_partitions: list[GroupPartition],
        wanted: DeadLetterFilter,
    ) -> int:
        """Replay or purge in all group partitions, in one frame and one reactor turn."""
        group_partitions = [
            group_partition for group_partition in group_partitions if group_partition.position.dead
        ]
        budget = DEAD_LETTER_COST_MAX
        found = []
        for group_partition in group_partitions:
            runs, budget = group_partition.store.dead_runs(*wanted, budget)
            if budget <= 0:
                stop = runs[-1][1] if runs else wanted.first
                raise LimitExceeded(
                    "these dead letters, or the gaps between them, are more than one change takes "
                    f"at once (partition {group_partition.partition.index}, from about offset "
                    f"{stop} on); "
                    "choose one partition and a range of offsets, and then the next one"
                )
            found.append((group_partition, runs))
        strings_bytes = 4 * len(wanted.reason)
        events = sum(len(runs) for _, runs in found)
        self._group_commit.admit_events(
            events * EVENT_PAIR_BYTES
            + len(group_partitions) * (GROUP_EVENTS_OVERHEAD_BYTES + strings_bytes)
        )
        count = 0
        for group_partition, runs in found:
            before = len(group_partition.store.events)
            count += take(group_partition.store, runs, wanted.reason)
            self._leases.add_new_events(group_partition, before, strings_bytes)
        return count

    def _before(self, before_us: int | None) -> int | None:
        """Convert a broker time to monotonic time, the time of attempts."""
        if before_us is None:
            return None
        return before_us - self._time.time_us() + self._time.monotonic_us()

    # -- parts -----------------------------------------------------------------------------------

    def _group_partitions(
        self, topic: str, group: str, partition: int | None
    ) -> list[GroupPartition]:
        found = self._group(topic, group)
        if partition is None:
            return found.used()
        return [found.partitions[found.topic.partition(partition).index]]

    def _group(self, topic: str, group: str) -> ConsumerGroup:
        existing = self._state.existing_topic(topic)
        found = existing.groups.get(group)
        if found is None:
            raise unknown_group(existing, group)
        return found

    def _group_or_new(self, topic: str, group: str) -> ConsumerGroup:
        found = self._state.existing_topic(topic)
        return found.groups.get(group) or self._leases.new_group(found, group)

    def _change(
        self,
        group: ConsumerGroup,
        change: Callable[[GroupPartition], object],
        string_bytes: int = 0,
        group_partitions: list[GroupPartition] | None = None,
        change_packed: Callable[[GroupPartition], int | None] = lambda group_partition: None,
    ) -> None:
        """Write one or two events in each group partition, all in one frame.

        ``change_packed`` makes the change without opening the store and returns the number of
        events; None if it cannot.
        """
        group_partitions = [*group.partitions] if group_partitions is None else group_partitions
        new = sum(not group_partition.is_kept for group_partition in group_partitions)
        if new:
            self._state.stores.check_memory(new * NEW_STATE_MEMORY)
        self._group_commit.admit_events(
            len(group_partitions) * (GROUP_EVENTS_OVERHEAD_BYTES + EVENT_PAIR_BYTES + string_bytes)
        )
        for group_partition in group_partitions:
            added = change_packed(group_partition)
            if added is not None:
                self._leases.add_packed(group_partition, added, string_bytes)
                continue
            before = len(group_partition.store.events)
            change(group_partition)
            self._leases.add_new_events(group_partition, before, string_bytes)


def seek_floor(partition: Partition, to: Target) -> int:
    """Return the floor after a seek: the offset, or the nearest end of the partition."""
    if to == "end":
        return partition.next_offset
    first = partition.start_offset
    return first if to == "start" else min(max(to, first), partition.next_offset)
