"""The texts of RustLog's refusals are fit for logs and terminals."""

from __future__ import annotations

import pytest

from brokerd.codecs.rustlog import Dialect, RequestError
from brokerd.protocols.rustlog.refusals import no_topic, not_understood

REPEATED = "a\x1b[31m\nb\x7fé"
SHOWN = r"a\x1b[31m\x0ab\x7fé"


@pytest.mark.parametrize("dialect", Dialect)
def test_control_characters_of_a_request_are_escaped(dialect: Dialect) -> None:
    assert SHOWN in no_topic(REPEATED).answer(dialect).message
    assert not_understood(RequestError(REPEATED)).answer(dialect).message == SHOWN
