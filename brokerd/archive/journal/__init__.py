"""Sealed segments of the log, decoded to Arrow columns."""
