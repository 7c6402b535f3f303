"""Append to the log: segment allocation, commits and sealing."""
