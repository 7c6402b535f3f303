# Tests: tests/simulator/test_logins.py
"""A quick hash in place of Argon2id, which takes 20 ms of a core on purpose.

A hash has the form and the length of the real one, so that entries of the log keep their sizes.
`tests/security/test_passwords.py` tests the real one.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from hmac import compare_digest
from unittest.mock import patch

from argon2.exceptions import VerifyMismatchError
from argon2.low_level import Type

from brokerd.security import passwords


def quick_hash(
    secret: bytes, salt: bytes, passes: int, memory_kib: int, lanes: int, size: int, kind: Type
) -> bytes:
    """Return a PHC string for a password: BLAKE2b under the name of Argon2id."""
    digest = hashlib.blake2b(secret, digest_size=size, salt=salt).digest()
    head = f"$argon2id$v=19$m={memory_kib},t={passes},p={lanes}$".encode()
    return head + b"$".join(b64encode(part).rstrip(b"=") for part in (salt, digest))


def quick_verify(found: bytes, secret: bytes, kind: Type) -> bool:
    """Return True. Raises VerifyMismatchError for another password."""
    salt, digest = (b64decode(part + b"=" * (-len(part) % 4)) for part in found.split(b"$")[-2:])
    expected = hashlib.blake2b(secret, digest_size=len(digest), salt=salt).digest()
    if not compare_digest(digest, expected):
        raise VerifyMismatchError("the password does not match the hash")
    return True


@contextmanager
def quick_passwords() -> Iterator[None]:
    """Return the context in which brokerd hashes passwords quickly."""
    with (
        patch.object(passwords, "hash_secret", quick_hash),
        patch.object(passwords, "verify_secret", quick_verify),
    ):
        yield
