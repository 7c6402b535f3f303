# Tests: tests/archive/test_job.py
"""Errors of the job that maintains an archive."""

from __future__ import annotations

from brokerd.errors import BrokerdError


class JobFailed(BrokerdError):
    """A step of the job cannot continue. The commits of the step stay."""
