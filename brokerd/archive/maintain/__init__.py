"""Compacts, removes and merges records in the archive's files."""
