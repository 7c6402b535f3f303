"""What a wire format's operations are, as the table of permissions goes through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from brokerd.security import ADMIN, ANY, MONITOR, READ, WRITE

TOPIC: Final = "orders"
"""The topic that is asked for; there is one, or there is none."""
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
"""What a page may say that an operation needs; `LIST` and one of them may follow."""
LIST: Final = "; shows topics with "


Request = Callable[[str], bytes]
"""Makes a request of a topic."""


@dataclass(frozen=True)
class Operation:
    """One request of a format."""

    name: str
    """As the page's table has it."""
    needs: str
    """As the page's table has it; see `NEEDS`."""
    request: Request
    """It succeeds once ``before`` was done, if it is permitted."""
    before: tuple[Request, ...] = ()
    """What somebody who may do everything has sent before, where there is the topic."""
    refused: bytes | None = None
    """What a refusal is, if not `Form.refused`."""

    may_not_make: bytes | None = None
    """What who may only read is answered where there is no topic, if the request makes one."""

    is_open: bool = False
    """Whether not even who fails to log in is refused."""

    @property
    def permission(self) -> int:
        return NEEDS[self.needs.partition(LIST)[0]]

    @property
    def shows(self) -> int:
        """Of a list: the permissions of which one shows a topic."""
        return NEEDS[self.needs.partition(LIST)[2] or "none"]


@dataclass(frozen=True)
class Form:
    """One wire format, or one of its dialects."""

    name: str
    listener: str
    """As the configuration calls it."""
    page: str
    """The file of docs/protocols that says what the operations need; the first table of its
    section "Permissions"."""
    operations: Sequence[Operation]
    refused: Callable[[bytes, str], bytes]
    """What a refused request is answered, byte for byte, and in which words it is refused."""
    greeting: Callable[[str], bytes] = lambda secret: b""
    """What a client sends first that logs in with a secret; empty: one that is anonymous."""
    refused_greeting: bytes = b""
    """What anonymous is told first."""
    anonymous: str = "authentication required"
    """The words in which anonymous is refused."""
    has_login: bool = False
    """Whether nobody may do anything before it has logged in."""
    by_key: bool = False
    """Whether each request says who sends it, with a key; `with_key` puts it in."""
    with_key: Callable[[bytes, str], bytes] = lambda request, key: request
    connect: Callable[[Any], Any] | None = None
    """Makes a connection to a core, as `CoreHouse.connect_to` does, where there is no factory of a
    wire format."""
    told: Callable[[bytes], bytes] = lambda answer: answer
    """What is compared of an answer."""
