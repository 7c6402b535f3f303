# Tests: tests/codecs/test_rustlog_json.py
"""Records of the JSON dialect: arrays of arrays of numbers 0 to 255, as text and as bytes.

They are nearly all of a large frame, so they are cut out and parsed by a fast library, which gets
only brackets, digits, commas and blanks. `RecordsParser` parses in slices, so that other clients do
not wait for ten megabytes, and holds the objects of one slice at a time.
"""

from __future__ import annotations

import re

import msgspec

from brokerd.codecs.rustlog.values import MAX_RECORDS, RequestError, TooManyRecords

SLICE_BYTES = 1 << 20
"""Size of the text of one step: about ten milliseconds."""

_ALLOWED = b"[]0123456789, \t\r\n"
_BLANKS = b" \t\r\n"
_COMMA = re.compile(rb"[ \t\r\n]*,")
_AFTER_NUMBER = re.compile(rb"[],]")
_numbers = msgspec.json.Decoder(list[int])
_arrays = msgspec.json.Decoder(list[list[int]])


def looks_like_records(text: bytes) -> bool:
    """Return whether a text has only the characters of records."""
    return not text.translate(None, _ALLOWED)


def _wrong(problem: object) -> RequestError:
    return RequestError(
        f"failed to parse request: records must be arrays of numbers from 0 to 255: {problem}"
    )


class RecordsParser:
    """Parses the array of records in ``text``, for which `looks_like_records` is True.

    Call `step` until it returns True; ``records`` then holds the records. Raises `RequestError`
    with the wire's text.
    """

    def __init__(self, text: bytes) -> None:
        if text.count(b"[") - 1 > MAX_RECORDS:
            raise TooManyRecords
        text = text.strip(_BLANKS)
        if len(text) < 2 or not (text.startswith(b"[") and text.endswith(b"]")):
            raise _wrong("they are no array")
        self._text = text[1:-1].strip(_BLANKS)
        self._at = 0
        self._long: bytearray | None = None
        """The beginning of the current record, if it is longer than a slice."""
        self.records: list[bytes] = []

    @property
    def is_short(self) -> bool:
        """Return whether one step is enough."""
        return len(self._text) <= SLICE_BYTES

    def step(self) -> bool:
        """Parse a slice; return True at the end."""
        if self.is_short:
            self._take_records(self._text)
            return True
        try:
            if self._long is None:
                self._next_records()
            else:
                self._go_on(self._long)
        except (ValueError, OverflowError) as problem:  # msgspec's errors are of the first kind
            raise _wrong(problem) from None
        return self._at >= len(self._text)

    def _take_records(self, text: bytes) -> None:
        try:
            arrays = _arrays.decode(b"[%b]" % text)
            self.records += map(bytes, map(bytearray, arrays))
        except (ValueError, OverflowError) as problem:
            raise _wrong(problem) from None

    def _next_records(self) -> None:
        """Parse whole records, or begin a record that is longer than a slice."""
        text, begin = self._text, self._at
        end = text.rfind(b"]", begin, begin + SLICE_BYTES) + 1
        if end:
            self._take_records(text[begin:end])
            self._at = self._behind_comma(end)
            return
        end = self._end_of_piece(begin)
        if text[end : end + 1] == b"]":
            self._take_records(text[begin : end + 1])
            self._at = self._behind_comma(end + 1)
            return
        self._long = bytearray()
        self._take_piece(self._long, text[begin:end] + b"]")
        self._at = end + 1

    def _go_on(self, record: bytearray) -> None:
        """Parse more of a long record."""
        text, begin = self._text, self._at
        end = self._end_of_piece(begin)
        self._take_piece(record, b"[" + text[begin:end] + b"]")
        self._at = end + 1
        if text[end : end + 1] == b"]":
            self.records.append(bytes(record))
            self._long = None
            self._at = self._behind_comma(end + 1)

    @staticmethod
    def _take_piece(record: bytearray, text: bytes) -> None:
        numbers = _numbers.decode(text)
        if not numbers:
            raise ValueError("a number is missing next to a comma")
        record += bytearray(numbers)

    def _end_of_piece(self, begin: int) -> int:
        """Return the end of a slice of one record: its bracket or a comma."""
        text, limit = self._text, begin + SLICE_BYTES
        bracket = text.find(b"]", begin, limit)
        if bracket >= 0:
            return bracket
        comma = text.rfind(b",", begin, limit)
        if comma >= 0:
            return comma
        found = _AFTER_NUMBER.search(text, limit)
        if found is None:
            raise ValueError("an array does not end")
        return found.start()

    def _behind_comma(self, end: int) -> int:
        """Return the position of the next record."""
        if end == len(self._text):
            return end
        found = _COMMA.match(self._text, end)
        if found is None or found.end() == len(self._text):
            raise ValueError(f"no comma and record follow record {len(self.records)}")
        return found.end()
