# Tests: tests/protocols/test_rustlog.py
"""The answer to ListTopics, made in cooperative slices."""

from __future__ import annotations

from brokerd.broker import Broker
from brokerd.codecs.rustlog import MAX_PAYLOAD, Codec
from brokerd.protocols.base.steps import Steps
from brokerd.protocols.rustlog.refusals import LIST_FAILED
from brokerd.security import ANY, Access

STEP_TOPICS = 1_000
"""Topics described in one step: some milliseconds if each permission must be checked."""


def list_topics(broker: Broker, codec: Codec, access: Access) -> Steps[bytes]:
    """Return the answer to ListTopics, sorted by name. Raises `Refusal`.

    Omits the topic with the empty name and topics on which ``access`` has no permission.
    """
    names = [topic.name for topic in broker.topics.all() if topic.name]
    yield None
    names.sort()
    rows: list[bytes] = []
    count = size = 0
    for first in range(0, len(names), STEP_TOPICS):
        yield None
        topics = map(broker.topics.find, names[first : first + STEP_TOPICS])
        described = [
            (topic.name, len(topic.partitions))
            for topic in topics
            if topic is not None and access.may(ANY, topic.name)
        ]
        rows.append(codec.encode_topics(described))
        count += len(described)
        size += len(rows[-1])
        if size > MAX_PAYLOAD:
            break
    answer = codec.encode_topic_list(rows, count)
    if len(answer) > MAX_PAYLOAD:
        raise LIST_FAILED.because(
            f"the topics do not fit an answer of {MAX_PAYLOAD} bytes; list them with brokerctl"
        )
    return answer
