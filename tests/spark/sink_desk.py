"""A broker in memory with the sink's sender, and ways to kill either of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from brokerd.client.errors import ConnectionLost
from brokerd.codecs.mamamia import AcquireBatch, Acquired, BatchMessage, Failed
from brokerd.spark.sink.blocks import Block
from brokerd.spark.sink.commit import commit_epoch
from brokerd.spark.sink.sender import Sender
from brokerd.spark.sink.staging import StagedFile, Staging
from brokerd.values import MAX_PARTITIONS
from tests.house import House, ask

NAME = "query-1"


class Killed(BaseException):
    """The sink's process ends here; nothing of it runs any more."""


class Desk:
    """The client of a sender. ``faults`` has what happens to its next calls, "" for nothing.

    ``lost N``: the broker carries out N requests, and the connection is lost before any answer.
    ``answered N``: the connection is lost after N answers; the broker carried out all requests.
    ``killed N``: the sink is killed after the broker has carried out N requests.
    ``full N``: the broker refuses request N for want of disk space, and carries out the others.
    ``refused``: nobody listens.
    Questions for sequences have no faults.
    """

    def __init__(self, house: House | None = None) -> None:
        self.house = house or House()
        self.faults: list[str] = []
        self.slept: list[float] = []
        self.now = 0.0
        self.sent: list[Any] = []
        self._readers = 0

    def send_many(self, requests: Sequence[Any]) -> list[Any]:
        if requests[0].messages[0].partition == MAX_PARTITIONS - 1:
            return ask(self.house, *requests)
        self.sent += requests
        fault, _, count = (self.faults.pop(0) if self.faults else "").partition(" ")
        if fault == "refused":
            raise ConnectionRefusedError(111, "Connection refused")
        if fault in ("lost", "killed"):
            ask(self.house, *requests[: int(count)])
            if fault == "killed":
                raise Killed
            raise ConnectionLost("the broker closed the connection")
        if fault == "full":
            refused = min(int(count), len(requests) - 1)
            others = [one for index, one in enumerate(requests) if index != refused]
            answers = ask(self.house, *others) if others else []
            answers.insert(refused, Failed("the log has no room; free some space, then try again"))
            return answers
        answers = ask(self.house, *requests)
        if fault == "answered":
            raise ConnectionLost("the broker closed the connection", answers[: int(count)])
        return answers

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def sender(self, producer: str = "p", retry_seconds: float = 10.0) -> Sender:
        """Return a sender to this broker."""
        return Sender(self, "broker:9000", producer, retry_seconds, lambda: self.now, self.sleep)

    def commit(
        self,
        staging: Staging,
        epoch: int,
        files: Sequence[StagedFile | None],
        lanes: int = 3,
        fails: bool = True,
    ) -> bool:
        """Commit a micro-batch in a process of its own."""
        sender = self.sender(staging.identity())
        given = [file for file in files if file is not None]
        return commit_epoch(staging, sender, epoch, given, lanes, fails)

    def values(self, topic: str) -> list[bytes]:
        """Return the values of all records of a topic, by partition and offset."""
        self._readers += 1
        group = f"reader {self._readers}"
        found: list[bytes] = []
        while True:
            (answer,) = ask(self.house, AcquireBatch(topic, group, "me", 1000))
            messages = () if isinstance(answer, Acquired) else answer.messages
            if not messages:
                return found
            found += [message.payload for message in messages]


def block(topic: str, *values: str) -> Block:
    """Return a block of values without keys."""
    return Block(topic, tuple(BatchMessage(value.encode()) for value in values))


def staging_of(path: Path) -> Staging:
    """Return a staging directory, with another object each time, as processes have it."""
    return Staging(str(path / "staging"), NAME)


def stage(path: Path, epoch: int, *tasks: Iterable[Block]) -> list[StagedFile | None]:
    """Run the tasks of a micro-batch."""
    return [staging_of(path).stage(epoch, blocks) for blocks in tasks]
