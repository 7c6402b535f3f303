"""Leases: acquire and settle, timers, long polls, group administration."""
