# Tests: tests/simulator/test_operator.py
"""The admin calls of an operator: the operation for the history, the call, and its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from brokerd.broker import Broker
from brokerd.broker.model.topics import TopicSettings
from brokerd.broker.streams import StreamReport
from brokerd.groups import GroupSettings
from brokerd.security import OPEN
from simulator.history.operations import (
    Cancel,
    Configure,
    ConfigureTopic,
    DeleteGroup,
    DeleteTopic,
    Describe,
    DropStream,
    GroupRules,
    Letter,
    LetterChange,
    Letters,
    Operation,
    Pause,
    Place,
    Purge,
    Release,
    Replay,
    ReportStream,
    Resume,
    Seek,
    SetClock,
    TopicRules,
    TopicView,
    Trim,
)

UNNUMBERED = -1


class AdminCall(NamedTuple):
    """A call of the admin API with its operation."""

    operation: Operation
    call: Callable[[Broker], Any]
    tell: Callable[[Any], None]
    """Stores the result of the call in the operation."""


def pause(name: str, topic: str, group: str) -> AdminCall:
    operation = Pause(number=UNNUMBERED, client=name, topic=topic, group=group)
    return AdminCall(operation, lambda broker: broker.groups.pause(topic, group), _nothing)


def resume(name: str, topic: str, group: str) -> AdminCall:
    operation = Resume(number=UNNUMBERED, client=name, topic=topic, group=group)
    return AdminCall(operation, lambda broker: broker.groups.resume(topic, group), _nothing)


def configure(name: str, topic: str, group: str, rules: GroupRules) -> AdminCall:
    operation = Configure(number=UNNUMBERED, client=name, topic=topic, group=group, rules=rules)
    settings = GroupSettings(
        max_attempts=rules.max_attempts,
        attempts="grants" if rules.counts_grants else "failures",
        backoff_base_us=rules.backoff_base_us,
        backoff_max_us=rules.backoff_max_us,
        default_duration_us=rules.default_duration_us,
        key_ordered=rules.key_ordered,
    )
    return AdminCall(
        operation, lambda broker: broker.groups.configure(topic, group, settings), _nothing
    )


def seek(operation: Seek) -> AdminCall:
    op = operation
    return AdminCall(
        op, lambda broker: broker.groups.seek(op.topic, op.group, op.to, op.partition), _nothing
    )


def delete_group(name: str, topic: str, group: str) -> AdminCall:
    operation = DeleteGroup(number=UNNUMBERED, client=name, topic=topic, group=group)
    return AdminCall(operation, lambda broker: broker.groups.delete(topic, group), _nothing)


def release(name: str, topic: str, group: str, owner: str) -> AdminCall:
    operation = Release(number=UNNUMBERED, client=name, topic=topic, group=group, owner=owner)

    def tell(result: tuple[int, bool]) -> None:
        operation.released, operation.is_partial = result

    return AdminCall(
        operation, lambda broker: broker.groups.release_owner(topic, group, owner), tell
    )


def change_letters(operation: LetterChange) -> AdminCall:
    op = operation

    def call(broker: Broker) -> int:
        change = {
            Replay: broker.groups.replay_dead_letters,
            Purge: broker.groups.purge_dead_letters,
        }[type(op)]
        return change(
            op.topic,
            op.group,
            partition=op.partition,
            first=op.first,
            end=op.end,
            reason=op.reason,
            before_us=None if op.aged_us is None else broker.time.time_us() - op.aged_us,
        )

    def tell(count: int) -> None:
        op.count = count

    return AdminCall(op, call, tell)


def letters(name: str, topic: str, group: str) -> AdminCall:
    operation = Letters(number=UNNUMBERED, client=name, topic=topic, group=group)

    def tell(found: tuple[Letter, ...]) -> None:
        operation.letters = found

    return AdminCall(operation, lambda broker: dead_letters(broker, topic, group), tell)


def dead_letters(broker: Broker, topic: str, group: str) -> tuple[Letter, ...]:
    """List a group's dead letters, as the JSON API does; none if the topic does not exist."""
    if broker.topics.find(topic) is None:
        return ()
    now_us = broker.time.monotonic_us()
    return tuple(
        Letter(
            Place(partition, letter.offset),
            letter.reason,
            letter.grants,
            letter.failures,
            now_us - letter.first_attempt_us,
            now_us - letter.last_attempt_us,
        )
        for partition, letter in broker.leases.dead_letters(topic, group)
    )


