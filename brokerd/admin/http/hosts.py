# Tests: tests/admin/test_hosts.py
"""The host names that a site without authentication answers to.

A web page may let its own name resolve to this machine after it was loaded (DNS rebinding). Then it
can read the answers of the site. The header Host (RFC 9110, section 7.2) has that name. So the site
answers only to names that an attacker cannot own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address

from twisted.web import http
from twisted.web.resource import Resource
from twisted.web.server import Request

from brokerd.admin.http.origins import is_from_page
from brokerd.admin.http.resources import METHODS, json_answer, refusal

SHOWN_MAX = 200
"""Characters of a name in an error text."""

_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[\w.-]*))(?::[0-9]*)?", re.ASCII | re.I)
"""A whole header Host: an address in brackets or a name, then a port."""


class Hosts:
    """Accepted hosts: addresses, names without a dot (for example ``localhost``), and given names.

    :param names: names of this machine.
    :param only_writes: check only writes that a browser sends for a page.
    """

    def __init__(self, names: Iterable[str], only_writes: bool = False) -> None:
        self._names = frozenset(map(_plain, names))
        self._only_writes = only_writes

    def has(self, header: str) -> bool:
        """Return whether a header Host, with or without a port, is accepted."""
        found = _HOST.fullmatch(header.strip(" \t"))
        if found is None:
            return False
        if found["v6"] is not None:
            return _is_address(found["v6"])
        name = _plain(found["name"])
        return "." not in name or name in self._names or _is_address(name)

    def refused(self, request: Request) -> Resource | None:
        """Return the refusal of a request for another host, None for an accepted one."""
        if self._only_writes and (request.method in METHODS or not is_from_page(request)):
            return None
        for raw in request.requestHeaders.getRawHeaders(b"host", []):
            header = raw.decode("utf-8", "replace")
            if not self.has(header):
                return _Refused(header[:SHOWN_MAX])
        return None


class _Refused(Resource):
    isLeaf = True

    def __init__(self, header: str) -> None:
        super().__init__()
        self._header = header

    def render(self, request: Request) -> bytes:
        said = (
            f"this admin site has no login and does not answer to {self._header!r}: add the "
            "name to admin.hosts if it belongs to this broker"
        )
        return json_answer(request, http.FORBIDDEN, refusal(said))


def _plain(name: str) -> str:
    return name.removesuffix(".").lower()


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
