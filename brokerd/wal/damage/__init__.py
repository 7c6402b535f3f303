"""Damage in a log: verification, repair, and the records that a repair leaves."""
