"""Backups of a data directory, and restores from them (docs/backup.rst)."""
