# Tests: tests/test_tap.py
"""Tells ``twistd`` that brokerd exists; the work is in :mod:`brokerd.tap`, named here by string."""

from twisted.application.service import ServiceMaker

brokerd = ServiceMaker(
    "brokerd", "brokerd.tap", "A durable message broker: one journal, many wire formats.", "brokerd"
)
