"""Promises about records and topics: places, reads, committed offsets, removal."""