def trim(name: str, topic: str, partition: int, offset: int) -> AdminCall:
    operation = Trim(
        number=UNNUMBERED, client=name, topic=topic, partition=partition, offset=offset
    )

    def tell(start: int) -> None:
        operation.start = start

    return AdminCall(operation, lambda broker: broker.topics.trim(topic, partition, offset), tell)


def configure_topic(name: str, topic: str, rules: TopicRules) -> AdminCall:
    operation = ConfigureTopic(number=UNNUMBERED, client=name, topic=topic, rules=rules)
    settings = TopicSettings(*rules)
    return AdminCall(operation, lambda broker: broker.topics.configure(topic, settings), _nothing)


def delete_topic(name: str, topic: str) -> AdminCall:
    operation = DeleteTopic(number=UNNUMBERED, client=name, topic=topic)
    return AdminCall(operation, lambda broker: broker.topics.delete(topic), _nothing)


def describe(name: str, topic: str) -> AdminCall:
    operation = Describe(number=UNNUMBERED, client=name, topic=topic)

    def tell(view: TopicView | None) -> None:
        operation.view = view

    return AdminCall(operation, lambda broker: topic_view(broker, topic), tell)


def topic_view(broker: Broker, name: str) -> TopicView | None:
    """Return the current state of a topic."""
    topic = broker.topics.find(name)
    if topic is None:
        return None
    return TopicView(
        topic.topic_id,
        tuple(partition.start_offset for partition in topic.partitions),
        tuple(partition.next_offset for partition in topic.partitions),
        sum(1 for _ in broker.delayed.scheduled(name)),
    )


def cancel(name: str, topic: str, schedule_id: int) -> AdminCall:
    operation = Cancel(number=UNNUMBERED, client=name, topic=topic, schedule_id=schedule_id)

    def tell(was_waiting: bool) -> None:
        operation.cancelled = was_waiting

    return AdminCall(operation, lambda broker: broker.delayed.cancel(topic, schedule_id), tell)


def stream_name(client: str, topic: str) -> str:
    """Return the name of a client's stream of a topic."""
    return f"{client} of {topic}"


def report_stream(name: str, topic: str, offsets: tuple[int, ...], holds: bool) -> AdminCall:
    operation = ReportStream(
        number=UNNUMBERED,
        client=name,
        stream=stream_name(name, topic),
        topic=topic,
        offsets=offsets,
        holds=holds,
    )

    def call(broker: Broker) -> tuple[bool, tuple[int, ...]]:
        found = broker.topics.existing(topic)
        log_id = "" if broker.bounds is None else broker.bounds.log_id or ""
        lsn = broker.context.wal.durable_lsn
        position = {found.topic_id: offsets}
        report = StreamReport(operation.stream, log_id, lsn, (topic,), position, holds)
        stream = broker.streams.report(OPEN, report)
        return stream.holds, tuple(partition.start_offset for partition in found.partitions)

    def tell(result: tuple[bool, tuple[int, ...]]) -> None:
        operation.is_held, operation.starts = result

    return AdminCall(operation, call, tell)


def drop_stream(name: str, topic: str) -> AdminCall:
    operation = DropStream(number=UNNUMBERED, client=name, stream=stream_name(name, topic))
    return AdminCall(
        operation, lambda broker: broker.streams.drop(OPEN, operation.stream), _nothing
    )


def set_clock(name: str) -> AdminCall:
    operation = SetClock(number=UNNUMBERED, client=name)
    return AdminCall(operation, lambda broker: broker.clock_admin.set_to_wall(), _nothing)


def _nothing(result: object) -> None:
    """Store no result."""
