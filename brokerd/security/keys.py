# Tests: tests/security/test_keys.py
"""API keys: creation, text form and lookup.

A key is ``bk_``, 16 hexadecimal digits that name it, ``_``, and 32 random bytes in base64url (RFC
4648, section 5) without padding. The broker stores its SHA-256: with that much randomness a slow
hash is not needed.
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
    """Make a key for an account."""
    key_id = random_bytes(ID_BYTES).hex()
    secret = base64.urlsafe_b64encode(random_bytes(SECRET_BYTES)).rstrip(b"=").decode("ascii")
    text = f"{PREFIX}{key_id}_{secret}"
    return NewKey(ApiKey(key_id, owner, digest_of(text), label, created_us), text)


def digest_of(text: str) -> bytes:
    """Return the digest that the broker stores."""
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def key_id_of(text: str) -> str:
    """Return the id in the text of a key, whether or not the key exists; "" if the text is not a
    key.
    """
    found = _SHAPE.match(text)
    return "" if found is None else found[1]


def find_key(keys: Mapping[str, ApiKey], text: str) -> ApiKey | None:
    """Return the key with this text, or None; compares in constant time."""
    key = keys.get(key_id_of(text))
    digest = _NO_DIGEST if key is None else key.digest
    return key if compare_digest(digest_of(text), digest) else None
