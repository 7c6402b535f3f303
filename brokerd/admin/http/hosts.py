# Tests: tests/admin/test_hosts.py
"""The host names that a site answers to.

A web page may let its own name resolve to this machine after it was loaded (DNS rebinding). Then it
can read the answers of the site, or guess passwords from the address of its reader. The header Host
(RFC 9110, section 7.2) has that name. So the site answers only to names that an attacker cannot
own.
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

CHECKED = (b"api", b"metrics")
"""First parts of the paths that a site with logins checks; the others are the same for everyone."""
SHOWN_MAX = 200
"""Characters of a name in an error text."""

_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[\w.-]*))(?::[0-9]*)?", re.ASCII | re.I)
"""A whole header Host: an address in brackets or a name, then a port."""


class Hosts:
    """Accepted hosts: addresses, names without a dot (for example ``localhost``), and given names.

    :param names: names of this machine.
    :param only_writes: check only writes that a browser sends for a page.
    :param has_login: requests need a login. Those that no page of a foreign name can send are not
        checked, because proxies and monitors may know the broker by other names: see
        `_is_safe`.
    """

    def __init__(
        self, names: Iterable[str], only_writes: bool = False, has_login: bool = False
    ) -> None:
        self._names = frozenset(map(_plain, names))
        self._only_writes = only_writes
        self._has_login = has_login

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
        if self._has_login and _is_safe(request):
            return None
        for raw in request.requestHeaders.getRawHeaders(b"host", []):
            header = raw.decode("utf-8", "replace")
            if not self.has(header):
                return _Refused(header[:SHOWN_MAX], self._has_login)
        return None


class _Refused(Resource):
    isLeaf = True

    def __init__(self, header: str, has_login: bool) -> None:
        super().__init__()
        self._header = header
        self._lacks = "is not reached by HTTPS" if has_login else "has no login"

    def render(self, request: Request) -> bytes:
        said = (
            f"this admin site {self._lacks} and does not answer to {self._header!r}: add the "
            "name to admin.hosts if it belongs to this broker"
        )
        return json_answer(request, http.FORBIDDEN, refusal(said))


def _is_safe(request: Request) -> bool:
    """Return whether no page of a foreign name can send this request, or learn from it.

    HTTPS needs a certificate of the name. ``Sec-Fetch-Site``, which no script can set, comes only
    from pages that were loaded by HTTPS or from loopback; so does an origin with HTTPS. No page
    knows or guesses an API key.
    """
    headers = request.requestHeaders
    path: list[bytes] = request.postpath or []
    if request.isSecure() or path[:1] not in [[part] for part in CHECKED]:
        return True
    sites = headers.getRawHeaders(b"sec-fetch-site", [])
    if sites and all(site in (b"same-origin", b"none") for site in sites):
        return True
    origins = headers.getRawHeaders(b"origin", [])
    if len(origins) == 1 and origins[0].startswith(b"https://"):
        return True
    scheme = (request.getHeader(b"authorization") or b"").split(b" ")[0]
    return scheme.lower() == b"bearer"


def _plain(name: str) -> str:
    return name.removesuffix(".").lower()


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
