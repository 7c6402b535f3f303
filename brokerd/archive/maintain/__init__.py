"""Compaction, retention and merging of the archive's files."""
