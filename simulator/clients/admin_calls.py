# Tests: tests/simulator/test_operator.py
"""The admin calls of an operator: the operation for the history, the call, and its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from brokerd.admin.calls import clock as admin_clock
from brokerd.admin.calls import groups as admin_groups
from brokerd.admin.calls import topics as admin_topics
from brokerd.admin.calls.groups import configure_group, pause_group, resume_group, seek_group
from brokerd.admin.calls.leases import purge_dead_letters, replay_dead_letters
from brokerd.admin.calls.topics import trim_topic
from brokerd.admin.shapes import groups, topics
from brokerd.admin.shapes.common import seconds_of, time_of
from brokerd.broker import Broker
from brokerd.broker.streams import StreamReport
from brokerd.security.audit import EventType
from simulator.clients.handlers import handled
from simulator.clients.operator_access import OperatorAccess
from simulator.clients.registry_calls import UNNUMBERED, RegistryCall
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


class AdminCall(NamedTuple):
    """A call of the admin API with its operation."""

    operation: Operation
    call: Callable[[Broker], Any]
    tell: Callable[[Any], None]
    """Stores the result of the call in the operation."""


def pause(name: str, topic: str, group: str) -> RegistryCall:
    operation = Pause(number=UNNUMBERED, client=name, topic=topic, group=group)
    body = groups.Pause(create=True)
    return handled(operation, pause_group, _path(topic, group), body=lambda broker: body)


def resume(name: str, topic: str, group: str) -> RegistryCall:
    operation = Resume(number=UNNUMBERED, client=name, topic=topic, group=group)
    return handled(operation, resume_group, _path(topic, group))


def configure(name: str, topic: str, group: str, rules: GroupRules) -> RegistryCall:
    operation = Configure(number=UNNUMBERED, client=name, topic=topic, group=group, rules=rules)
    body = groups.GroupAdmin(
        max_attempts=rules.max_attempts,
        attempts="grants" if rules.counts_grants else "failures",
        backoff_base_seconds=seconds_of(rules.backoff_base_us),
        backoff_max_seconds=seconds_of(rules.backoff_max_us),
        default_duration_seconds=seconds_of(rules.default_duration_us),
        key_ordered=rules.key_ordered,
        create=True,
    )
    return handled(operation, configure_group, _path(topic, group), body=lambda broker: body)


def seek(operation: Seek) -> RegistryCall:
    body = groups.Seek(to=operation.to, partition=operation.partition, create=True)
    path = _path(operation.topic, operation.group)
    return handled(operation, seek_group, path, body=lambda broker: body)


def delete_group(name: str, topic: str, group: str) -> RegistryCall:
    operation = DeleteGroup(number=UNNUMBERED, client=name, topic=topic, group=group)
    return handled(operation, admin_groups.delete_group, _path(topic, group))


def _path(topic: str, group: str) -> dict[str, str]:
    return {"topic": topic, "group": group}


def release(name: str, topic: str, group: str, owner: str) -> AdminCall:
    operation = Release(number=UNNUMBERED, client=name, topic=topic, group=group, owner=owner)

    def tell(result: tuple[int, bool]) -> None:
        operation.released, operation.is_partial = result

    def call(broker: Broker) -> tuple[int, bool]:
        """Make one of the commits of the handler, which repeats it for a client with many leases.

        So the answer tells exactly which leases have ended.
        """
        return broker.audit.carry_out(
            OperatorAccess(name).actor,
            EventType.LEASES_RELEASED,
            f"{topic}/{group}",
            lambda: broker.groups.release_owner(topic, group, owner),
            {"client": owner},
        )

    return AdminCall(operation, call, tell)


def change_letters(operation: LetterChange) -> RegistryCall:
    op = operation

    def body(broker: Broker) -> groups.LetterChoice:
        before = None if op.aged_us is None else time_of(broker.time.time_us() - op.aged_us)
        return groups.LetterChoice(op.partition, op.first, op.end, op.reason, before)

    def tell(answer: groups.Changed) -> None:
        op.count = answer.count

    handler = {Replay: replay_dead_letters, Purge: purge_dead_letters}[type(op)]
    return handled(op, handler, _path(op.topic, op.group), tell, body=body)


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


def trim(name: str, topic: str, partition: int, offset: int) -> RegistryCall:
    operation = Trim(
        number=UNNUMBERED, client=name, topic=topic, partition=partition, offset=offset
    )
    body = topics.Trim(offset, partition)

    def tell(answer: topics.Trimmed) -> None:
        operation.start = answer.start_offset

    return handled(operation, trim_topic, {"topic": topic}, tell, body=lambda broker: body)


def configure_topic(name: str, topic: str, rules: TopicRules) -> RegistryCall:
    operation = ConfigureTopic(number=UNNUMBERED, client=name, topic=topic, rules=rules)
    body = topics.TopicAdmin(
        retention_seconds=seconds_of(rules.retention_us),
        retention_bytes=rules.retention_bytes,
        ttl_seconds=seconds_of(rules.ttl_us),
        compact=False,
    )
    handler = admin_topics.configure_topic
    return handled(operation, handler, {"topic": topic}, body=lambda broker: body)


def delete_topic(name: str, topic: str) -> RegistryCall:
    operation = DeleteTopic(number=UNNUMBERED, client=name, topic=topic)
    return handled(operation, admin_topics.delete_topic, {"topic": topic})


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
        stream = broker.streams.report(OperatorAccess(name), report)
        return stream.holds, tuple(partition.start_offset for partition in found.partitions)

    def tell(result: tuple[bool, tuple[int, ...]]) -> None:
        operation.is_held, operation.starts = result

    return AdminCall(operation, call, tell)


def drop_stream(name: str, topic: str) -> AdminCall:
    operation = DropStream(number=UNNUMBERED, client=name, stream=stream_name(name, topic))

    def tell(existed: bool) -> None:
        operation.existed = existed

    by = OperatorAccess(name)
    return AdminCall(operation, lambda broker: broker.streams.drop(by, operation.stream), tell)


def set_clock(name: str) -> RegistryCall:
    return handled(SetClock(number=UNNUMBERED, client=name), admin_clock.set_clock, {})
