# Tests: tests/simulator/test_operator.py
"""A random operator: it changes groups and topics, and reads their state before and after.

It makes one call at a time. After a crash it waits for the broker and reads the result of an
unanswered call.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from random import Random
from typing import ClassVar, Literal

from simulator.clients import admin_calls, questions
from simulator.clients.admin_calls import AdminCall
from simulator.clients.direct import Asker
from simulator.clients.registry_calls import UNNUMBERED, RegistryCall
from simulator.history.operations import (
    AuditSearch,
    Describe,
    GroupRules,
    LetterChange,
    Operation,
    Place,
    Purge,
    Replay,
    Seek,
    TopicRules,
)
from simulator.machine.world import World
from simulator.plan import (
    DEFAULT_DURATION_US,
    OPERATOR_BACKOFF_US,
    Action,
    ClientPlan,
    Topic,
)

READY_US = 100_000
"""Time between two attempts while no broker runs."""

EXPLAINED_AGAIN = 0.4
"""Probability that the events of a record are asked for that were asked for before."""
AUDIT_PAGES = 10
"""The most pages of a query of the audit trail."""

Script = Generator[AdminCall | RegistryCall, Operation, None]


class Operator:
    """Does ``plan.operations`` actions, or fewer if it is stopped."""

    def __init__(self, plan: ClientPlan, world: World, direct: Asker) -> None:
        self.plan = plan
        self.finished = False
        self.on_finished: Callable[[], None] = lambda: None
        self._world = world
        self._direct = direct
        self._chance = Random(plan.seed)
        self._left = plan.operations
        self._script: Script | None = None
        self._nexts: dict[str, tuple[int, ...]] = {}
        """The next offsets of topics in the last answer."""
        self._schedules = 0
        self._explained: dict[str, list[Place]] = {}
        """The places of records whose events it asked for, by topic."""

    # -- for the run -----------------------------------------------------------------------------

    def start(self) -> None:
        self._world.call_after(self.plan.begin_us, self._next)

    def stop(self) -> None:
        """Make no more calls."""
        self.hang_up()

    def hang_up(self) -> None:
        if not self.finished:
            self.finished = True
            self.on_finished()

    def note_arrivals(self) -> None:
        """Do nothing: its calls arrive at once."""

    # -- step by step ------------------------------------------------------------------------------

    def _next(self) -> None:
        if self.finished:
            return
        if self._script is None:
            if not self._left:
                self.hang_up()
                return
            self._left -= 1
            self._script = self._draw()
        self._go_on(None)

    def _draw(self) -> Script:
        if self.plan.configures_first:
            groups = [(topic, group) for topic in self.plan.topics for group in self.plan.groups]
            done = self.plan.operations - self._left - 1
            if done < len(groups):
                return self._configure(*groups[done])
        mix = self.plan.mix
        (action,) = self._chance.choices(list(mix), list(mix.values()))
        topic = self._chance.choice(self.plan.topics)
        return self._ACTIONS[action](self, topic, self._chance.choice(self.plan.groups))

    def _go_on(self, operation: Operation | None) -> None:
        """Make the next call of the script; None begins it."""
        if self.finished or self._script is None:
            return
        try:
            call = next(self._script) if operation is None else self._script.send(operation)
        except StopIteration:
            self._script = None
            self._world.call_after(self._chance.randint(0, self.plan.think_us), self._next)
            return
        self._ask(call)

    def _ask(self, call: AdminCall | RegistryCall) -> None:
        if self.finished:
            return
        if not self._direct.is_ready:
            self._world.call_after(READY_US, self._ask, call)
        elif isinstance(call, RegistryCall):
            self._direct.perform_later(*call, self._go_on)
        else:
            self._direct.perform(*call, self._go_on)

    # -- groups ----------------------------------------------------------------------------------

    def _pause(self, topic: Topic, group: str) -> Script:
        yield admin_calls.pause(self.plan.name, topic.name, group)

    def _resume(self, topic: Topic, group: str) -> Script:
        yield admin_calls.resume(self.plan.name, topic.name, group)

    def _configure(self, topic: Topic, group: str) -> Script:
        chance = self._chance
        yield admin_calls.configure(
            self.plan.name,
            topic.name,
            group,
            GroupRules(
                chance.randint(1, 5),
                chance.random() < 0.3,
                chance.choice((0, 0, 100_000)),
                OPERATOR_BACKOFF_US,
                chance.choice((DEFAULT_DURATION_US, 1_000_000, 100_000)),
                chance.randrange(1_000) < self.plan.ordered_permille,
            ),
        )

    def _seek(self, topic: Topic, group: str) -> Script:
        partition = self._chance.choice((None, self._chance.randrange(topic.partitions)))
        ends: tuple[Literal["start", "end"], ...] = ("start", "end")
        to = self._chance.choice((*ends, self._offset(topic, partition or 0)))
        yield admin_calls.seek(
            Seek(
                number=UNNUMBERED,
                client=self.plan.name,
                topic=topic.name,
                group=group,
                to=to,
                partition=partition,
            )
        )

    def _delete_group(self, topic: Topic, group: str) -> Script:
        yield admin_calls.delete_group(self.plan.name, topic.name, group)

    def _release(self, topic: Topic, group: str) -> Script:
        owner = self._chance.choice(self.plan.owners)
        yield admin_calls.release(self.plan.name, topic.name, group, owner)

    # -- dead letters ----------------------------------------------------------------------------

    def _letters(self, topic: Topic, group: str) -> Script:
        yield admin_calls.letters(self.plan.name, topic.name, group)

    def _replay(self, topic: Topic, group: str) -> Script:
        return self._change_letters(Replay, topic, group)

    def _purge(self, topic: Topic, group: str) -> Script:
        return self._change_letters(Purge, topic, group)

    def _change_letters(self, kind: type[LetterChange], topic: Topic, group: str) -> Script:
        """Change all dead letters, or those of a range or reason. List them before and after."""
        chance, name = self._chance, self.plan.name
        partition = chance.choice((None, None, chance.randrange(topic.partitions)))
        first = chance.choice((0, 0, 0, self._offset(topic, partition or 0)))
        is_aged = self.plan.aged_permille and chance.randrange(1_000) < self.plan.aged_permille
        yield admin_calls.letters(name, topic.name, group)
        yield admin_calls.change_letters(
            kind(
                number=UNNUMBERED,
                client=name,
                topic=topic.name,
                group=group,
                partition=partition,
                first=first,
                end=chance.choice((None, None, first + chance.randint(1, 20))),
                reason=chance.choice((None, None, "max_attempts", "max_attempts", "broken")),
                aged_us=chance.randint(0, self.plan.aged_us_max) if is_aged else None,
            )
        )
        yield admin_calls.letters(name, topic.name, group)

    # -- topics ----------------------------------------------------------------------------------

    def _describe(self, topic: Topic, group: str) -> Script:
        operation = yield admin_calls.describe(self.plan.name, topic.name)
        self._learn(operation)

    def _trim(self, topic: Topic, group: str) -> Script:
        operation = yield admin_calls.describe(self.plan.name, topic.name)
        self._learn(operation)
        partition = self._chance.randrange(topic.partitions)
        offset = self._offset(topic, partition)
        yield admin_calls.trim(self.plan.name, topic.name, partition, offset)

    def _configure_topic(self, topic: Topic, group: str) -> Script:
        plan = self.plan
        rules = TopicRules(
            self._limit(plan.retention_us_max),
            self._limit(plan.retention_bytes_max),
            self._limit(plan.ttl_us_max),
        )
        yield admin_calls.configure_topic(plan.name, topic.name, rules)

    def _delete_topic(self, topic: Topic, group: str) -> Script:
        """Delete a topic, and describe it before and after: a new topic has another id."""
        before = yield admin_calls.describe(self.plan.name, topic.name)
        if not before.succeeded:
            return
        yield admin_calls.delete_topic(self.plan.name, topic.name)
        yield admin_calls.describe(self.plan.name, topic.name)

    def _cancel(self, topic: Topic, group: str) -> Script:
        schedule_id = self._chance.randrange(self._schedules + 3)
        self._schedules += self._chance.randrange(3)
        yield admin_calls.cancel(self.plan.name, topic.name, schedule_id)

    def _set_clock(self, topic: Topic, group: str) -> Script:
        yield admin_calls.set_clock(self.plan.name)

    def _report_stream(self, topic: Topic, group: str) -> Script:
        """Report a position up to the ends that a description has."""
        operation = yield admin_calls.describe(self.plan.name, topic.name)
        self._learn(operation)
        offsets = tuple(self._chance.randint(0, end) for end in self._nexts.get(topic.name, ()))
        holds = self._chance.random() < 0.8
        yield admin_calls.report_stream(self.plan.name, topic.name, offsets, holds)

    def _drop_stream(self, topic: Topic, group: str) -> Script:
        yield admin_calls.drop_stream(self.plan.name, topic.name)

    def _explain(self, topic: Topic, group: str) -> Script:
        """Ask for the events about a record, below or a little beyond the end, or once more."""
        known = self._explained.setdefault(topic.name, [])
        if known and self._chance.random() < EXPLAINED_AGAIN:
            place = self._chance.choice(known)
        else:
            operation = yield admin_calls.describe(self.plan.name, topic.name)
            self._learn(operation)
            partition = self._chance.randrange(topic.partitions)
            place = Place(partition, self._offset(topic, partition))
            known.append(place)
        yield questions.explain(self.plan.name, topic.name, place)

    def _search_audit(self, topic: Topic, group: str) -> Script:
        """Read all pages of a query of the audit trail, or a few very short ones."""
        chance = self._chance
        types = chance.choice(((), (), ("group.pause", "group.resume"), ("auth.success",)))
        user = chance.choice(("", "", self.plan.name, "registrar"))
        resource = chance.choice(("", "", topic.name, f"{topic.name}/{group}"))
        limit = chance.choice((1, 5, 50, 1_000))
        before: int | None = None
        for _ in range(AUDIT_PAGES):
            asked = AuditSearch(
                number=UNNUMBERED,
                client=self.plan.name,
                types=types,
                user=user,
                resource=resource,
                before=before,
                limit=limit,
            )
            operation = yield questions.search_audit(asked)
            if not operation.succeeded or asked.next_before is None:
                return
            before = asked.next_before

    def _limit(self, most: int) -> int:
        """Draw a limit up to ``most``, in one case of three 0."""
        return 0 if self._chance.random() < 0.33 else self._chance.randint(0, most)

    # -- parts -----------------------------------------------------------------------------------

    def _learn(self, operation: Operation) -> None:
        if isinstance(operation, Describe) and operation.view is not None:
            self._nexts[operation.topic] = operation.view.nexts

    def _offset(self, topic: Topic, partition: int) -> int:
        """Draw an offset of the partition, or one a little beyond its end."""
        nexts = self._nexts.get(topic.name, ())
        return self._chance.randrange((nexts[partition] if partition < len(nexts) else 10) + 3)

    _ACTIONS: ClassVar[dict[Action, Callable[[Operator, Topic, str], Script]]] = {
        "pause": _pause,
        "resume": _resume,
        "configure": _configure,
        "seek": _seek,
        "delete_group": _delete_group,
        "release": _release,
        "letters": _letters,
        "replay": _replay,
        "purge": _purge,
        "describe": _describe,
        "trim": _trim,
        "configure_topic": _configure_topic,
        "delete_topic": _delete_topic,
        "cancel": _cancel,
        "set_clock": _set_clock,
        "report_stream": _report_stream,
        "drop_stream": _drop_stream,
        "explain": _explain,
        "search_audit": _search_audit,
    }
