# Tests: tests/admin/test_configuration_calls.py
"""The API's call about the configuration."""

from __future__ import annotations

from brokerd.admin.http.routing import Call, Route
from brokerd.admin.shapes.configuration import Configuration
from brokerd.security import ADMIN


def show_configuration(call: Call) -> Configuration:
    """Return all options with their values and sources."""
    return Configuration([*call.options()])


ROUTES = [
    Route(
        "GET",
        "/configuration",
        ADMIN,
        "Show all options, with the source of each value",
        show_configuration,
        Configuration,
    )
]
