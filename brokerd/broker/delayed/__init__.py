"""Delayed messages: schedules, delivery when due, prefetch from disk."""
