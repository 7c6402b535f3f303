# Tests: tests/admin/test_hosts.py
"""For which names a site answers that asks nobody who he is.

A web page may have its own name lead to this machine after it was loaded (DNS rebinding), and read
then what the site answers, as if it came from there. Its name stands in the header Host (RFC 9110,
section 7.2), so that only names are answered to which no stranger can have.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from twisted.web import http
from twisted.web.resource import Resource
from twisted.web.server import Request

from brokerd.admin.http.resources import json_answer, refusal

SHOWN_MAX = 200
"""Of a name so many characters are told."""


class Hosts:
    """Addresses, names without a dot (``localhost`` is one), and those that were given.

    :param names: of this machine, and others that lead to it.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(map(_plain, names))

    def has(self, header: str) -> bool:
        """Whether a header Host, with or without a port, names such a host."""
        name = _plain(_without_port(header.strip()))
        return "." not in name or name in self._names or _is_address(name)

    def refused(self, request: Request) -> Resource | None:
        """What a request is answered that is for another host; None for all others."""
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
            f"nobody is asked who he is here, and so {self._header!r} is not answered to: add the "
            "name to admin.hosts if it leads to this broker"
        )
        return json_answer(request, http.FORBIDDEN, refusal(said))


def _without_port(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _plain(name: str) -> str:
    return name.removesuffix(".").lower()


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
