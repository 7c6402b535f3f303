# Tests: tests/protocols/test_mamamia_steps.py, tests/protocols/test_mamamia.py
"""PRODUCE_BATCH: the messages of a batch are checked, split by partition, and appended.

Appending is atomic, so it is one step. The work before it is done in slices if the batch is large:
`BatchProduce.steps`. It makes the columns of the records, so that the last step is short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import TypeVar

from brokerd.broker import Broker, Topic
from brokerd.broker.delayed.schedule import DelayedRows, check_delay, delays_frame_bytes
from brokerd.broker.records.append import Rows
from brokerd.broker.records.size import record_frame_bytes, values_frame_bytes
from brokerd.codecs.mamamia import (
    MAX_LENGTH,
    BatchMessage,
    ProduceBatch,
    answer_length,
    message_id_of,
    produced_batch,
)
from brokerd.errors import InvalidRequest, RecordTooLarge
from brokerd.protocols.base.connection import Connection
from brokerd.protocols.base.steps import Steps, admitted
from brokerd.protocols.mamamia.acquire import SURELY_FITS_BYTES, microseconds
from brokerd.security import WRITE, Access
from brokerd.values import Encoding, Format

T = TypeVar("T")

STEP_MESSAGES = 256
"""Messages that one step checks or splits."""


class BatchProduce:
    """One PRODUCE_BATCH of a client with this ``access``."""

    def __init__(self, broker: Broker, access: Access, request: ProduceBatch) -> None:
        self._broker = broker
        self._access = access
        self._request = request
        self._arrived_us = broker.time.time_us()
        self._size = 0
        """Bytes of the batch in the log."""
        self._delayed = 0
        """Number of messages with a delay."""
        self._values: list[bytes] | None = []
        """The values, if all messages are bytes alone."""
        self._rows: dict[int, Rows] = {}
        """The records without a delay, by partition."""
        self._later = DelayedRows(self._arrived_us)
        self._places: list[int] = []
        """The partition of each message, -1 for a delayed one; empty if there is one partition and
        no delay."""

    def answer(self) -> bytes:
        """Append all messages and return the answer. Raises `Congested` before it does."""
        for _ in self._check():
            pass
        known = self._known_answer()
        if known is not None:
            return known
        topic = self._topic()
        for _ in self._split(topic):
            pass
        return self._append(topic)

    def steps(self, connection: Connection) -> Steps[bytes]:
        """Do the work of `answer` in steps; only the last one changes partitions."""
        yield from self._check()
        known = self._permitted(self._known_answer)
        if known is not None:
            return known
        while True:
            topic = yield from admitted(connection, partial(self._permitted, self._topic))
            yield from self._split(topic)
            append = partial(self._permitted, partial(self._append_to, topic))
            answer: bytes | None = yield from admitted(connection, append)
            if answer is not None:
                return answer

    def _permitted(self, apply: Callable[[], T]) -> T:
        """Return the result of ``apply``. Raises as `Access.require`: permissions may have gone."""
        self._access.require(WRITE, self._request.log_id)
        return apply()

    def _check(self) -> Steps[None]:
        """Check the messages, and add up their bytes. Raises `RecordTooLarge`, `InvalidRequest`."""
        topic_name, messages, producer_id, sequence = self._request
        for first in range(0, len(messages), STEP_MESSAGES):
            part = messages[first : first + STEP_MESSAGES]
            values = bare_values(part)
            if values is None:
                self._values = None
                for message in part:
                    self._check_one(topic_name, message)
            else:
                self._size += values_frame_bytes(values)
                if self._values is not None:
                    self._values += values
            yield None
        if producer_id is not None and sequence is not None:
            if self._delayed:
                raise InvalidRequest(
                    "a batch with a producer_id cannot hold messages with a delay: send them in "
                    "another batch"
                )
            self._size += self._broker.producers.entry_bytes(
                producer_id, len(messages), len(messages)
            )
        self._size += delays_frame_bytes(self._delayed)

    def _check_one(self, topic_name: str, message: BatchMessage) -> None:
        value, encoding, metadata, key, _, _, delay = message
        if len(value) + len(metadata or b"") > SURELY_FITS_BYTES:
            check_size(topic_name, value, encoding, metadata)
        self._size += record_frame_bytes(value, key, metadata)
        if delay:
            check_delay(microseconds(delay))
            self._delayed += 1

    def _known_answer(self) -> bytes | None:
        """Return the answer to a batch that its producer sends again, None to another."""
        _, _, producer_id, sequence = self._request
        if producer_id is None or sequence is None:
            return None
        topic = self._broker.topics.find(self._request.log_id)
        known = topic and self._broker.producers.ids_of(topic, producer_id, sequence)
        return produced_batch(known) if known else None

    def _topic(self) -> Topic:
        """Return the topic, and create it if need be."""
        topic_name, messages, _, _ = self._request
        topic = self._broker.topics.find(topic_name)
        if topic is None:
            highest_partition = max(message.partition or 0 for message in messages)
            topic = self._broker.topic_writer.topic(
                self._access, topic_name, self._size, highest_partition=highest_partition
            )
        return topic

    def _split(self, topic: Topic) -> Steps[None]:
        """Choose the partitions, and make the columns of the records in each."""
        self._rows, self._places = {}, []
        self._later = DelayedRows(self._arrived_us)
        has_one_place = len(topic.partitions) == 1 and not self._delayed
        if self._values is not None and len(topic.partitions) == 1:
            return
        messages = self._request.messages
        for first in range(0, len(messages), STEP_MESSAGES):
            for message in messages[first : first + STEP_MESSAGES]:
                place = self._split_one(topic, message)
                if not has_one_place:
                    self._places.append(place)
            yield None
            if topic.deleted:  # meanwhile; `_append_to` finds it, too
                return

    def _split_one(self, topic: Topic, message: BatchMessage) -> int:
        """Add a message to its columns, and return its partition, or -1."""
        value, encoding, metadata, key, index, ttl, delay = message
        if ttl is None:
            expires_at_us = None
        else:
            expires_at_us = expiry_us(self._broker, ttl)
        if delay:
            if index is not None:
                topic.partition(index)
            delay_us = microseconds(delay)
            self._later.add(value, encoding, key, metadata, index, delay_us, expires_at_us)
            return -1
        place = topic.choose(key, index).index
        rows = self._rows.get(place)
        if rows is None:
            rows = self._rows[place] = Rows()
        rows.add(value, encoding, key, metadata, expires_at_us)
        return place

    def _append_to(self, topic: Topic) -> bytes | None:
        """Append to the topic that the messages were split for; return None if it is deleted."""
        return None if topic.deleted else self._known_answer() or self._append(topic)

    def _append(self, topic: Topic) -> bytes:
        """Append all messages in one frame and return the answer."""
        broker, messages = self._broker, self._request.messages
        if self._delayed:
            broker.delayed.ensure_internal_topic(topic)
            broker.group_commit.admit(self._size, 1 + len(topic.partitions))
        else:
            broker.group_commit.admit(self._size, max(1, len(self._rows)))
        if self._values is not None and not self._rows:
            partition = topic.partitions[0]
            first = broker.appender.append_values(partition, self._values, Format.MAMAMIA)
            return self._answer(topic, list(range(first, first + len(messages))))
        first_ids: dict[int, int] = {}
        for index, rows in self._rows.items():
            offset = broker.appender.append_rows(topic.partitions[index], rows, Format.MAMAMIA)
            first_ids[index] = message_id_of(index, offset)
        if not self._places:
            (first,) = first_ids.values()
            return self._answer(topic, list(range(first, first + len(messages))))
        next_ids = {index: count(first).__next__ for index, first in first_ids.items()}
        if not self._delayed:
            return self._answer(topic, [next_ids[place]() for place in self._places])
        first_later = broker.delayed.append_run(topic, self._later, Format.MAMAMIA)
        if self._delayed == len(messages):
            return produced_batch(
                [None] * self._delayed, range(first_later, first_later + self._delayed)
            )
        later = count(first_later).__next__
        return produced_batch(
            [None if place < 0 else next_ids[place]() for place in self._places],
            [later() if place < 0 else None for place in self._places],
        )

    def _answer(self, topic: Topic, ids: list[int]) -> bytes:
        """Return the answer with these ids, and remember them if the producer asks for it."""
        _, _, producer_id, sequence = self._request
        if producer_id is not None and sequence is not None:
            self._broker.producers.remember(topic, producer_id, sequence, ids)
        return produced_batch(ids)


def check_size(topic_name: str, value: bytes, encoding: int, metadata: bytes | None) -> None:
    """Raise `RecordTooLarge` for a record that does not fit an answer to ACQUIRE_NEXT."""
    length = answer_length(topic_name, value, encoding, metadata)
    if length > MAX_LENGTH:
        raise RecordTooLarge(
            f"the message is too large: its delivery would take a frame of {length} bytes, "
            f"and the limit is {MAX_LENGTH}; send less than {MAX_LENGTH - 1024} bytes"
        )


def expiry_us(broker: Broker, ttl: float) -> int:
    """Return the expiry time in microseconds; 0, from a ttl of 0, means never."""
    return broker.appender.expiry_us(max(1, microseconds(ttl))) if ttl else 0


def bare_values(messages: Sequence[BatchMessage]) -> Sequence[bytes] | None:
    """Return the values of messages that are bytes alone and surely fit an answer.

    Each step is one call for all messages. Returns None if a message has anything else.
    """
    values: Sequence[bytes]
    values, encodings, *others = zip(*messages, strict=True)
    total = len(messages)
    if (
        encodings.count(Encoding.BYTES) < total
        or any(column.count(None) < total for column in others)
        or max(map(len, values)) > SURELY_FITS_BYTES
    ):
        return None
    return values
