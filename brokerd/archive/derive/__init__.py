"""Derives the tables ``deliveries`` and ``hourly`` from events and records."""
