"""Histories written by hand: each request takes a moment; by default they follow one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulator.history.operations import (
    NEVER,
    Acquire,
    Boot,
    Delivery,
    Describe,
    Extend,
    GroupChange,
    GroupRules,
    GroupView,
    History,
    Letter,
    Letters,
    Look,
    Message,
    Operation,
    Place,
    Produce,
    Settle,
    Settlement,
    TopicView,
)

SECOND_US = 1_000_000
NOT_OWNER = "Client does not own the lease for this message"
LEASE_LOST = "the lease of offset 0 is over, or another one took its place; acquire it again"
UNKNOWN = "topic 't' has no record 0 in partition 0: it was never produced"


BLANKS = (
    ("deliveries", ()),
    ("places", ()),
    ("results", ()),
    ("schedules", ()),
    ("readings", ()),
    ("handed", None),
)


class Story:
    """Writes a history of topic ``t`` and, by default, group ``g`` and client ``c``.

    Keyword arguments of each request override the fields of its operation.
    """

    def __init__(self, durability: str = "fsync", **rules: Any) -> None:
        self.history = History(rules=GroupRules(**rules))
        self.now_us = 1_000
        self.durability = durability
        self.history.clock_steps = []
        self.history.is_steady = True
        self._begin()

    # -- requests -------------------------------------------------------------------------------

    def produce(
        self, *payloads: bytes | Message, at: Sequence[int] = (0,), **fields: Any
    ) -> Produce:
        """Produce messages; ``at`` has their offsets in partition 0."""
        messages = tuple(p if isinstance(p, Message) else Message(p) for p in payloads)
        told = {"places": tuple(Place(0, offset) for offset in at), **fields}
        return self._add(Produce(**self._asked(told, messages=messages)))

    def acquire(
        self, *seen: tuple[int, bytes] | Delivery, duration_us: int = SECOND_US, **fields: Any
    ) -> Acquire:
        """Lease records, each given as (offset, payload) or as a whole delivery."""
        deliveries = tuple(
            d if isinstance(d, Delivery) else Delivery(Place(0, d[0]), d[1]) for d in seen
        )
        asked = {"group": "g", "limit": 10, **fields}
        return self._add(
            Acquire(**self._asked(asked, duration_us=duration_us, deliveries=deliveries))
        )

    def settle(
        self,
        offset: int,
        success: bool = True,
        result: str = "",
        token: int | None = None,
        delay_us: int | None = None,
        reason: str = "",
        dead: bool = False,
        **fields: Any,
    ) -> Settle:
        """Settle one record."""
        settlements = (Settlement(Place(0, offset), success, token, delay_us, reason, dead),)
        asked = {"group": "g", **fields}
        return self._add(Settle(**self._asked(asked, settlements=settlements, results=(result,))))

    def extend(self, offset: int, duration_us: int = SECOND_US, **fields: Any) -> Extend:
        """Extend one lease."""
        asked = {"group": "g", "remaining_us": duration_us, **fields}
        return self._add(
            Extend(**self._asked(asked, place=Place(0, offset), duration_us=duration_us))
        )

    def change(self, kind: type[Any], **fields: Any) -> Any:
        """Make an operator's change of the group or the topic."""
        asked = self._asked(fields)
        if issubclass(kind, GroupChange):
            asked = {"group": "g", **asked}
        return self._add(kind(**asked))

    def describe(self, topic_id: int = 1, start: int = 0, **fields: Any) -> Describe:
        """Describe the topic, which has one partition."""
        view = TopicView(topic_id, (start,), (start,), 0)
        return self._add(Describe(**self._asked({"view": view, **fields})))

    def schedule(self, payload: bytes, delay_us: int, number: int = 0, **fields: Any) -> Produce:
        """Produce a delayed message."""
        message = Message(payload, delay_us=delay_us)
        return self.produce(message, places=(None,), schedules=(number,), **fields)

    def look(self, view: GroupView, **fields: Any) -> Look:
        """Query the group's state."""
        return self._add(Look(**self._asked({"group": "g", **fields}, view=view)))

    def letters(self, *letters: Letter, **fields: Any) -> Letters:
        """Query the group's dead letters."""
        return self._add(Letters(**self._asked({"group": "g", **fields}, letters=letters)))

    def no_answer(self) -> dict[str, int]:
        """Return the fields of a request that arrives and is not answered."""
        return {
            "arrived_us": self.now_us + 10,
            "written_us": NEVER,
            "answered_us": NEVER,
        }

    # -- time and fate --------------------------------------------------------------------------

    def wait(self, us: int) -> None:
        """Let time pass."""
        self.now_us += us

    def restart(self, end: str = "killed", **fields: Any) -> None:
        """End the broker, and let it serve again a millisecond later."""
        boot = self.history.boots[-1]
        boot.ended_us, boot.end = self.now_us, end
        for name, value in fields.items():
            setattr(boot, name, value)
        self.now_us += 1_000
        self._begin()

    def audit(
        self,
        *records: tuple[int, bytes],
        later: Sequence[tuple[int, bytes]] | None = None,
        drain: Sequence[tuple[int, bytes]] = (),
    ) -> None:
        """Read all records, then drain and settle the group's remaining ones.

        ``later`` are the records that are read after the end of all delays.
        """
        self.now_us += 1_000
        self.history.audit_us = self.now_us
        day_us = 86_400 * SECOND_US
        by_audit: dict[str, Any] = {"group": "audit-0", "client": "auditor", "limit": 500}
        if records:
            self.acquire(*records, duration_us=day_us, **by_audit)
        self.acquire(duration_us=day_us, **by_audit)
        self.now_us += 100 * SECOND_US
        if later is not None:
            self.acquire(*later, duration_us=day_us, **by_audit)
            self.acquire(duration_us=day_us, **by_audit)
        if drain:
            self.acquire(*drain, duration_us=day_us, client="auditor")
            for offset, _ in drain:
                self.settle(offset, client="auditor")
        self.acquire(duration_us=day_us, client="auditor")

    # -- parts ----------------------------------------------------------------------------------

    def _begin(self) -> None:
        boot = Boot(
            number=len(self.history.boots),
            begun_us=self.now_us,
            ready_us=self.now_us,
            durability=self.durability,
        )
        self.history.boots.append(boot)

    def _asked(self, fields: dict[str, Any], **told: Any) -> dict[str, Any]:
        now_us = self.now_us
        return {
            "number": len(self.history.operations),
            "client": "c",
            "topic": "t",
            "boot": len(self.history.boots) - 1,
            "sent_us": now_us,
            "arrived_us": now_us + 10,
            "written_us": now_us + 60,
            "answered_us": now_us + 80,
            **told,
            **fields,
        }

    def _add(self, operation: Any) -> Any:
        if operation.answered_us == NEVER:
            blank: Operation = operation
            for name, value in BLANKS:
                if hasattr(blank, name):
                    setattr(blank, name, value)
        self.history.operations.append(operation)
        self.now_us += 1_000
        return operation
