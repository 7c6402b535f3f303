# Tests: tests/codecs
"""The MEGA wire format: bytes to values and back, pure. Page: docs/protocols/mega.rst.

A server reads with `RequestReader` and writes with `created`, `produced`, `consumed` and `refused`.
A client writes with `encode_request` and reads with `AnswerReader`.
"""

from brokerd.codecs.mega.answers import consumed, created, produced, produced_run, refused
from brokerd.codecs.mega.peer import AnswerReader, encode_request
from brokerd.codecs.mega.requests import RequestReader
from brokerd.codecs.mega.values import (
    MAX_OFFSET,
    MAX_PAYLOAD_BYTES,
    MAX_SKIPPED_BYTES,
    MAX_TOPIC_BYTES,
    Answer,
    Code,
    Consume,
    Consumed,
    Created,
    CreateTopic,
    Dialect,
    Produce,
    Produced,
    Refused,
    Request,
    StreamError,
    Type,
)

__all__ = [
    "MAX_OFFSET",
    "MAX_PAYLOAD_BYTES",
    "MAX_SKIPPED_BYTES",
    "MAX_TOPIC_BYTES",
    "Answer",
    "AnswerReader",
    "Code",
    "Consume",
    "Consumed",
    "CreateTopic",
    "Created",
    "Dialect",
    "Produce",
    "Produced",
    "Refused",
    "Request",
    "RequestReader",
    "StreamError",
    "Type",
    "consumed",
    "created",
    "encode_request",
    "produced",
    "produced_run",
    "refused",
]
