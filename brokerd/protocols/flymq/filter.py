# Tests: tests/protocols/test_flymq_filter.py
"""FlyMQ's filters of a FETCH (docs/protocols/flymq.rst, FETCH).

A record passes by one of three rules: a path exists in its JSON object, a text occurs in any case,
or a regular expression matches. Filters come from clients and values have any size, so the work is
cut into steps of a few milliseconds at most:

* A value larger than a *window* is searched window by window. Windows overlap, so that every text
  is found. A match of a regular expression is found if it is no longer than half a window.
* RE2 takes time proportional to the product of program and text at most. A larger program gets a
  smaller window. An expression of more than `PROGRAM_MAX` instructions or `REGEX_LETTERS_MAX`
  letters is not used, like a malformed one.
* A path is searched for without decoding the rest of the JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import msgspec
import re2

from brokerd.values import Record

PATH_BEGIN = "$."
PATH_NAMES_MAX = 100
"""A path of more names never passes; few JSON readers parse objects of such depth."""

WINDOW_BYTES = 256 * 1024
"""Bytes of a step of a text search: a third of a millisecond."""

REGEX_LETTERS_MAX = 500
"""Longest regular expression: RE2 may take two seconds to compile 60,000 letters."""
PROGRAM_MAX = 1_500
"""Largest program of a regular expression, in RE2's instructions; ``\\pL`` alone takes 1,200."""
PROGRAM_BYTES = 256 * 1024
"""Memory that RE2 may use for a program and its states; `re2` caches 128 programs."""
STEP_INSTRUCTIONS = 1_000_000
"""Window bytes times program instructions of a step: 7 ms in the worst case, mostly far less."""
REGEX_WINDOW_BYTES = (1024, 64 * 1024)
"""Smallest and largest window of a regular expression."""

FILTERS_KEPT = 64
"""Compiled filters in the cache: a consumer repeats its filter in every FETCH."""

_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")


@lru_cache(maxsize=1024)
def _member(name: str) -> msgspec.json.Decoder[Any] | None:
    """Return a decoder of objects that decodes only this member, as ``value``.

    None for a name that msgspec cannot use. A missing member is empty.
    """
    try:
        member = ("value", msgspec.Raw, msgspec.Raw())
        level = msgspec.defstruct("Level", [member], rename={"value": name})
    except ValueError:  # a quote, a backslash or a control character
        return None
    return msgspec.json.Decoder(level)


class Path:
    """Member names, separated by dots, of nested JSON objects."""

    def __init__(self, text: str) -> None:
        names = text.split(".", PATH_NAMES_MAX)
        members = [_member(name) for name in names[:PATH_NAMES_MAX]]
        self._members = [one for one in members if one is not None]
        self._leads_nowhere = len(self._members) < len(names)

    def leads_to_something(self, value: bytes) -> bool:
        """Return whether ``value`` is a JSON object in which the path exists; null counts."""
        if self._leads_nowhere or value[:1] != b"{":
            return False
        found: Any = value
        try:
            for member in self._members:
                found = member.decode(found).value
        except (msgspec.DecodeError, RecursionError):
            return False
        return bool(found)


class Filter:
    """A non-empty filter. The iterator ``steps`` tells whether a record passes."""

    def __init__(self, text: str) -> None:
        self._path = Path(text[len(PATH_BEGIN) :]) if text.startswith(PATH_BEGIN) else None
        self._occurs, self._text_overlap = _finder(text)
        self._regex = None if self._path else _regex(text)
        if self._regex is None:
            self._regex_window = self._whole_bytes = WINDOW_BYTES
        else:
            least, most = REGEX_WINDOW_BYTES
            wanted = STEP_INSTRUCTIONS // self._regex.programsize
            self._regex_window = self._whole_bytes = max(least, min(most, wanted))

    def steps(self, record: Record) -> Iterator[bool]:
        """Examine a record, one step of work at a time. It passes when a step yields True."""
        if self._path is not None:
            yield self._path.leads_to_something(record.value)
        for data in (record.value, record.key):
            if data is None:
                continue
            if len(data) <= self._whole_bytes:
                yield self._occurs(data) or (
                    self._regex is not None and self._regex.search(data) is not None
                )
            else:
                yield from self._windows(data)

    def _windows(self, data: bytes) -> Iterator[bool]:
        """Examine a large value window by window."""
        for start in range(0, len(data), WINDOW_BYTES):
            yield self._occurs(data[start : start + WINDOW_BYTES + self._text_overlap])
        if self._regex is not None:
            window = self._regex_window
            for start in range(0, len(data) - window // 2, window // 2):
                yield self._regex.search(data, start, start + window) is not None


compile_filter = lru_cache(maxsize=FILTERS_KEPT)(Filter)
"""Return the filter of a non-empty text, from the cache if it was used lately."""


def _finder(text: str) -> tuple[Callable[[bytes], bool], int]:
    """Return a case-insensitive search for a text, and the overlap of windows that it needs."""
    if text.isascii():
        needle = text.lower().encode()
        return lambda data: needle in data.lower(), len(needle) - 1
    letters = text.lower()
    return lambda data: letters in data.decode("utf-8", "replace").lower(), 4 * len(letters)


def _regex(text: str) -> re2._Regexp | None:
    """Return the regular expression, or None if malformed, too large or plain text."""
    if len(text) > REGEX_LETTERS_MAX or not _SPECIAL.search(text):
        return None
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = PROGRAM_BYTES
    try:
        regex = re2.compile(text, options)
    except re2.error:
        return None
    return regex if regex.programsize <= PROGRAM_MAX else None
