"""Removal of old records and deletion of segments."""
