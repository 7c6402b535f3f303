# Tests: tests/admin/test_origins.py
"""Writes that a browser sends for a page: only pages of this site may write.

Browsers send ``Origin`` with every write, and ``Sec-Fetch-Site`` with every request to a
trustworthy address (Fetch standard; Fetch Metadata). Other clients send neither.
"""

from __future__ import annotations

from twisted.web.server import Request


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


def is_from_page(request: Request) -> bool:
    """Return whether a browser says for which page it sends the request."""
    headers = request.requestHeaders
    return headers.hasHeader(b"origin") or headers.hasHeader(b"sec-fetch-site")
