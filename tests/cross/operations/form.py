"""The operations of a wire format, for the tests of the table of permissions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from brokerd.security import ADMIN, ANY, MONITOR, READ, WRITE

TOPIC: Final = "orders"
"""The topic of all requests; some tests create it."""
VALUE: Final = b"what nobody else may see"

NONE, KNOWN, BY_ROLE = 0, -1, -2
NEEDS: Final = {
    "READ": READ,
    "WRITE": WRITE,
    "ADMIN": ADMIN,
    "any": ANY,
    "MONITOR": MONITOR,
    "ADMIN by role": BY_ROLE,
    "login": KNOWN,
    "none": NONE,
}
"""The words of the pages for required permissions; `LIST` and another word may follow."""
LIST: Final = "; shows topics with "


Request = Callable[[str], bytes]
"""Makes a request for a topic."""


@dataclass(frozen=True)
class Operation:
    """One request of a format."""

    name: str
    """The name in the page's table."""
    needs: str
    """The permission in the page's table; see `NEEDS`."""
    request: Request
    """Succeeds once ``before`` was sent, with the permission."""
    before: tuple[Request, ...] = ()
    """Earlier requests of a client with all permissions, for tests with the topic."""
    refused: bytes | None = None
    """The refusal, if it differs from `Form.refused`."""

    may_not_make: bytes | None = None
    """The answer to a read-only client, if the request would create the missing topic."""

    is_open: bool = False
    """Whether it succeeds even after a failed login."""

    @property
    def permission(self) -> int:
        return NEEDS[self.needs.partition(LIST)[0]]

    @property
    def shows(self) -> int:
        """The permissions that show a topic in a list; any one of them suffices."""
        return NEEDS[self.needs.partition(LIST)[2] or "none"]


@dataclass(frozen=True)
class Form:
    """One wire format, or one of its dialects."""

    name: str
    listener: str
    """The name in the configuration."""
    page: str
    """The page in docs/protocols; the first table of its section "Permissions" counts."""
    operations: Sequence[Operation]
    refused: Callable[[bytes, str], bytes]
    """Returns the whole answer to a refused request, with the given words."""
    greeting: Callable[[str], bytes] = lambda secret: b""
    """Returns a client's greeting that logs in with a secret; empty if it is anonymous."""
    refused_greeting: bytes = b""
    """The first answer to an anonymous client."""
    anonymous: str = "authentication required"
    """The words of a refusal for an anonymous client."""
    has_login: bool = False
    """Whether all requests need a login."""
    by_key: bool = False
    """Whether each request has an API key, which `with_key` adds."""
    with_key: Callable[[bytes, str], bytes] = lambda request, key: request
    connect: Callable[[Any], Any] | None = None
    """Connects to a core, as `CoreHouse.connect_to` does, for a format without a factory."""
    told: Callable[[bytes], bytes] = lambda answer: answer
    """Returns the compared part of an answer."""
