"""Settings that all tests share: fast by default, HYPOTHESIS_PROFILE=long digs deeper."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No deadlines: a loaded machine is slow, not wrong.
settings.register_profile(
    "fast", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", settings.get_profile("fast"), max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))
