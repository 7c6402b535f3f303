# Tests: tests/simulator/test_oracle_offsets.py
"""Check the lists of topics: promise 1."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from simulator.history.offsets import CreateTopic, ListTopics
from simulator.history.operations import NEVER, DeleteTopic, History, Produce
from simulator.history.subscriptions import Subscribe
from simulator.oracle.permissions import ANY, Permissions
from simulator.oracle.timeline.spans import Lives, Span, possible
from simulator.oracle.violation import Violation, violation

Change = tuple[Span, bool, bool]
"""The time of a topic's creation or end, whether it is certain, whether the topic exists then."""


def check_topics(history: History, lives: Lives, permissions: Permissions) -> Iterator[Violation]:
    """P1: check that a topic is listed from its creation to its deletion.

    A client without any permission on the topic need not see it.
    """
    lists = [op for op in history.operations if isinstance(op, ListTopics) and op.succeeded]
    if not lists or history.rotted or lives.any_loss:
        return
    changes: dict[str, list[Change]] = defaultdict(list)
    touched: set[str] = set()
    """Topics of other requests, which may have created them."""
    for op in history.operations:
        topic = getattr(op, "topic", None)
        if topic is None or op.error:
            continue
        span = lives.span(op)
        if isinstance(op, CreateTopic | Produce | Subscribe | DeleteTopic):
            exists = not isinstance(op, DeleteTopic)
            is_sure = op.answered_us != NEVER and getattr(op, "is_promised", True)
            changes[topic].append((span, is_sure, exists))
        else:
            touched.add(topic)
    may_return = touched | set(history.given_topics)
    for listed in lists:
        yield from _check_list(listed, lives.span(listed), changes, may_return, permissions)


def _check_list(
    op: ListTopics,
    span: Span,
    changes: dict[str, list[Change]],
    may_return: set[str],
    permissions: Permissions,
) -> Iterator[Violation]:
    names = {name for name, _ in op.topics}
    for topic, of_topic in changes.items():
        if not _is_listed(topic):
            continue
        states = set(possible(None, of_topic, span))
        is_hidden = permissions.may_lack(ANY, topic, span)
        if states == {True} and topic not in names and not is_hidden:
            yield violation("P1-topic", f"topic {topic} was made and is not listed", op)
        if states == {False} and topic in names and topic not in may_return:
            yield violation("P1-topic", f"topic {topic} was deleted and is listed", op)


def _is_listed(topic: str) -> bool:
    """Return whether formats list the name: not the empty one, nor internal prefixes."""
    return topic != "" and not topic.startswith("__")
