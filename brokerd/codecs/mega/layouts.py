# Tests: tests/codecs/test_mega_golden.py
"""The fixed fields of requests and answers, all big-endian (page, sections Requests and Answers).

A topic follows its length, a payload its own; of a request, more fixed fields follow the topic.
"""

from __future__ import annotations

from struct import Struct

HEAD = Struct(">iBi")
"""Of each request: correlation id, type, topic length."""
TIMESTAMP = Struct(">q")
"""What follows the topic of a CREATE_TOPIC."""
TIMESTAMP_NUMBER = Struct(">qi")
"""Timestamp, then the offset of a CONSUME or the payload length of a PRODUCE."""

START = Struct(">iB")
"""Of each answer: correlation id, success flag. All that follow begin so."""
CREATED = Struct(">iBqH")
"""Timestamp, topic length."""
PRODUCED = Struct(">iBqi")
"""Timestamp, offset."""
CONSUMED = Struct(">iBqii")
"""Timestamp, next offset, payload length."""
REFUSED = Struct(">iBB")
"""Code."""
