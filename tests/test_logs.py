"""The operator's log, line by line."""

from __future__ import annotations

import io
import json
from typing import Any

from twisted.logger import LogLevel
from twisted.python.failure import Failure

from brokerd.server.logs import make_observer


def written(form: str, level: str = "info", **event: Any) -> str:
    """Write one event; its time is 2023-11-14 22:13:20.5 UTC."""
    file = io.StringIO()
    event = {
        "log_time": 1_700_000_000.5,
        "log_level": LogLevel.info,
        "log_namespace": "brokerd",
        **event,
    }
    make_observer(file, form, level)(event)
    return file.getvalue()


def test_text_is_time_level_event_and_message() -> None:
    """A line for people."""
    line = written("text", log_format="{who} listens", who="admin", event_id="listening")
    assert line == "2023-11-14T22:13:20.500Z info     [listening] admin listens\n"


def test_json_has_the_event_and_its_facts() -> None:
    """A line for machines: one object, with facts as values of their own."""
    line = written("json", log_format="{who} took {n}", who="a", n=3, o=object(), event_id="took")
    assert line.endswith("\n")
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.500Z",
        "level": "info",
        "event": "took",
        "message": "a took 3",
        "who": "a",
        "n": 3,
    }


def test_lines_of_twisted_itself_have_no_event() -> None:
    """What others log is kept as its message."""
    assert json.loads(written("json", log_format="plain"))["event"] is None


def test_a_name_cannot_forge_a_line() -> None:
    """Control characters that a client sent are escaped in both formats."""
    forged = "topic\n2023 critical [failed] all is lost\x1b[2J"
    for form in ("text", "json"):
        line = written(form, log_format="made {name}", name=forged, event_id="made")
        assert line.count("\n") == 1
        assert "\x1b" not in line


def test_levels_below_the_configured_one_are_left_out() -> None:
    """log.level keeps quiet what is less important."""
    event = {"log_format": "x"}
    assert written("text", "warn", **event) == ""
    assert written("text", "warn", **{**event, "log_level": LogLevel.error}) != ""
    assert written("text", "debug", **{**event, "log_level": LogLevel.debug}) != ""


def test_a_failure_brings_its_traceback() -> None:
    """A bug is in the log as a whole: below the line, or as a field."""
    try:
        raise ValueError("broken")
    except ValueError:
        failure = Failure()
    event = {"log_format": "it failed", "log_failure": failure}
    assert "ValueError: broken" in written("text", **event)
    assert "ValueError: broken" in json.loads(written("json", **event))["traceback"]
