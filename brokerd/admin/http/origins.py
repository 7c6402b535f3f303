# Tests: tests/admin/test_origins.py
"""Requests that a browser sends for a page: only pages of this site may write, or embed answers.

Browsers send ``Origin`` with every write, and ``Sec-Fetch-Site`` with every request to a
trustworthy address (Fetch standard; Fetch Metadata). Other clients send neither.
"""

from __future__ import annotations

from twisted.web import http
from twisted.web.resource import Resource
from twisted.web.server import Request

from brokerd.admin.http.resources import json_answer, refusal


def is_cross_origin(request: Request) -> bool:
    """Return whether a browser sends the request for a page of another origin.

    The page's origin must have the host and the port of ``Host``. Its scheme may be ``https`` on a
    listener without TLS, because a proxy may end TLS.
    """
    headers = request.requestHeaders
    if any(value != b"same-origin" for value in headers.getRawHeaders(b"sec-fetch-site", [])):
        return True
    origins = headers.getRawHeaders(b"origin", [])
    if not origins:
        return False
    hosts = headers.getRawHeaders(b"host", [])
    if len(origins) != 1 or len(hosts) != 1:
        return True
    scheme, mark, host = origins[0].partition(b"://")
    schemes = (b"https",) if request.isSecure() else (b"http", b"https")
    return not mark or scheme not in schemes or host.lower() != hosts[0].strip().lower()


def is_embedded(request: Request) -> bool:
    """Return whether a browser loads the answer into a page of another origin.

    That page cannot read it, but learns whether it is an error: for example, whether a topic of
    that name exists. A visit to this site from a link is no such load.
    """
    headers = request.requestHeaders
    sites = headers.getRawHeaders(b"sec-fetch-site", [])
    is_visit = headers.getRawHeaders(b"sec-fetch-dest", []) == [b"document"]
    return not is_visit and any(site not in (b"same-origin", b"none") for site in sites)


def is_from_page(request: Request) -> bool:
    """Return whether a browser says for which page it sends the request."""
    headers = request.requestHeaders
    return headers.hasHeader(b"origin") or headers.hasHeader(b"sec-fetch-site")


class RefusedLoad(Resource):
    """Refuses to load an answer into a page of another origin."""

    isLeaf = True

    def render(self, request: Request) -> bytes:
        """Answer 403 to every path alike."""
        return json_answer(
            request, http.FORBIDDEN, refusal("a page of another origin may load nothing from here")
        )
