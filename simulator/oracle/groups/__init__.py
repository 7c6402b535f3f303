"""Promises about groups: leases, attempts, dead letters, order by key, long polls."""
