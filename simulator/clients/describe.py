# Tests: tests/simulator/test_clients.py
"""Format an operation and its answer as one line of a trace each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from functools import singledispatch

from simulator.history.offsets import Commit, Committed, Position, Read, ResetOffset
from simulator.history.operations import (
    Acquire,
    Extend,
    Letters,
    Look,
    Operation,
    Place,
    Produce,
    Settle,
    Settlement,
)
from simulator.history.subscriptions import Acknowledge, Poll
from simulator.history.transactions import Begin, Stage, Transact


def seconds(us: int) -> str:
    return f"{us / 1_000_000:g}s"


def places(items: Iterable[Place | None]) -> str:
    return " ".join(
        "waits" if item is None else f"{item.partition}:{item.offset}" for item in items
    )


@singledispatch
def asked(operation: Operation) -> str:
    """Format a request, without client and time."""
    return type(operation).__name__.lower() + _fields(operation, is_answer=False)


@singledispatch
def answered(operation: Operation) -> str:
    """Format an answer. `outcome` formats refusals, too."""
    return "done" + _fields(operation, is_answer=True)


TOLD = (
    "released",
    "is_partial",
    "count",
    "start",
    "is_held",
    "starts",
    "cancelled",
    "view",
    "subscription",
    "existed",
    "topics",
    "permissions",
    "is_valid",
    "exists",
    "is_whole",
    "from_lsn",
    "archive_lsn",
    "events",
    "rows",
    "next_before",
    "unreadable",
)
"""Fields that an answer fills, in operations without a format of their own."""


def _fields(operation: Operation, is_answer: bool) -> str:
    """Format the request, or the answer, of an operation without a format of its own."""
    known = {item.name for item in fields(Operation)}
    own = [item.name for item in fields(operation) if item.name not in known]
    shown = [name for name in own if (name in TOLD) == is_answer]
    return "".join(f" {name}={getattr(operation, name)!r}" for name in shown)


def outcome(operation: Operation) -> str:
    """Format the answer or the refusal."""
    return f"refused: {operation.error}" if operation.error else answered(operation)


@asked.register
def _(operation: Produce) -> str:
    size = sum(len(message.payload) for message in operation.messages)
    return f"produce {operation.topic!r} {len(operation.messages)} messages, {size} bytes"


@answered.register
def _(operation: Produce) -> str:
    return f"stored at {places(operation.places)}"


@asked.register
def _(operation: Acquire) -> str:
    wait = f", waiting {seconds(operation.wait_us)}" if operation.wait_us else ""
    return (
        f"acquire {operation.topic!r}/{operation.group!r} up to {operation.limit} for "
        f"{seconds(operation.duration_us)}{wait}"
    )


@answered.register
def _(operation: Acquire) -> str:
    leased = (
        f"{places([delivery.place])}"
        + (f"(token {delivery.token})" if delivery.token is not None else "")
        for delivery in operation.deliveries
    )
    return "leased " + (" ".join(leased) or "nothing")


def _settlement(item: Settlement) -> str:
    word = "done" if item.success else "failed"
    token = f" by token {item.token}" if item.token is not None else ""
    delay = f" delay {seconds(item.delay_us)}" if item.delay_us is not None else ""
    said = f" {item.reason!r}" if item.reason else ""
    dead = " given up" if item.dead else ""
    return f"{places([item.place])} {word}{token}{delay}{said}{dead}"


@asked.register
def _(operation: Settle) -> str:
    items = ", ".join(map(_settlement, operation.settlements))
    return f"settle {operation.topic!r}/{operation.group!r} {items}"


@answered.register
def _(operation: Settle) -> str:
    return "settled, " + ", ".join(text or "ok" for text in operation.results)


@asked.register
def _(operation: Extend) -> str:
    return (
        f"extend {operation.topic!r}/{operation.group!r} {places([operation.place])} to "
        f"{seconds(operation.duration_us)}"
    )


@answered.register
def _(operation: Extend) -> str:
    return f"extended, {seconds(operation.remaining_us)} left"


@asked.register
def _(operation: Look) -> str:
    return f"look {operation.topic!r}/{operation.group!r}"


@answered.register
def _(operation: Look) -> str:
    view = operation.view
    return "nothing" if view is None else " ".join(f"{k}={v}" for k, v in view._asdict().items())


@asked.register
def _(operation: Letters) -> str:
    return f"dead letters of {operation.topic!r}/{operation.group!r}"


@answered.register
def _(operation: Letters) -> str:
    letters = (f"{places([letter.place])}({letter.reason})" for letter in operation.letters)
    return " ".join(letters) or "none"


# -- formats that read by offset -------------------------------------------------------------------


def spot(operation: Read | Commit | Committed | Position | ResetOffset) -> str:
    group = f" for {operation.group!r}" if operation.group else ""
    return f"{operation.topic!r}/{operation.partition}{group}"


@asked.register
def _(operation: Read) -> str:
    only = "the one" if operation.exact else f"up to {operation.limit}"
    filtered = f" that match {operation.pattern!r}" if operation.pattern else ""
    size = "" if operation.limit_bytes is None else f", {operation.limit_bytes} bytes"
    return f"read {spot(operation)} {only}{size} from {operation.offset}{filtered}"


@answered.register
def _(operation: Read) -> str:
    then = "" if operation.next is None else f", next {operation.next}"
    shown = places(reading.place for reading in operation.readings) or "nothing"
    return f"shown {shown}{then}"


@asked.register
def _(operation: Commit) -> str:
    return f"commit {operation.offset} of {spot(operation)}"


@asked.register
def _(operation: ResetOffset) -> str:
    return f"commit the {operation.to} of {spot(operation)}"


@asked.register
def _(operation: Committed) -> str:
    return f"committed of {spot(operation)}"


@answered.register
def _(operation: Committed) -> str:
    lag = "" if operation.latest is None else f", {operation.lag} behind {operation.latest}"
    return f"committed {operation.offset}{lag}"


@asked.register
def _(operation: Position) -> str:
    return f"position {operation.mode} of {spot(operation)}"


@answered.register
def _(operation: Position) -> str:
    return f"at {operation.offset}"


# -- transactions ----------------------------------------------------------------------------------


@asked.register
def _(operation: Begin) -> str:
    return "begin a transaction"


@answered.register
def _(operation: Begin) -> str:
    return f"begun as {operation.transaction}"


@asked.register
def _(operation: Stage) -> str:
    size = len(operation.message.payload)
    return f"stage {size} bytes for {operation.topic!r} in {operation.transaction}"


@answered.register
def _(operation: Stage) -> str:
    return "staged"


@asked.register
def _(operation: Transact) -> str:
    return f"commit {operation.transaction} of {len(operation.messages)} messages"


@answered.register
def _(operation: Transact) -> str:
    return "committed"


# -- subscriptions ---------------------------------------------------------------------------------


@asked.register
def _(operation: Poll) -> str:
    return f"poll subscription {operation.subscription} of {operation.topic!r}"


@answered.register
def _(operation: Poll) -> str:
    handed = operation.handed
    if handed is None:
        return "handed nothing"
    where = "once" if handed.place is None else places([handed.place])
    return f"handed {handed.value[:20]!r} {where}"


@asked.register
def _(operation: Acknowledge) -> str:
    return f"acknowledge {places([operation.place])} of subscription {operation.subscription}"


@answered.register
def _(operation: Commit) -> str:
    return "done"


@answered.register
def _(operation: ResetOffset) -> str:
    return "done"


@answered.register
def _(operation: Acknowledge) -> str:
    return "done"
