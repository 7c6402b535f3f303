"""Accounts, access lists and keys, and what is left of them after a restart."""
