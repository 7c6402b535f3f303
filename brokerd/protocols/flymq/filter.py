# Tests: tests/protocols/test_flymq_filter.py
"""FlyMQ's filters: which records a FETCH shows (docs/protocols/flymq.rst, FETCH).

A record passes if one of three rules lets it (flymq-payloads, 5.7): a path that is there in a JSON
object, text that occurs whatever its case, a regular expression that matches. A filter comes from a
client and meets values of any size, so its work is cut into steps of a few milliseconds at most:

* A value larger than a *window* is searched window by window. Windows overlap, so that text is
  found wherever it is; of a regular expression in such a value, a match is surely found if it is
  no longer than half a window.
* Regular expressions are RE2's, whose time is at most proportional to the product of program and
  text. The larger the program the smaller the window; one of more than `PROGRAM_MAX` instructions
  or `REGEX_LETTERS_MAX` letters is not searched for, as one that cannot be read.
* A path is looked for without making values of the rest of the JSON.
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
"""A path of more names leads nowhere; few JSON readers follow one so deep."""

WINDOW_BYTES = 256 * 1024
"""Text is searched for in so many bytes a step: a third of a millisecond."""

REGEX_LETTERS_MAX = 500
"""Longest regular expression: to read one of 60,000 letters may take RE2 two seconds."""
PROGRAM_MAX = 1_500
"""Largest program of a regular expression, in RE2's instructions; ``\\pL`` alone takes 1,200."""
PROGRAM_BYTES = 256 * 1024
"""What RE2 may use for a program and the states it makes of it; `re2` keeps 128 of them."""
STEP_INSTRUCTIONS = 1_000_000
"""A window's bytes times the program's instructions: 7 ms in the worst case, as a rule far less."""
REGEX_WINDOW_BYTES = (1024, 64 * 1024)
"""Smallest and largest window of a regular expression."""

FILTERS_KEPT = 64
"""A consumer sends the same filter again and again."""

_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")


@lru_cache(maxsize=1024)
def _member(name: str) -> msgspec.json.Decoder[Any] | None:
    """A decoder of objects that skips all members but one, which becomes ``value``.

    None for names that it cannot look for. A member that is not there is empty.
    """
    try:
        member = ("value", msgspec.Raw, msgspec.Raw())
        level = msgspec.defstruct("Level", [member], rename={"value": name})
    except ValueError:  # a quote, a backslash or a control character
        return None
    return msgspec.json.Decoder(level)


class Path:
    """Names, separated by dots, that lead from a JSON object through others to something."""

    def __init__(self, text: str) -> None:
        names = text.split(".", PATH_NAMES_MAX)
        members = [_member(name) for name in names[:PATH_NAMES_MAX]]
        self._members = [one for one in members if one is not None]
        self._leads_nowhere = len(self._members) < len(names)

    def leads_to_something(self, value: bytes) -> bool:
        """Whether ``value`` is a JSON object and the path is there; null is something."""
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
    """One filter, not empty; its ``steps`` tell whether a record passes."""

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
        """Look at a record, a step of work at a time: it passes as soon as a step gives True."""
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
        """Look at a large value."""
        for start in range(0, len(data), WINDOW_BYTES):
            yield self._occurs(data[start : start + WINDOW_BYTES + self._text_overlap])
        if self._regex is not None:
            window = self._regex_window
            for start in range(0, len(data) - window // 2, window // 2):
                yield self._regex.search(data, start, start + window) is not None


compile_filter = lru_cache(maxsize=FILTERS_KEPT)(Filter)
"""The filter of a text that is not empty, made anew only if it was not asked for lately."""


def _finder(text: str) -> tuple[Callable[[bytes], bool], int]:
    """Finds a text whatever its case, and how far windows must overlap for that."""
    if text.isascii():
        needle = text.lower().encode()
        return lambda data: needle in data.lower(), len(needle) - 1
    letters = text.lower()
    return lambda data: letters in data.decode("utf-8", "replace").lower(), 4 * len(letters)


def _regex(text: str) -> re2._Regexp | None:
    """The regular expression, if it is one and not a plain text, which `_finder` finds anyway."""
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
