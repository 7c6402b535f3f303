"""The archive as the broker reads it."""
