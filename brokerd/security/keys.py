# Tests: tests/security/test_keys.py
"""API keys: how they are made, written and found again.

A key is ``bk_``, 16 hexadecimal digits that name it, ``_``, and 32 random bytes in base64url (RFC
4648, section 5) without padding. The broker keeps its SHA-256 alone: that much chance needs no slow
hash.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Final

from brokerd.security.accounts import ApiKey, NewKey

PREFIX: Final = "bk_"
ID_BYTES: Final = 8
SECRET_BYTES: Final = 32
_NO_DIGEST: Final = bytes(32)
_SHAPE: Final = re.compile(rf"{PREFIX}([0-9a-f]{{{2 * ID_BYTES}}})_")


def new_key(
    owner: str, label: str, created_us: int, random_bytes: Callable[[int], bytes]
) -> NewKey:
    """A key for an account."""
    key_id = random_bytes(ID_BYTES).hex()
    secret = base64.urlsafe_b64encode(random_bytes(SECRET_BYTES)).rstrip(b"=").decode("ascii")
    text = f"{PREFIX}{key_id}_{secret}"
    return NewKey(ApiKey(key_id, owner, digest_of(text), label, created_us), text)


def digest_of(text: str) -> bytes:
    """What is kept of a key."""
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def key_id_of(text: str) -> str:
    """The id in the text of a key, whether or not there is such a key; empty if it is no key."""
    found = _SHAPE.match(text)
    return "" if found is None else found[1]


def find_key(keys: Mapping[str, ApiKey], text: str) -> ApiKey | None:
    """The key that this is the text of, if there is one; compares in constant time."""
    key = keys.get(key_id_of(text))
    digest = _NO_DIGEST if key is None else key.digest
    return key if compare_digest(digest_of(text), digest) else None
