"""The tables ``deliveries`` and ``hourly``, derived from events and records."""
