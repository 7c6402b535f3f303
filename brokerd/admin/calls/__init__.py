"""The calls of the JSON API."""
