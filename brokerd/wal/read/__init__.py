"""Read the log back: planned batches, whole-file scans, searches by time and size."""
