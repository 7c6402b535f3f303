# Tests: tests/test_torture.py
"""Send requests of the demo and the torture to a broker's admin HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlencode

_TIMEOUT_SECONDS = 120.0
_PAGE = 1000


class AdminFailed(Exception):
    """The admin HTTP gave a wrong answer or none; the message has the address and the reason."""


def fetch_status(admin: str) -> dict[str, Any]:
    """Return the document of ``/api/v1/status``.

    :param admin: ``host:port``.
    :raises AdminFailed: the broker does not answer.
    """
    return _fetch(f"http://{admin}/api/v1/status")


def fetch_dead_letters(admin: str, topic: str, group: str) -> dict[int, int]:
    """Read all pages of the dead letters of a group and return failures by offset.

    :raises AdminFailed: the broker does not answer.
    """
    url = f"http://{admin}/api/v1/topics/{topic}/groups/{group}/dead-letters"
    found: dict[int, int] = {}
    place: dict[str, int] | None = {"partition": 0, "offset": 0}
    while place is not None:
        try:
            page = _fetch(f"{url}?{urlencode(place)}&limit={_PAGE}")
            found |= {letter["offset"]: letter["failures"] for letter in page["dead_letters"]}
            place = page["next"]
        except (KeyError, TypeError) as error:
            raise AdminFailed(f"{url}: no list of dead letters: {error!r}") from error
    return found


def _fetch(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
            body = json.load(answer)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise AdminFailed(f"{url}: {error}") from error
    if not isinstance(body, dict):
        raise AdminFailed(f"{url}: not an object")
    return body
