# Tests: tests/codecs/test_mega_golden.py
"""The fixed fields of requests and answers, all big-endian (page, sections Requests and Answers).

A topic follows its length, and so does a payload. In a request, fixed fields follow the topic.
"""

from __future__ import annotations

from struct import Struct

HEAD = Struct(">iBi")
"""Begin of a request: correlation id, type, topic length."""
TIMESTAMP = Struct(">q")
"""The field after the topic of a CREATE_TOPIC."""
TIMESTAMP_NUMBER = Struct(">qi")
"""Timestamp, then the offset of a CONSUME or the payload length of a PRODUCE."""

START = Struct(">iB")
"""Begin of an answer: correlation id, success flag. The following layouts contain it."""
CREATED = Struct(">iBqH")
"""Timestamp, topic length."""
PRODUCED = Struct(">iBqi")
"""Timestamp, offset."""
CONSUMED = Struct(">iBqii")
"""Timestamp, next offset, payload length."""
REFUSED = Struct(">iBB")
"""Code."""
