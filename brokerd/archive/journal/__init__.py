"""Segments of the log, decoded to Arrow columns."""
