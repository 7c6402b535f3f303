"""API keys: made by chance, shown once, found again by what they say."""

from __future__ import annotations

import os
import re
from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from brokerd.security.keys import find_key, new_key


def test_a_key_has_32_bytes_of_chance_and_only_its_hash_is_kept() -> None:
    made = new_key("ann", "for tests", 7, os.urandom)
    assert re.fullmatch(r"bk_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", made.secret)
    assert made.key.digest == sha256(made.secret.encode()).digest()
    assert (made.key.owner, made.key.label, made.key.created_us) == ("ann", "for tests", 7)
    assert made.key.key_id in made.secret
    assert made.secret not in repr(made)


def test_a_key_is_found_by_its_text_alone() -> None:
    one, other = (new_key(name, "", 0, os.urandom) for name in ("ann", "bob"))
    keys = {made.key.key_id: made.key for made in (one, other)}
    assert find_key(keys, one.secret) is one.key
    assert find_key(keys, other.secret) is other.key
    for text in ("", one.secret[:-1], one.secret + "A", one.secret.upper(), one.key.key_id):
        assert find_key(keys, text) is None
    swapped = other.secret.replace(other.key.key_id, one.key.key_id)
    assert find_key(keys, swapped) is None


@given(st.text())
def test_no_text_is_a_key_that_was_not_made(text: str) -> None:
    known = new_key("ann", "", 0, bytes).key
    assert find_key({}, text) is None
    assert find_key({known.key_id: known}, text) is None
