"""Records: append, caches in memory, fetches, cold reads, offsets by time."""
