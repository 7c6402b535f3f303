"""Deletion of segments: which ones can go, and the files that record it."""
